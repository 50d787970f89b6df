"""Translate Gemini's requests into OpenAI's chat and embeddings requests. Pure."""

from __future__ import annotations

import base64
from binascii import Error as NotBase64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.dialects.json_body import dump_json, limit_of
from gateway.dialects.structured_answers import as_dict, as_list
from gateway.dialects.translation.limits import Fitting, object_schema
from gateway.dialects.translation.reading import data_url, messages_last
from gateway.dialects.translation.stops import MAX_OPENAI
from gateway.dialects.tuning import effort_of
from gateway.errors import BadRequest
from gateway.features.gemini.embeddings import requests_of
from gateway.features.gemini.requests import settings_of, texts_of
from gateway.features.gemini.schemas import answer_schema, declarations_of

# Fields that would change the answer are refused, and so are those that the gateway does not know. These are left out.
FIELDS = frozenset(
    {"contents", "systemInstruction", "generationConfig", "tools", "toolConfig", "safetySettings", "labels", "model"}
)
SAME = {
    "temperature": "temperature",
    "topP": "top_p",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
    "seed": "seed",
    "candidateCount": "n",
}
CONFIG = frozenset(
    {
        *SAME, "maxOutputTokens", "stopSequences", "topK", "responseMimeType", "responseSchema", "responseJsonSchema",
        "_responseJsonSchema", "thinkingConfig", "mediaResolution", "responseModalities",
    }
)  # fmt: skip
MODES = {"AUTO": "auto", "MODE_UNSPECIFIED": "auto", "VALIDATED": "auto", "ANY": "required", "NONE": "none"}
EMBEDDED = frozenset(
    {"model", "content", "taskType", "title", "outputDimensionality", "autoTruncate", "embedContentConfig"}
)
SOUNDS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mp3": "mp3", "audio/mpeg": "mp3"}
BESIDES = frozenset({"thought", "thoughtSignature", "videoMetadata", "mediaResolution", "partMetadata"})


def chat_request(
    body: Mapping[str, Any],
    model: str,
    *,
    stream: bool,
    fit: Fitting,
    reasoning_content: bool = False,
    signatures: bool = False,
) -> dict[str, Any]:
    """Return the translated request. Raise `BadRequest` for what OpenAI's protocol cannot express.

    With `reasoning_content` earlier thoughts stay, in the field of that name. With `signatures` those of calls stay, in
    the form of Gemini's compatible endpoint. `fit` learns the names of functions that do not fit.
    """
    _refuse_unknown(body, FIELDS, "")
    config = settings_of(body)
    _refuse_unknown(config, CONFIG, "generationConfig.")
    reader = _Turns(fit, reasoning_content=reasoning_content, signatures=signatures)
    messages = [message for i, content in enumerate(body["contents"]) for message in reader.messages(i, content)]
    if system := _system(body):
        messages.insert(0, {"role": "system", "content": system})
    request: dict[str, Any] = {"model": model, "messages": messages or [{"role": "user", "content": ""}]}
    request |= {theirs: config[key] for key, theirs in SAME.items() if config.get(key) is not None}
    if limit := limit_of(config.get("maxOutputTokens")):
        request["max_completion_tokens"] = limit
    if stop := config.get("stopSequences"):
        request["stop"] = stop[:MAX_OPENAI]
    if stream:
        request |= {"stream": True, "stream_options": {"include_usage": True}}
    return messages_last(request | _tools(body, fit) | _output(config) | _thinking(config))


def own_stops(body: Mapping[str, Any]) -> Sequence[str]:
    """Return the stop sequences that the gateway has to look for itself."""
    return list((settings_of(body).get("stopSequences") or ())[MAX_OPENAI:])


