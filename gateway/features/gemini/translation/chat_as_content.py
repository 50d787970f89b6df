"""Translate OpenAI's response to a content request into Gemini's: complete, or chunk by chunk. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gateway.calls import Call, Outgoing
from gateway.dialects.anthropic.translation.sealed_calls import reads_extra_content
from gateway.dialects.json_body import count_of, dump_json, load_json
from gateway.dialects.openai.answers import DONE, cached_tokens, reading, reasoning_tokens, usage_of
from gateway.dialects.openai.chat_deltas import REASONS, calls_of, texts_of, thought_of
from gateway.dialects.openai.dialect import CHAT
from gateway.dialects.openai.tool_call_deltas import ToolCallDeltas, arguments_text
from gateway.dialects.structured_answers import as_dict
from gateway.dialects.translation.limits import OPENAI, fitting
from gateway.dialects.translation.reading import bad_request_if_unreadable, error_message
from gateway.dialects.translation.stops import ChatStops
from gateway.errors import MalformedResponse
from gateway.features.gemini.answers import LENGTH, STOP, candidate_of, encode_chunk, usage_metadata
from gateway.features.gemini.errors import error_of_status
from gateway.features.gemini.requests import settings_of
from gateway.features.gemini.translation.content_to_chat import chat_request, embeddings_request, own_stops
from gateway.messages import Event

EMBEDDINGS_PATH = "/v1/embeddings"
FINISHES = {
    "stop": STOP,
    "tool_calls": STOP,
    "function_call": STOP,
    "length": LENGTH,
    "content_filter": "SAFETY",
}


class ContentAnswer:
    """`ContentAnswer` implements `TranslatedCall`, and its class implements `Translation`."""

    def __init__(
        self,
        call: Call,
        *,
        model: str | None,
        created: int,
        cache_control: bool = False,
        reasoning_content: bool = False,
    ) -> None:
        fit, sent = fitting(OPENAI), model or call.model
        self._embeds, self._is_batch = call.embeds, "requests" in call.body
        with bad_request_if_unreadable():
            if call.embeds:
                self.outgoing = Outgoing(EMBEDDINGS_PATH, dump_json(embeddings_request(call.body, sent)))
                return
            request = chat_request(
                call.body,
                sent,
                stream=call.stream,
                fit=fit,
                reasoning_content=reasoning_content,
                signatures=reads_extra_content(sent),
            )
            self.outgoing = Outgoing(CHAT, dump_json(request))
            self._stops = ChatStops(own_stops(call.body))
        thinks = as_dict(settings_of(call.body).get("thinkingConfig")).get("includeThoughts") is True
        self._parts = _Parts(fit.original, thinks=thinks)
        self._chunks = ContentChunks(call.model, self._parts)

    def whole(self, data: bytes) -> bytes:
        with reading():
            body = load_json(data)
            if body.get("error") is not None:
                raise MalformedResponse(f"the response is an error: {error_message(200, data)}")
            if self._embeds:
                return self._vectors(body)
            choices = [self._stops.whole(choice) if i == 0 else choice for i, choice in enumerate(body["choices"])]
            candidates = [self._candidate(i, choice) for i, choice in enumerate(choices)]
            usage = _usage(usage_of(body))
            head = {"modelVersion": body.get("model") or "", "responseId": str(body.get("id") or "")}
            return dump_json({"candidates": candidates, "usageMetadata": usage, **head})

    def _candidate(self, place: int, choice: Mapping[str, Any]) -> dict[str, Any]:
        message = choice["message"]
        finish = choice.get("finish_reason")
        parts = [*self._parts.texts(message), *self._parts.calls(calls_of(message), is_cut=finish == "length")]
        index = choice.get("index")
        reason = finish_of(finish, refused=bool(message.get("refusal")))
        return candidate_of(parts, finishReason=reason, index=place if index is None else index)

    def _vectors(self, body: Mapping[str, Any]) -> bytes:
        items = sorted(body["data"], key=lambda item: item.get("index") or 0)
        vectors = [{"values": item["embedding"]} for item in items]
        return dump_json({"embeddings": vectors} if self._is_batch else {"embedding": vectors[0]})

    def events(self, event: Event) -> Sequence[Event]:
        with reading():
            if self._chunks.has_ended:
                return []  # notes of the server after the end
            if event.data == DONE:
                rest = self._stops.rest()
                held = [*self._chunks.of({"choices": [{"delta": {"content": rest}}]})] if rest else []
                return [*held, *self._chunks.end()]
            return [*self._chunks.of(self._stops.chunk(load_json(event.data)))]

    def error(self, status: int, data: bytes) -> bytes:
        with reading():
            return error_of_status(status, error_message(status, data))


class _Parts:
    """`_Parts` writes the parts of a message. `original` returns the client's name of a function. Unless the client
    `thinks` along, it gets no thoughts."""

    def __init__(self, original: Callable[[str], str], *, thinks: bool) -> None:
        self._original, self._thinks = original, thinks

    def texts(self, message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the texts of a message or delta."""
        thought = thought_of(message)
        spoken = message.get("content") or message.get("refusal")
        for kind, text in (("thinking", thought), *texts_of(spoken)):
            if text and (kind == "text" or self._thinks):
                yield {"text": text} if kind == "text" else {"text": text, "thought": True}

    def calls(self, calls: Sequence[Mapping[str, Any]], *, is_cut: bool) -> Iterator[dict[str, Any]]:
        """Yield the calls of functions. With `is_cut` the tokens ran out, perhaps within the arguments of a call."""
        for call in calls:
            function = call.get("function") or {}
            name = function.get("name")
            if not isinstance(name, str) or not name:
                raise TypeError("a call without a name")
            try:
                arguments = load_json(arguments_text(function.get("arguments")) or "{}")
            except ValueError:
                if not is_cut:
                    raise
                arguments = {}
            if arguments is None or arguments == []:  # as some servers write no arguments
                arguments = {}
            if not isinstance(arguments, dict):
                raise TypeError("arguments that are not an object")
            identity = {"id": call["id"]} if call.get("id") else {}
            signature = as_dict(as_dict(call.get("extra_content")).get("google")).get("thought_signature")
            signed = {"thoughtSignature": signature} if signature else {}
            yield {"functionCall": {**identity, "name": self._original(name), "args": arguments}, **signed}


