"""Translate OpenAI's chat and embeddings requests into Gemini's. Pure."""

from __future__ import annotations

import mimetypes
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import orjson

from gateway.dialects.json_body import limit_of, load_json
from gateway.dialects.structured_answers import as_dict
from gateway.dialects.translation.limits import Fitting, Limits
from gateway.dialects.translation.reading import call_arguments, parse_data_url
from gateway.errors import BadRequest

LIMITS = Limits(tool_name=64, call_id=128, user=128, plain_ids=False, opaque_user=False)
MAX_STOPS = 5
SYSTEM = ("system", "developer")
# Fields that would change the response. Other fields that Gemini does not know are left out.
UNSUPPORTED_FIELDS = ("logprobs", "top_logprobs", "audio", "functions", "function_call", "web_search_options")
SAME = {
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "seed": "seed",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
    "n": "candidateCount",
}
MODES = {"auto": "AUTO", "required": "ANY", "none": "NONE"}
BUDGETS = {"none": 0, "minimal": 1024, "low": 1024, "medium": 8192, "high": 24576}  # of Google's compatible endpoint
OF_BUDGETS = ("gemini-2", "gemini-1")  # models that know budgets for thinking, and no levels
SOUNDS = {"wav": "audio/wav", "mp3": "audio/mp3"}
# The start of the id of a call that came without one. Such ids stay in the gateway.
MADE = "made_"
# Google accepts this signature for calls that another model has made, or whose client has lost it.
# https://ai.google.dev/gemini-api/docs/thought-signatures
UNSIGNED = "skip_thought_signature_validator"


def content_request(body: Mapping[str, Any], model: str, fit: Fitting) -> dict[str, Any]:
    """Return the translated request. Raise `BadRequest` for what Gemini's protocol cannot express. `fit` learns the
    names of tools that do not fit. Stop sequences beyond `MAX_STOPS` are left to `own_stops`."""
    _check(body)
    system = [part for message in body["messages"] if message["role"] in SYSTEM for part in _texts(message)]
    contents = _Turns(fit).contents(body["messages"])
    request: dict[str, Any] = {"contents": contents or [{"role": "user", "parts": system or [{"text": ""}]}]}
    if system and contents:
        request["systemInstruction"] = {"parts": system}
    config: dict[str, Any] = {theirs: body[key] for key, theirs in SAME.items() if body.get(key) is not None}
    if limit := limit_of(body.get("max_completion_tokens"), body.get("max_tokens")):
        config["maxOutputTokens"] = limit
    if stop := _stops(body):
        config["stopSequences"] = stop[:MAX_STOPS]
    config |= _output(body) | _thinking(body.get("reasoning_effort"), model)
    return request | ({"generationConfig": config} if config else {}) | _tools(body, fit)


