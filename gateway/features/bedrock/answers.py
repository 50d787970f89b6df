"""Translate answers of Converse, whole or as a stream, into messages of Anthropic. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gateway.dialects.anthropic.answers import message_of
from gateway.dialects.anthropic.errors import kind_for_status
from gateway.dialects.json_body import dump_json, load_json
from gateway.errors import MalformedResponse
from gateway.features.bedrock.frames import EXCEPTION

# Other reasons pass unchanged; none of them counts as finished.
STOPS = {"guardrail_intervened": "refusal", "content_filtered": "refusal"}
# Statuses of errors within a stream. An error of the model is one that another upstream may not have.
STATUS_BY_KIND = {
    "validationException": 400, "accessDeniedException": 403, "resourceNotFoundException": 404,
    "modelTimeoutException": 408, "throttlingException": 429, "internalServerException": 500,
    "serviceUnavailableException": 503, "modelNotReadyException": 503,
}  # fmt: skip
UNKNOWN_STATUS = 502
STARTS = frozenset({"messageStart", "contentBlockStart", "contentBlockDelta", "messageStop"})
"""Events before which a message has begun. Some servers leave out the first one."""
KEPT = ("trace", "additionalModelResponseFields", "performanceConfig", "serviceTier")
"""Fields of an answer that no other protocol has. They stay, under their names."""

Original = Callable[[str], str]
"""Returns the client's name of a tool for that of the backend."""


def message(body: Mapping[str, Any], answer_id: str, model: str, original: Original) -> dict[str, Any]:
    """Return the message of a whole answer. A malformed one raises `KeyError` and the like, or `MalformedResponse`."""
    content = body["output"]["message"].get("content") or ()
    blocks = [each for block in content if (each := _block(block, original)) is not None]
    kept = {key: body[key] for key in KEPT if body.get(key) is not None}
    ended = {"stop_reason": _stop(body["stopReason"]), "usage": _usage(body.get("usage") or {})}
    return message_of(answer_id, model, **kept, content=blocks, **ended)


def _block(block: Mapping[str, Any], original: Original) -> dict[str, Any] | None:
    """Return a content block, or None for one of a tool that Bedrock has run."""
    if "text" in block:
        return {"type": "text", "text": block["text"] or ""}
    if "toolUse" in block:
        call = block["toolUse"]
        if call.get("type") == "server_tool_use":
            return None
        identity = {"id": call["toolUseId"], "name": original(call["name"])}
        return {"type": "tool_use", **identity, "input": _input(call.get("input"))}
    if "reasoningContent" in block:
        reasoning = block["reasoningContent"]
        if "reasoningText" not in reasoning:
            return {"type": "redacted_thinking", "data": reasoning["redactedContent"]}
        text = reasoning["reasoningText"]
        return {"type": "thinking", "thinking": text["text"], "signature": text.get("signature") or ""}
    if "citationsContent" in block:
        texts = [each.get("text") or "" for each in block["citationsContent"].get("content") or ()]
        return {"type": "text", "text": "".join(texts)}
    if "toolResult" in block:
        return None
    raise _foreign(block)


def _input(given: Any) -> Any:
    """Return the arguments of a call. Some models leave them out, or write them as a text, as streams do."""
    if isinstance(given, str):
        try:
            read = load_json(given)
        except ValueError:
            return given
        return read if isinstance(read, dict) else given
    return {} if given is None else given


def _foreign(block: Mapping[str, Any]) -> MalformedResponse:
    kind = next(iter(block), "")[:40]
    return MalformedResponse(f"the response has a block of the type {kind!r}, which other protocols lack")