class _Choice:
    """`_Choice` keeps what a candidate says at the end of its stream: its calls, and why it ends."""

    def __init__(self) -> None:
        self._deltas = ToolCallDeltas()
        self.calls: list[dict[str, Any]] = []
        self.finish: Any = None
        self.refused = False

    def add_call(self, delta: Mapping[str, Any]) -> None:
        place = self._deltas.place(delta)
        if self._deltas.is_renamed:
            raise MalformedResponse("the response gives one tool call two names")
        if place == len(self.calls):
            self.calls.append({"function": {"name": "", "arguments": ""}})
        call, function = self.calls[place], delta.get("function") or {}
        for key in ("id", "extra_content"):
            if delta.get(key) and not call.get(key):
                call[key] = delta[key]
        said = call["function"]
        said["name"] = function.get("name") or said["name"]
        said["arguments"] += arguments_text(function.get("arguments"))


class ContentChunks:
    """`ContentChunks` builds the chunks of one stream. Texts pass at once. Calls of functions come whole in this
    protocol, so they wait for the end, with the finish reasons and the usage."""

    def __init__(self, model: str, parts: _Parts) -> None:
        self._parts = parts
        self._head = {"modelVersion": model, "responseId": ""}
        self._choices: dict[int, _Choice] = {}
        self._usage: Mapping[str, Any] = {}
        self.has_ended = False

    def of(self, chunk: Mapping[str, Any]) -> Iterator[Event]:
        if chunk.get("error") is not None:
            self.has_ended = True
            yield Event(error_of_status(502, error_message(200, dump_json(chunk))))
            return
        if chunk.get("id"):
            self._head["responseId"] = str(chunk["id"])
        if chunk.get("model"):
            self._head["modelVersion"] = chunk["model"]
        self._usage = usage_of(chunk) or self._usage
        for each in chunk.get("choices") or ():
            index = each.get("index") or 0
            choice, delta = self._choices.setdefault(index, _Choice()), each.get("delta") or {}
            choice.refused = choice.refused or bool(delta.get("refusal"))
            choice.finish = choice.finish if each.get("finish_reason") is None else each["finish_reason"]
            for call in calls_of(delta):
                choice.add_call(call)
            if parts := [*self._parts.texts(delta)]:
                yield encode_chunk({"candidates": [candidate_of(parts, index=index)], **self._head})

    def end(self) -> Iterator[Event]:
        """Yield the last chunk. Raise `MalformedResponse` if there was no choice."""
        if not self._choices:
            raise MalformedResponse("the response is empty")
        self.has_ended = True
        candidates = []
        for index in sorted(self._choices):
            choice = self._choices[index]
            parts = [*self._parts.calls(choice.calls, is_cut=choice.finish == "length")]
            finish = choice.finish or ("tool_calls" if choice.calls else None)
            reason = {} if finish is None else {"finishReason": finish_of(finish, refused=choice.refused)}
            candidates.append(candidate_of(parts, **reason, index=index))
        yield encode_chunk({"candidates": candidates, "usageMetadata": _usage(self._usage), **self._head})


def finish_of(reason: Any, *, refused: bool) -> str:
    """Return the finish reason of a candidate. Reasons that the protocol does not know are `OTHER`."""
    return "SAFETY" if refused else FINISHES.get(REASONS.get(reason, reason), "OTHER")


def _usage(usage: Mapping[str, Any]) -> dict[str, int]:
    return usage_metadata(
        count_of(usage.get("prompt_tokens")),
        count_of(usage.get("completion_tokens")),
        cached=cached_tokens(usage),
        thoughts=reasoning_tokens(usage),
    )