def embeddings_request(body: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Return the translated request for vectors. The task of a text is left out: OpenAI's models have none."""
    requests = requests_of(body)
    texts, sizes = [], set()
    for request in requests:
        _refuse_unknown(request, EMBEDDED, "")
        more = as_dict(request.get("embedContentConfig"))
        sizes.add(request.get("outputDimensionality") or more.get("outputDimensionality"))
        if any("text" not in part for part in as_list(request["content"].get("parts"))):
            raise untranslatable("a content that is not text", "content")
        texts.append(texts_of(request["content"]))
    if len(sizes) > 1:
        raise untranslatable("an 'outputDimensionality' that differs within a batch", "outputDimensionality")
    size = sizes.pop()
    return {"model": model, "input": texts, **({} if size is None else {"dimensions": size})}


def untranslatable(what: str, param: str) -> BadRequest:
    return BadRequest(f"{what} cannot be translated to OpenAI's protocol, which the backend speaks", param=param)


def _refuse_unknown(fields: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    for key, value in fields.items():
        if key not in known and value not in (None, False, [], {}, ""):
            raise untranslatable(f"'{where}{key[:40]}'", f"{where}{key[:40]}")


def _system(body: Mapping[str, Any]) -> str:
    system = as_dict(body.get("systemInstruction"))
    if any("text" not in part for part in as_list(system.get("parts"))):
        raise untranslatable("a 'systemInstruction' that is not text", "systemInstruction")
    return texts_of(system)


def _output(config: Mapping[str, Any]) -> dict[str, Any]:
    modalities = config.get("responseModalities")
    if modalities and [str(each).upper() for each in modalities] != ["TEXT"]:
        raise untranslatable("'responseModalities' other than text", "generationConfig.responseModalities")
    schema, kind = answer_schema(config), config.get("responseMimeType") or "text/plain"
    if kind not in ("text/plain", "application/json"):
        raise untranslatable(f"the 'responseMimeType' {str(kind)[:40]!r}", "generationConfig.responseMimeType")
    if schema is not None:
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}
    return {"response_format": {"type": "json_object"}} if kind == "application/json" else {}


def _thinking(config: Mapping[str, Any]) -> dict[str, Any]:
    thinking = as_dict(config.get("thinkingConfig"))
    level, budget = thinking.get("thinkingLevel"), thinking.get("thinkingBudget")
    if isinstance(level, str) and level.upper() != "THINKING_LEVEL_UNSPECIFIED":
        return {"reasoning_effort": level.lower()}
    if type(budget) is int and budget >= 0:  # -1: the model decides
        return {"reasoning_effort": effort_of(budget)}
    return {}


def _tools(body: Mapping[str, Any], fit: Fitting) -> dict[str, Any]:
    for tool in as_list(body.get("tools")):
        for key, value in tool.items():
            if key != "functionDeclarations" and value is not None:
                raise untranslatable(f"the tool {key[:40]!r}", "tools")
    calling = as_dict(as_dict(body.get("toolConfig")).get("functionCallingConfig"))
    allowed = as_list(calling.get("allowedFunctionNames"))
    declared = [each for each in declarations_of(body) if not allowed or each["name"] in allowed]
    if not declared:
        return {}
    fields: dict[str, Any] = {"tools": [_tool(function, fit) for function in declared]}
    if (mode := calling.get("mode")) is not None:
        if mode not in MODES:
            raise untranslatable(f"the mode {str(mode)[:40]!r} of calls", "toolConfig")
        fields["tool_choice"] = MODES[mode]
    return fields


def _tool(function: Mapping[str, Any], fit: Fitting) -> dict[str, Any]:
    if function.get("behavior") not in (None, "UNSPECIFIED", "BLOCKING"):
        raise untranslatable(f"the 'behavior' {str(function['behavior'])[:40]!r} of a function", "tools")
    about = {"description": function["description"]} if function.get("description") else {}
    schema = object_schema({} if function["schema"] is None else function["schema"])
    return {"type": "function", "function": {"name": fit.name(function["name"]), **about, "parameters": schema}}


class _Turns:
    """`_Turns` translates the turns of a conversation in their order. It pairs results with calls: by their ids, or by
    the names of functions, in the order of the calls."""

    def __init__(self, fit: Fitting, *, reasoning_content: bool, signatures: bool) -> None:
        self._fit, self._reasoning_content, self._signatures = fit, reasoning_content, signatures
        self._open: list[tuple[str, Any, str]] = []  # name, the client's id, the id that was sent: without a result

    def messages(self, turn: int, content: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        parts = [part for part in as_list(content.get("parts")) if part]
        role = content.get("role") or "user"
        if role == "model":
            yield from self._of_model(turn, parts)
        elif role in ("user", "function", "tool"):
            yield from self._of_user(parts)
        else:
            raise untranslatable(f"a content of the role {role[:40]!r}", "contents")

    def _of_model(self, turn: int, parts: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        texts, thoughts, calls = list[str](), list[str](), list[dict[str, Any]]()
        for part in parts:
            kind = kind_of(part)
            if kind == "text":
                (thoughts if part.get("thought") else texts).append(part["text"])
            elif kind == "functionCall":
                calls.append(self._call(f"call_{turn}_{len(calls)}", part))
            elif kind:
                raise untranslatable(f"a part of the type {kind[:40]!r} in a turn of the model", "contents")
        message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) or None}
        if thoughts and self._reasoning_content:
            message["reasoning_content"] = "".join(thoughts)
        if calls:
            message["tool_calls"] = calls
        if message["content"] or calls:
            yield message

    def _call(self, made_id: str, part: Mapping[str, Any]) -> dict[str, Any]:
        call = part["functionCall"]
        name, given = call["name"], call.get("id")
        sent = self._fit.call_id(given) if given else made_id
        self._open.append((name, given, sent))
        function = {"name": self._fit.name(name), "arguments": dump_json(call.get("args") or {}).decode()}
        more: dict[str, Any] = {}
        if self._signatures and part.get("thoughtSignature"):
            more["extra_content"] = {"google": {"thought_signature": part["thoughtSignature"]}}
        return {"id": sent, "type": "function", "function": function, **more}

    def _of_user(self, parts: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the results of calls first, one message each."""
        content: list[dict[str, Any]] = []
        for part in parts:
            kind = kind_of(part)
            if kind == "functionResponse":
                yield self._result(part["functionResponse"])
            elif kind == "text" and part.get("thought"):
                continue
            elif kind:
                content.append(_part(kind, part))
        content = [part for part in content if part.get("text") != ""]
        if content and all(part["type"] == "text" for part in content):
            yield {"role": "user", "content": "\n".join(part["text"] for part in content)}
        elif content:
            yield {"role": "user", "content": content}

    def _result(self, result: Mapping[str, Any]) -> dict[str, Any]:
        if result.get("parts"):
            raise untranslatable("a 'functionResponse' with parts", "contents")
        name, given = result.get("name"), result.get("id")
        waiting = (each for each in self._open if (given == each[1] if given and each[1] else name == each[0]))
        call = next(waiting, None)
        if call is None:
            raise BadRequest(
                f"the result of {str(name)[:40]!r} belongs to no call: expected a 'functionCall' before it",
                param="contents",
            )
        self._open.remove(call)
        return {"role": "tool", "tool_call_id": call[2], "content": dump_json(result.get("response") or {}).decode()}


def kind_of(part: Mapping[str, Any]) -> str:
    """Return the field with the content of a part; "" if it has only a signature."""
    return next((key for key, value in part.items() if key not in BESIDES and value is not None), "")


def _part(kind: str, part: Mapping[str, Any]) -> dict[str, Any]:
    if kind == "text":
        return {"type": "text", "text": part["text"]}
    if part.get("videoMetadata"):
        raise untranslatable("a part with 'videoMetadata'", "contents")
    source = as_dict(part.get(kind))
    media = str(source.get("mimeType") or "").partition(";")[0].lower()
    if kind == "inlineData":
        return _inline(media, source)
    if kind == "fileData" and media.startswith("image/") and str(source.get("fileUri")).startswith("https://"):
        return {"type": "image_url", "image_url": {"url": source["fileUri"]}}
    about = f" of {media[:40]!r}" if media else ""
    raise untranslatable(f"a part of the type {kind[:40]!r}{about}", "contents")


def _inline(media: str, source: Mapping[str, Any]) -> dict[str, Any]:
    data = source["data"].replace("-", "+").replace("_", "/")  # protocol buffers write base64 in both alphabets
    data += "=" * (-len(data) % 4)
    if media.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": data_url(media, data)}}
    if media in SOUNDS:
        return {"type": "input_audio", "input_audio": {"data": data, "format": SOUNDS[media]}}
    if media == "application/pdf":
        name = source.get("displayName") or "document.pdf"
        return {"type": "file", "file": {"filename": name, "file_data": data_url(media, data)}}
    if media.startswith("text/"):
        try:
            return {"type": "text", "text": base64.b64decode(data, validate=True).decode()}
        except (NotBase64, UnicodeDecodeError):
            raise BadRequest("an 'inlineData' of text is invalid: expected UTF-8 in base64", param="contents") from None
    raise untranslatable(f"an 'inlineData' of {media[:40]!r}", "contents")
