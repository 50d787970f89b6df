"""Translate Gemini's response to a chat request into a chat completion: complete, or chunk by chunk. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any
from urllib.parse import quote

from gateway.calls import Call, Outgoing
from gateway.dialects.json_body import dump_json, escape_line_ends, load_json
from gateway.dialects.openai import answers as openai
from gateway.dialects.openai.answers import CHAT, DONE, reading
from gateway.dialects.structured_answers import as_dict
from gateway.dialects.translation.limits import fitting
from gateway.dialects.translation.reading import bad_request_if_unreadable, error_message, is_context_overflow
from gateway.dialects.translation.stops import ChatStops
from gateway.dialects.usage import usage_in
from gateway.errors import BadRequest, MalformedResponse
from gateway.features.gemini import answers
from gateway.features.gemini.answers import END, REFUSALS, UNFINISHED, candidates_of, index_of, parts_of
from gateway.features.gemini.translation.chat_to_content import (
    LIMITS,
    MADE,
    content_request,
    embeddings_request,
    own_stops,
)
from gateway.messages import Event
from gateway.prices import Tokens

MODELS = "/v1beta/models/"
# Other reasons pass in lower case; none of them counts as finished.
FINISHES = {"STOP": "stop", "MAX_TOKENS": "length", **dict.fromkeys(REFUSALS, "content_filter")}
KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class ChatOfContent:
    """`ChatOfContent` implements `TranslatedCall`, and its class implements `Translation`."""

    def __init__(
        self,
        call: Call,
        *,
        model: str | None,
        created: int,
        cache_control: bool = False,
        reasoning_content: bool = False,
    ) -> None:
        if call.operation != CHAT and not call.embeds:
            raise BadRequest(f"{call.operation} cannot be translated to Gemini's protocol, which the backend speaks")
        fit, sent = fitting(LIMITS), model or call.model
        self._call, self._model = call, sent
        path = MODELS + quote(sent, safe="/:")
        with bad_request_if_unreadable():
            if call.embeds:
                body = dump_json(embeddings_request(call.body, sent))
                self.outgoing = Outgoing(f"{path}:batchEmbedContents", body)
                return
            body = dump_json(content_request(call.body, sent, fit))
            self.outgoing = (
                Outgoing(f"{path}:streamGenerateContent", body, query="alt=sse")
                if call.stream
                else Outgoing(f"{path}:generateContent", body)
            )
            self._stops = ChatStops(own_stops(call.body))
        self._head = {"created": created, "model": call.model}
        self._original = fit.original
        self._chunks = _Chunks(self._head, fit.original)

    def whole(self, data: bytes) -> bytes:
        with reading():
            body = load_json(data)
            if body.get("error") is not None:
                raise MalformedResponse(f"the response is an error: {error_message(200, data)}")
            if self._call.embeds:
                return self._vectors(body)
            choices = [_choice(each, _made_id(body), self._original) for each in candidates_of(body)]
            choices = choices or [_blocked_choice(body)]
            ended = [self._stops.whole(choice) if i == 0 else choice for i, choice in enumerate(choices)]
            head = {"id": _id(body), "object": "chat.completion", **self._head}
            if body.get("modelVersion"):
                head["model"] = body["modelVersion"]
            return dump_json({**head, "choices": ended, "usage": _usage(body)})

    def _vectors(self, body: Mapping[str, Any]) -> bytes:
        vectors = [each["values"] for each in body["embeddings"]]
        return openai.embeddings(vectors, self._model, base64=self._call.body.get("encoding_format") == "base64")

    def events(self, event: Event) -> Sequence[Event]:
        with reading():
            if self._chunks.has_ended or event.data == answers.DONE:
                return []
            if event.data == END.data:
                held = self._stops.rest()
                rest = [self._chunks.chunk(0, {"content": held})] if held else []
                return [_encode(each) for each in (*rest, *self._chunks.end())] + [Event(DONE)]
            return [_encode(self._stops.chunk(each)) for each in self._chunks.of(load_json(event.data))]

    def error(self, status: int, data: bytes) -> bytes:
        with reading():
            return _error(status, data)


class _Chunks:
    """`_Chunks` builds the chunks of one stream. The finish reasons and the usage come last, since a server may repeat
    a reason in each of its chunks."""

    def __init__(self, head: Mapping[str, Any], original: Callable[[str], str]) -> None:
        self._original = original  # returns the client's name of a tool
        self._head: dict[str, Any] = {"id": "", "object": "chat.completion.chunk", **head}
        self._usage: dict[str, Any] = {}
        self._finishes: dict[int, str | None] = {}  # index of a candidate -> its reason
        self._calls: dict[int, int] = {}  # index of a candidate -> calls so far
        self._refusal: dict[str, Any] | None = None
        self.has_ended = False

    def of(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        if body.get("error") is not None:
            self.has_ended = True
            yield load_json(_error(200, dump_json(body)))
            return
        if not self._head["id"] and (body.get("responseId") or body.get("candidates")):
            self._head["id"] = _id(body)
        if body.get("modelVersion"):
            self._head["model"] = body["modelVersion"]
        self._usage |= as_dict(body.get("usageMetadata"))
        if as_dict(body.get("promptFeedback")).get("blockReason"):
            self._refusal = _blocked_choice(body)
        for candidate in candidates_of(body):
            index = index_of(candidate)
            if index not in self._finishes:
                self._finishes[index] = None
                yield self.chunk(index, {"role": "assistant", "content": ""})
            for part in parts_of(candidate):
                yield from self._part(index, part)
            if candidate.get("finishReason") not in UNFINISHED:
                self._finishes[index] = candidate["finishReason"]

    def _part(self, index: int, part: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        kind, text = _text_of(part)
        if text:
            yield self.chunk(index, {kind: text})
        if "functionCall" in part:
            place = self._calls[index] = self._calls.get(index, -1) + 1
            call = _tool_call(part, f"{_made_id(self._head)}_{index}_{place}", self._original)
            yield self.chunk(index, {"tool_calls": [{"index": place, **call}]})

    def end(self) -> Iterator[dict[str, Any]]:
        """Yield the last chunks. Raise `MalformedResponse` if there was no candidate."""
        if not self._finishes and self._refusal is None:
            raise MalformedResponse("the response is empty")
        self.has_ended = True
        if self._refusal is not None and not self._finishes:
            yield self.chunk(0, self._refusal["message"])
            self._finishes[0] = "SAFETY"
        for index, reason in self._finishes.items():
            if reason is not None:
                yield self.chunk(index, {}, _finish(reason, called=index in self._calls))
        yield {**self._head, "choices": [], "usage": _usage({"usageMetadata": self._usage})}

    def chunk(self, index: int, delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**self._head, "choices": [choice]}


def _encode(chunk: Mapping[str, Any]) -> Event:
    return Event(escape_line_ends(dump_json(chunk)))


def _choice(candidate: Mapping[str, Any], made_id: str, original: Callable[[str], str]) -> dict[str, Any]:
    index, texts, calls = index_of(candidate), {"content": "", "reasoning_content": ""}, list[Any]()
    for part in parts_of(candidate):
        kind, text = _text_of(part)
        texts[kind] += text
        if "functionCall" in part:
            calls.append(_tool_call(part, f"{made_id}_{index}_{len(calls)}", original))
    message: dict[str, Any] = {
        "role": "assistant",
        "content": texts["content"] if texts["content"] or not calls else None,
    }
    if texts["reasoning_content"]:
        message["reasoning_content"] = texts["reasoning_content"]
    if calls:
        message["tool_calls"] = calls
    finish = _finish(candidate.get("finishReason"), called=bool(calls))
    return {"index": index, "message": message, "logprobs": None, "finish_reason": finish}


def _text_of(part: Mapping[str, Any]) -> tuple[str, str]:
    """Return the field for the text of a part, and the text. Raise `MalformedResponse` for a part that is neither a
    text nor a call."""
    if isinstance(part.get("text"), str):
        return ("reasoning_content" if part.get("thought") else "content"), part["text"]
    foreign = [key for key, value in part.items() if value is not None and key not in ("thoughtSignature", "thought")]
    if "functionCall" not in part and foreign:
        kind = foreign[0]
        raise MalformedResponse(f"the response has a part of the type {kind[:40]!r}, which OpenAI's protocol lacks")
    return "content", ""


def _tool_call(part: Mapping[str, Any], made_id: str, original: Callable[[str], str]) -> dict[str, Any]:
    call = part["functionCall"]
    args = call.get("args") or {}
    arguments = args if isinstance(args, str) else dump_json(args).decode()
    function = {"name": original(call["name"]), "arguments": arguments}
    made = {"id": call.get("id") or made_id, "type": "function", "function": function}
    signature = part.get("thoughtSignature")
    return {**made, "extra_content": {"google": {"thought_signature": signature}}} if signature else made


def _blocked_choice(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the choice of a prompt that was blocked. Raise `MalformedResponse` for an answer without candidates that
    does not say so."""
    reason = as_dict(body.get("promptFeedback")).get("blockReason")
    if not reason:
        raise MalformedResponse("the response is empty")
    refusal = f"The prompt was blocked: {str(reason)[:80]}."
    message = {"role": "assistant", "content": None, "refusal": refusal}
    return {"index": 0, "message": message, "logprobs": None, "finish_reason": "content_filter"}