def embeddings_request(body: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Return the request for the vectors of all inputs. Raise `BadRequest` for inputs that are not text."""
    given = body.get("input")
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise untranslatable("an 'input' that is not text", "input")
    size = {} if body.get("dimensions") is None else {"outputDimensionality": body["dimensions"]}
    named = {"model": f"models/{model}"}
    return {"requests": [{**named, "content": {"parts": [{"text": text}]}, **size} for text in texts]}


def own_stops(body: Mapping[str, Any]) -> Sequence[str]:
    """Return the stop sequences that the gateway has to look for itself."""
    return _stops(body)[MAX_STOPS:]


def untranslatable(what: str, param: str) -> BadRequest:
    return BadRequest(f"{what} cannot be translated to Gemini's protocol, which the backend speaks", param=param)


def _stops(body: Mapping[str, Any]) -> list[str]:
    stop = body.get("stop") or ()
    return [stop] if isinstance(stop, str) else list(stop)


def _check(body: Mapping[str, Any]) -> None:
    for key in UNSUPPORTED_FIELDS:
        if body.get(key):
            raise untranslatable(f"'{key}'", key)
    if body.get("modalities") not in (None, ["text"]):
        raise untranslatable("'modalities' other than text", "modalities")
    if body.get("parallel_tool_calls") is False and body.get("tools"):
        raise untranslatable("'parallel_tool_calls: false'", "parallel_tool_calls")


def _output(body: Mapping[str, Any]) -> dict[str, Any]:
    form = body.get("response_format") or {}
    kind = form.get("type", "text")
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"responseMimeType": "application/json"}
    if kind == "json_schema":
        return {"responseMimeType": "application/json", "responseJsonSchema": form["json_schema"].get("schema") or {}}
    raise untranslatable(f"'response_format' of the type {str(kind)[:40]!r}", "response_format")


def _thinking(effort: Any, model: str) -> dict[str, Any]:
    if effort is None:
        return {}
    if not isinstance(effort, str):
        raise untranslatable("this 'reasoning_effort'", "reasoning_effort")
    if effort == "none" or model.startswith(OF_BUDGETS):
        return {"thinkingConfig": {"thinkingBudget": BUDGETS.get(effort, BUDGETS["high"])}}
    return {"thinkingConfig": {"thinkingLevel": "HIGH" if effort not in BUDGETS else effort.upper()}}


def _tools(body: Mapping[str, Any], fit: Fitting) -> dict[str, Any]:
    given = body.get("tools")
    if not given:
        return {}
    fields: dict[str, Any] = {"tools": [{"functionDeclarations": [_tool(tool, fit) for tool in given]}]}
    if (choice := body.get("tool_choice")) is not None:
        fields["toolConfig"] = {"functionCallingConfig": _choice(choice, fit)}
    return fields


def _tool(tool: Mapping[str, Any], fit: Fitting) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise untranslatable(f"a tool of the type {str(tool.get('type'))[:40]!r}", "tools")
    function = tool["function"]
    about = {"description": function["description"]} if function.get("description") else {}
    schema = {"parametersJsonSchema": function["parameters"]} if function.get("parameters") else {}
    return {"name": fit.name(function["name"]), **about, **schema}


def _choice(choice: Any, fit: Fitting) -> dict[str, Any]:
    if isinstance(choice, str) and choice in MODES:
        return {"mode": MODES[choice]}
    kind = as_dict(choice).get("type")
    if kind == "function":
        return {"mode": "ANY", "allowedFunctionNames": [fit.name(choice["function"]["name"])]}
    if kind == "allowed_tools" and choice["allowed_tools"].get("mode") == "required":
        names = [fit.name(each["function"]["name"]) for each in choice["allowed_tools"]["tools"]]
        return {"mode": "ANY", "allowedFunctionNames": names}
    raise untranslatable("this 'tool_choice'", "tool_choice")


class _Turns:
    """`_Turns` translates messages. The results of one turn's calls are one content, in the order of the calls, as the
    API requires."""

    def __init__(self, fit: Fitting) -> None:
        self._fit = fit
        self._calls: dict[str, str] = {}  # id of a call of the last turn with calls -> name
        self._results: dict[str, dict[str, Any]] = {}  # id -> result

    def contents(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        contents: list[dict[str, Any]] = []
        for message in messages:
            role = message["role"]
            if role in SYSTEM:
                continue
            if role == "tool":
                self._add_result(message)
                continue
            contents += self._pending()
            if role == "assistant":
                contents += _turn("model", [*self._text_parts(message), *self._call_parts(message)])
            elif role == "user":
                contents += _turn("user", list(_parts(message.get("content"))))
            else:
                raise untranslatable(f"a message of the role {role[:40]!r}", "messages")
        return [*contents, *self._pending()]

    def _text_parts(self, message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        yield from _parts(message.get("content") or message.get("refusal"))

    def _call_parts(self, message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        calls = message.get("tool_calls") or ()
        if calls:
            self._calls = {}
        for i, call in enumerate(calls):
            function, signature = call["function"], _signature(call) or (UNSIGNED if i == 0 else "")
            self._calls[call["id"]] = name = self._fit.name(function["name"])
            made = {**self._id(call["id"]), "name": name, "args": call_arguments(function.get("arguments"))}
            yield {"functionCall": made, **({"thoughtSignature": signature} if signature else {})}

    def _add_result(self, message: Mapping[str, Any]) -> None:
        given = message.get("tool_call_id")
        if given not in self._calls:
            raise BadRequest(
                "a message of the role 'tool' belongs to no call: expected the id of one before it", param="messages"
            )
        text = "\n".join(part["text"] for part in _texts(message))
        self._results[given] = {**self._id(given), "name": self._calls[given], "response": _response(text)}

    def _pending(self) -> list[dict[str, Any]]:
        """Return the content with the results so far."""
        results = [{"functionResponse": self._results[each]} for each in self._calls if each in self._results]
        self._results = {}
        return _turn("user", results)

    def _id(self, given: str) -> dict[str, Any]:
        return {} if given.startswith(MADE) else {"id": self._fit.call_id(given)}


def _turn(role: str, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a content; none without parts, which the API refuses."""
    return [{"role": role, "parts": parts}] if parts else []


def _signature(call: Mapping[str, Any]) -> Any:
    return as_dict(as_dict(call.get("extra_content")).get("google")).get("thought_signature")


def _response(text: str) -> dict[str, Any]:
    """Return a result as an object, which the protocol requires."""
    try:
        value = load_json(text)
    except orjson.JSONDecodeError:
        value = text
    return value if isinstance(value, dict) else {"result": value}


def _texts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    parts = list(_parts(message.get("content")))
    if any("text" not in part for part in parts):
        raise untranslatable(f"a message of the role {message['role']!r} that is not text", "messages")
    return parts


def _parts(content: Any) -> Iterator[dict[str, Any]]:
    """Yield the parts of a message, without empty texts."""
    parts: Sequence[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content or ()
    for part in parts:
        kind = part.get("type")
        if kind in ("text", "refusal"):
            if text := part.get("text") or part.get("refusal"):
                yield {"text": text}
        elif kind == "image_url":
            yield _source(part["image_url"]["url"])
        elif kind == "file" and isinstance(part["file"].get("file_data"), str):
            yield _source(part["file"]["file_data"])
        elif kind == "input_audio" and part["input_audio"].get("format") in SOUNDS:
            sound = part["input_audio"]
            yield {"inlineData": {"mimeType": SOUNDS[sound["format"]], "data": sound["data"]}}
        else:
            raise untranslatable(f"a part of the type {str(kind)[:40]!r}", "messages")


def _source(url: str) -> dict[str, Any]:
    if url.startswith("data:"):
        media, data = parse_data_url(url)
        return {"inlineData": {"mimeType": media, "data": data}}
    guessed, _ = mimetypes.guess_type(urlsplit(url).path)
    if guessed is None:
        raise untranslatable("the address of an image whose name does not tell its type", "messages")
    return {"fileData": {"mimeType": guessed, "fileUri": url}}
