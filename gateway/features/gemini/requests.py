"""Requests of Gemini's protocol: the names of their fields, their checks, and what decides their answers. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from gateway.calls import Decisive
from gateway.dialects.conversation import split_content, transcript
from gateway.dialects.equal_forms import LIST, NULLABLE, NUMBER, ONE, Table, with_defaults_left_out
from gateway.dialects.json_body import ABSENT, check_limit, check_temperature, invalid_field
from gateway.dialects.structured_answers import as_dict, as_list
from gateway.errors import BadRequest
from gateway.outcomes import Bypass

SETTINGS = "generationConfig"  # the field with the parameters of the model

# Fields whose keys are not those of the protocol: arguments and results of functions, and schemas.
_OPAQUE = frozenset(
    {
        "args", "response", "parameters", "parametersJsonSchema", "responseSchema", "responseJsonSchema",
        "_responseJsonSchema", "partMetadata", "labels",
    }
)  # fmt: skip
_SNAKE = re.compile(rb'"_?[a-z0-9]+(?:_[a-z0-9]+)+"\s*:')
_WORD = re.compile(r"(?<=.)_([a-z0-9])")  # `_responseJsonSchema` begins with one
_DIGITS = re.compile(r"[0-9]{1,18}", re.ASCII)
INTEGERS = ("candidateCount", "maxOutputTokens", "topK", "seed")

# Fields that do not decide the answer: the labels of a bill. https://cloud.google.com/vertex-ai/docs/reference/rest
NON_DECISIVE = frozenset({"labels"})
BODY: Table = {
    "cachedContent": NULLABLE,
    SETTINGS: NULLABLE,
    "safetySettings": LIST,
    "systemInstruction": NULLABLE,
    "toolConfig": NULLABLE,
    "tools": LIST,
}
CONFIG: Table = {
    "candidateCount": ONE,  # "if unset, this will default to 1"
    "maxOutputTokens": NUMBER,
    "stopSequences": LIST,
    "temperature": NUMBER,
    "topK": NUMBER,
    "topP": NUMBER,
}
TEXT_KEYS = frozenset({"text"})


def plain_body(body: bytes, value: dict[str, Any]) -> dict[str, Any]:
    """Return a body in the one form that the gateway reads. Google's servers read all of them, and the examples of its
    documentation have them: names in snake case, and what `in_lists` mends. `body` is `value` as JSON, and belongs to
    the caller. Raise `BadRequest` if one field stands there twice."""
    return in_lists(camel_case(value) if _SNAKE.search(body) else value)


def in_lists(body: dict[str, Any]) -> dict[str, Any]:
    """Return a body whose fields are lists where the protocol has lists: one element may stand there alone. Names of
    roles are in lower case, and integers no texts. The body is changed in place."""
    _to_lists(body, "contents", "tools", "safetySettings", "requests")
    turns = [body.get("systemInstruction"), body.get("content"), *as_list(body.get("contents"))]
    for content in (*turns, *(as_dict(each).get("content") for each in as_list(body.get("requests")))):
        if isinstance(content, dict):
            _to_lists(content, "parts")
            if isinstance(role := content.get("role"), str):
                content["role"] = role.lower()
    for tool in as_list(body.get("tools")):
        if isinstance(tool, dict):
            _to_lists(tool, "functionDeclarations")
    if isinstance(config := body.get(SETTINGS), dict):
        _to_lists(config, "stopSequences", "responseModalities", of=str)
        for name in INTEGERS:
            if isinstance(value := config.get(name), str) and _DIGITS.fullmatch(value):
                config[name] = int(value)
    calling = as_dict(body.get("toolConfig")).get("functionCallingConfig")
    if isinstance(calling, dict):
        _to_lists(calling, "allowedFunctionNames", of=str)
    return body


def _to_lists(fields: dict[str, Any], *names: str, of: type = dict) -> None:
    for name in names:
        if isinstance(value := fields.get(name), of):
            fields[name] = [value]


def camel_case(value: Any) -> Any:
    if isinstance(value, list):
        return [camel_case(each) for each in value]
    if not isinstance(value, dict):
        return value
    plain: dict[str, Any] = {}
    for key, each in value.items():
        name = _WORD.sub(lambda match: match[1].upper(), key)
        if name in plain:
            raise BadRequest(f"the field {name!r} occurs twice in one object: expected it once", param=name)
        plain[name] = each if name in _OPAQUE else camel_case(each)
    return plain


def check_content_request(body: Mapping[str, Any]) -> None:
    """Check the fields that the gateway itself relies on. The backend judges the rest. Raise `BadRequest`."""
    for field in (SETTINGS, "systemInstruction", "toolConfig"):
        if not isinstance(value := body.get(field), dict | None):
            raise invalid_field(field, "an object", value)
    config = settings_of(body)
    check_temperature(config)
    for field in ("maxOutputTokens", "candidateCount"):
        check_limit(config, field)
    contents = body.get("contents", ABSENT)
    if not isinstance(contents, list) or not contents:
        raise invalid_field("contents", "a non-empty array", contents)
    for i, content in enumerate(contents):
        check_content(content, f"contents[{i}]")
    if body.get("systemInstruction") is not None:
        check_content(body["systemInstruction"], "systemInstruction")


def check_content(content: Any, where: str) -> None:
    if not isinstance(content, dict):
        raise invalid_field(where, "an object", content)
    if not isinstance(role := content.get("role"), str | None):
        raise invalid_field(f"{where}.role", "a string", role)
    parts = content.get("parts")
    if not isinstance(parts, list | None):
        raise invalid_field(f"{where}.parts", "an array", parts)
    for i, part in enumerate(parts or ()):
        if not isinstance(part, dict):
            raise invalid_field(f"{where}.parts[{i}]", "an object", part)
        if not isinstance(part.get("text"), str | None):
            raise invalid_field(f"{where}.parts[{i}].text", "a string", part["text"])


def settings_of(body: Mapping[str, Any]) -> Mapping[str, Any]:
    return as_dict(body.get(SETTINGS))


def is_text(part: Mapping[str, Any]) -> bool:
    """Return whether a part is a text, and no thought."""
    return isinstance(part.get("text"), str) and not part.get("thought")


def texts_of(content: Mapping[str, Any]) -> str:
    return "\n".join(part["text"] for part in as_list(content.get("parts")) if is_text(part))


def decisive_of(model: str, body: Mapping[str, Any], mask: str | None = None) -> Decisive:
    """Return what decides the answer to a request that was checked. The path names the model, not the body. `mask`
    names the fields of the answer that the client wants, or None if it wants all."""
    form = with_defaults_left_out({key: value for key, value in body.items() if key not in NON_DECISIVE}, BODY)
    if config := with_defaults_left_out(settings_of(body), CONFIG):
        form[SETTINGS] = config
    else:
        form.pop(SETTINGS, None)
    if (system := form.get("systemInstruction")) is not None:  # its role says nothing
        form["systemInstruction"] = {key: value for key, value in system.items() if key != "role"}
    form["contents"] = [{**content, "role": content.get("role") or "user"} for content in body["contents"]]
    question, context, no_question = _question(form)
    named = [model] if mask is None else [model, mask]
    return Decisive(
        orjson.dumps([*named, form], option=orjson.OPT_SORT_KEYS),
        orjson.dumps([*named, context], option=orjson.OPT_SORT_KEYS),
        question,
        no_question,
    )


def _question(body: Mapping[str, Any]) -> tuple[str | None, Any, Bypass | None]:
    """Return (the text to match by similarity, the parts that must be equal, the reason if there is no text)."""
    *earlier, last = body["contents"]
    if last["role"] == "user":
        text, rest = split_content(as_list(last.get("parts")), is_text, TEXT_KEYS)
        if text.strip():
            return text, {**body, "contents": [*earlier, {**last, "parts": rest}]}, None
    return None, body, Bypass.NO_TEXT


def prompt_of(body: Mapping[str, Any]) -> str:
    system = body.get("systemInstruction")
    turns = [("system", texts_of(system))] if system else []
    turns += [(content.get("role") or "user", texts_of(content)) for content in body["contents"]]
    return transcript(turns)