def _finish(reason: Any, *, called: bool) -> str | None:
    if reason in UNFINISHED:
        return None
    return "tool_calls" if called and reason == "STOP" else FINISHES.get(reason, str(reason).lower()[:80])


def _id(body: Mapping[str, Any]) -> str:
    return f"chatcmpl-{body.get('responseId') or sha256(dump_json(body)).hexdigest()[:24]}"


def _made_id(body: Mapping[str, Any]) -> str:
    """Return the start of the ids of calls without one. They differ from turn to turn."""
    given = body.get("responseId") or body.get("id") or dump_json(body).decode()
    return MADE + sha256(str(given).encode()).hexdigest()[:16]


def _usage(body: Mapping[str, Any]) -> dict[str, Any]:
    tokens = usage_in(body).tokens or Tokens()
    usage: dict[str, Any] = {
        "prompt_tokens": tokens.input,
        "completion_tokens": tokens.output,
        "total_tokens": tokens.input + tokens.output,
    }
    if tokens.cached:
        usage["prompt_tokens_details"] = {"cached_tokens": tokens.cached}
    if tokens.reasoning:
        usage["completion_tokens_details"] = {"reasoning_tokens": tokens.reasoning}
    return usage


def _error(status: int, data: bytes) -> bytes:
    kind = KINDS.get(status, "invalid_request_error" if 400 <= status < 500 else "server_error")
    code = "context_length_exceeded" if is_context_overflow(data) else None  # agents look for it, to compact
    return dump_json({"error": {"message": error_message(status, data), "type": kind, "param": None, "code": code}})