def _stop(reason: str) -> str:
    return STOPS.get(reason, reason)


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counts. Tokens of the prompt cache are no part of Bedrock's input tokens, nor of Anthropic's."""
    counts = {"input_tokens": usage.get("inputTokens") or 0, "output_tokens": usage.get("outputTokens") or 0}
    cached = {"cache_read_input_tokens": "cacheReadInputTokens", "cache_creation_input_tokens": "cacheWriteInputTokens"}
    return counts | {ours: usage[theirs] for ours, theirs in cached.items() if usage.get(theirs) is not None}


class MessageEvents:
    """`MessageEvents` builds the events of one stream. It keeps the state that later events need.

    Bedrock announces no text: its first piece begins the block.
    """

    def __init__(self, answer_id: str, model: str, original: Original) -> None:
        self._head = message_of(answer_id, model, usage={"input_tokens": 0, "output_tokens": 0})
        self._original = original
        self._open: dict[int, tuple[int, str]] = {}  # by Bedrock's index: ours, and the type of the block
        self._count = 0  # of blocks
        self._has_begun = False
        self._dropped: set[int] = set()  # indexes of tools that Bedrock runs
        self._ended: dict[str, Any] = {}

    def of(self, event: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        kind, index = event["type"], event.get("contentBlockIndex") or 0  # some servers leave out a zero
        if kind in STARTS and not self._has_begun:
            self._has_begun = True
            yield {"type": "message_start", "message": self._head}
        if kind == "contentBlockStart":
            yield from self._start(index, event["start"])
        elif kind == "contentBlockDelta":
            yield from self._delta(index, event["delta"])
        elif kind == "contentBlockStop":
            yield from self._stop_block(index)
        elif kind == "messageStop":
            for index in list(self._open):
                yield from self._stop_block(index)
            self._ended = {"stop_reason": _stop(event["stopReason"]), "stop_sequence": None}
            self._ended |= {key: event[key] for key in KEPT if event.get(key) is not None}
        elif kind == "metadata":
            self._ended |= {key: event[key] for key in KEPT if event.get(key) is not None}
            yield {"type": "message_delta", "delta": self._ended, "usage": _usage(event.get("usage") or {})}
            yield {"type": "message_stop"}
        elif kind == EXCEPTION:
            error = {"type": kind_for_status(status_of(event["kind"])), "message": event["message"]}
            yield {"type": "error", "error": error}

    def _start(self, index: int, start: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        call = start.get("toolUse")
        if call is not None and call.get("type") != "server_tool_use":
            identity = {"id": call["toolUseId"], "name": self._original(call["name"])}
            yield from self._begin(index, {"type": "tool_use", **identity, "input": {}})
        elif call is not None or "toolResult" in start:
            self._dropped.add(index)
        elif start:
            raise _foreign(start)

    def _begin(self, index: int, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from self._stop_block(index)
        self._open[index] = self._count, block["type"]
        self._count += 1
        yield {"type": "content_block_start", "index": self._open[index][0], "content_block": block}

    def _stop_block(self, index: int) -> Iterator[dict[str, Any]]:
        if index in self._open:
            yield {"type": "content_block_stop", "index": self._open.pop(index)[0]}

    def _delta(self, index: int, delta: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        if index in self._dropped or "citation" in delta:
            return
        if "text" in delta:
            yield from self._piece(index, {"type": "text", "text": ""}, "text_delta", "text", delta["text"])
        elif "toolUse" in delta:
            if index not in self._open:
                raise MalformedResponse("the response has arguments of a call that has not begun")
            given = delta["toolUse"].get("input") or ""
            piece = given if isinstance(given, str) else dump_json(given).decode()
            delta = {"type": "input_json_delta", "partial_json": piece}
            yield {"type": "content_block_delta", "index": self._open[index][0], "delta": delta}
        elif "reasoningContent" in delta:
            yield from self._reasoning(index, delta["reasoningContent"])
        else:
            raise _foreign(delta)

    def _reasoning(self, index: int, delta: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        if "redactedContent" in delta:
            yield from self._begin(index, {"type": "redacted_thinking", "data": delta["redactedContent"]})
            return
        empty = {"type": "thinking", "thinking": "", "signature": ""}
        if "signature" in delta:
            yield from self._piece(index, empty, "signature_delta", "signature", delta["signature"])
        else:
            yield from self._piece(index, empty, "thinking_delta", "thinking", delta["text"])

    def _piece(
        self, index: int, empty: dict[str, Any], kind: str, field: str, text: str | None
    ) -> Iterator[dict[str, Any]]:
        """Yield a piece of a block, which begins with it if none of its type is open there."""
        if self._open.get(index, (0, ""))[1] != empty["type"]:
            yield from self._begin(index, empty)
        yield {"type": "content_block_delta", "index": self._open[index][0], "delta": {"type": kind, field: text or ""}}


def status_of(kind: str) -> int:
    """Return the status of an error that a stream reports by its kind."""
    return STATUS_BY_KIND.get(kind[:1].lower() + kind[1:], UNKNOWN_STATUS)


def is_whole(kinds: Sequence[str | None]) -> bool:
    """Return whether a stream whose last events have these names was not cut."""
    return "messageStop" in kinds or "metadata" in kinds or EXCEPTION in kinds
