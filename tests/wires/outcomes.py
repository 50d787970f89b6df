"""What a client ends up with, in neutral words, from the bytes that it gets. A strict reader for each dialect.

An outcome has these keys, of which empty ones are left out: `text`, `reasoning`, `refusal`, `tools` (each with `id`,
`name`, `arguments`), `finish` (`stop`, `length`, `tools`, `filter`, or the word of the server), `usage` (`input`,
`output`, `cached`, `reasoning`), `error` (`status`, `message`), `others` (the further choices), `vectors`, `logprobs`.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Outcome = dict[str, Any]
DONE = "[DONE]"
FINISHES = {
    "tool_calls": "tools", "function_call": "tools", "content_filter": "filter",
    "end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tools", "refusal": "filter",
}  # fmt: skip


class NotRight(Exception):
    """The bytes break the protocol. The message says where."""


@dataclass(frozen=True, slots=True)
class Received:
    """What a client received. `cut`: the connection ended within the body."""

    status: int
    headers: Mapping[str, str]  # lower-case names
    body: bytes
    cut: bool = False

    @property
    def streamed(self) -> bool:
        return self.headers.get("content-type", "").lower().startswith("text/event-stream")


@dataclass
class Stream:
    """A stream of events as the standard reads it."""

    events: list[tuple[str, str]] = field(default_factory=list)  # name, data
    comments: list[str] = field(default_factory=list)


def parse_stream(body: bytes) -> Stream:
    """Read a stream as the WHATWG standard says. Raise `NotRight` where the end of the stream would lose something."""
    text = body.decode().removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    stream, data, name = Stream(), list[str](), ""
    lines = text.split("\n")
    if lines.pop():
        raise NotRight(f"the stream ends within a line: {text[-40:]!r}")
    for line in lines:
        key, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                stream.events.append((name, "\n".join(data)))
            data, name = [], ""
        elif not key:
            stream.comments.append(value)
        elif key == "data":
            data.append(value)
        elif key == "event":
            name = value
    if data:
        raise NotRight(f"the stream ends within an event: {data[0][:40]!r}")
    return stream


def outcome_of(dialect: str, received: Received) -> Outcome:
    """Return what the client ends up with. Raise `NotRight`."""
    if received.cut:
        raise NotRight("the connection ended within the body")
    if received.status != 200:
        return {"error": {"status": received.status, "message": _refusal(received.body)}}
    if received.streamed:
        return STREAMS[dialect](parse_stream(received.body).events)
    body = _json(received.body)
    if isinstance(body, dict) and body.get("error") and "output" not in body:
        return {"error": {"status": 200, "message": _message(body)}}
    return WHOLES[dialect](body)


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        raise NotRight(f"the body is not JSON: {body[:60]!r}") from None


def _refusal(body: bytes) -> str:
    """Return the message of an answer that is no success, which may be no JSON."""
    try:
        return _message(json.loads(body))
    except ValueError:
        return body.decode()


def _message(body: Any) -> str:
    body = body[0] if isinstance(body, list) and body else body
    if not isinstance(body, dict):
        raise NotRight(f"an error without a message: {str(body)[:60]}")
    error = body.get("error", body)
    return str(error.get("message", error.get("detail", error)) if isinstance(error, dict) else error)


def tidy(outcome: Mapping[str, Any]) -> Outcome:
    """Return an outcome without its empty parts."""
    kept = {key: value for key, value in outcome.items() if value not in (None, "", [], {})}
    if "usage" in kept:
        usage = {key: value for key, value in kept.pop("usage").items() if value}
        kept |= {"usage": usage} if usage else {}
    if "tools" in kept:
        kept["tools"] = [{**tool, "arguments": _arguments(tool["arguments"])} for tool in kept["tools"]]
    if "others" in kept:
        kept["others"] = [tidy(other) for other in kept["others"]]
    return kept


def _arguments(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given or "{}")
    except ValueError:
        return given


def _finish(reason: str | None) -> str | None:
    return None if reason is None else FINISHES.get(reason, reason)


# Chat completions and completions.


def chat_outcome(body: Mapping[str, Any]) -> Outcome:
    first, *others = [_choice(choice) for choice in sorted(body["choices"], key=lambda each: each.get("index") or 0)]
    usage = body.get("usage") or body["choices"][0].get("usage")
    return tidy({**first, "others": others, "usage": _chat_usage(usage)})


def _choice(choice: Mapping[str, Any]) -> Outcome:
    logprobs = [each["token"] for each in (choice.get("logprobs") or {}).get("content") or ()]
    ending = {"finish": _finish(choice.get("finish_reason")), "logprobs": logprobs}
    if "message" not in choice:
        return {"text": choice["text"], **ending}
    message = choice["message"]
    text, reasoning = _content(message.get("content"))
    calls = message.get("tool_calls") or []
    calls = [calls] if isinstance(calls, dict) else list(calls)  # an object, as older versions of TGI send it
    if message.get("function_call"):
        calls.append({"function": message["function_call"]})
    tools = [
        {
            "id": call.get("id"),
            "name": call["function"].get("name"),
            "arguments": call["function"].get("arguments") or "",
        }
        for call in calls
    ]
    return {
        "text": text,
        "reasoning": reasoning + (message.get("reasoning_content") or message.get("reasoning") or ""),
        "refusal": message.get("refusal"),
        "tools": tools,
        **ending,
    }


def _content(content: Any) -> tuple[str, str]:
    """Return the text and the reasoning of content, which may be a list of parts."""
    if not isinstance(content, list):
        return content or "", ""
    text = "".join(part["text"] for part in content if part["type"] == "text")
    thoughts = [part["thinking"] for part in content if part["type"] == "thinking"]
    return text, "".join(each if isinstance(each, str) else _content(each)[0] for each in thoughts)


def _chat_usage(usage: Mapping[str, Any] | None) -> dict[str, Any]:
    said = usage or {}
    return {
        "input": said.get("prompt_tokens"),
        "output": said.get("completion_tokens"),
        "cached": (said.get("prompt_tokens_details") or {}).get("cached_tokens") or said.get("cached_tokens"),
        "reasoning": (said.get("completion_tokens_details") or {}).get("reasoning_tokens"),
    }


def chat_stream_outcome(events: Sequence[tuple[str, str]]) -> Outcome:
    return chunks_outcome([data for _, data in events])


def chunks_outcome(events: Sequence[str]) -> Outcome:
    """Join chunks as a careful client does: a new id of a tool call begins a call, whatever its index."""
    choices: dict[int, dict[str, Any]] = {}
    usage: Any = None
    error: Outcome | None = None
    for data in events:
        if data == DONE or not data:
            continue
        chunk = json.loads(data)
        if chunk.get("error") is not None:
            error = {"message": _message(chunk)}
            continue
        usage = chunk.get("usage") or usage
        for choice in chunk.get("choices") or ():
            usage = choice.get("usage") or usage  # as Kimi sends it
            _add(choices.setdefault(choice.get("index") or 0, {}), choice)
    found = [_choice(choices[index]) for index in sorted(choices)]
    first, others = (found[0], found[1:]) if found else ({}, [])
    return tidy({**first, "others": others, "usage": _chat_usage(usage), "error": error})


def _add(merged: dict[str, Any], choice: Mapping[str, Any]) -> None:
    if choice.get("finish_reason") is not None:
        merged["finish_reason"] = choice["finish_reason"]
    if choice.get("logprobs"):
        merged.setdefault("logprobs", {"content": []})["content"] += choice["logprobs"].get("content") or []
    if "delta" not in choice:
        merged["text"] = merged.get("text", "") + (choice.get("text") or "")
        return
    message = merged.setdefault("message", {})
    for key, value in (choice["delta"] or {}).items():
        if key == "content":
            text, thought = _content(value)
            message["content"] = message.get("content", "") + text
            message["reasoning"] = message.get("reasoning", "") + thought
        elif key == "reasoning" or (key == "reasoning_content" and "reasoning" not in choice["delta"]):
            message["reasoning"] = message.get("reasoning", "") + (value or "")
        elif key == "refusal":
            message[key] = (message.get(key) or "") + (value or "")
        elif key == "tool_calls":
            for call in [value] if isinstance(value, dict) else value or ():
                _add_call(message.setdefault("tool_calls", []), call)
        elif key == "function_call" and value:
            _add_function(message.setdefault(key, {}), value)


def _add_call(calls: list[dict[str, Any]], delta: Mapping[str, Any]) -> None:
    index, given = delta.get("index"), delta.get("id")
    same = [call for call in calls if index is None or call["index"] in (index, None)]
    call = same[-1] if same else None
    if call is None or (given and call["id"] and given != call["id"]):
        call = {"index": index, "id": given, "function": {}}
        calls.append(call)
    call["id"] = call["id"] or given
    _add_function(call["function"], delta.get("function") or {})


def _add_function(function: dict[str, Any], delta: Mapping[str, Any]) -> None:
    function["name"] = delta.get("name") or function.get("name")
    arguments = delta.get("arguments")
    written = arguments if isinstance(arguments, str) or arguments is None else json.dumps(arguments)
    function["arguments"] = function.get("arguments", "") + (written or "")


# Anthropic messages.


def message_outcome(body: Mapping[str, Any]) -> Outcome:
    blocks = body["content"]
    usage = body.get("usage") or {}
    read = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return tidy(
        {
            "text": "".join(block["text"] for block in blocks if block["type"] == "text"),
            "reasoning": "".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
            "tools": [
                {"id": block["id"], "name": block["name"], "arguments": block["input"]}
                for block in blocks
                if block["type"] == "tool_use"
            ],
            "finish": _finish(body["stop_reason"]),
            "usage": {
                "input": sum(usage.get(key) or 0 for key in read),
                "output": usage.get("output_tokens"),
                "cached": usage.get("cache_read_input_tokens"),
                "reasoning": (usage.get("output_tokens_details") or {}).get("thinking_tokens"),
            },
        }
    )


def message_stream_outcome(events: Sequence[tuple[str, str]]) -> Outcome:
    """Join the events. Raise `NotRight` unless they come in the protocol's order and with their names."""
    reader = MessageReader()
    for name, data in events:
        if data == DONE:
            continue
        event = json.loads(data)
        if name != event["type"]:
            raise NotRight(f"an event {event['type']} with the name {name!r}")
        read = reader.reads.get(event["type"])
        if read is not None:
            read(event)
    return reader.outcome()


class MessageReader:
    """`MessageReader` joins the events of one stream, with one open block at a time."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._open: int | None = None  # index of the open block
        self._inputs: dict[int, str] = {}
        self._error: Outcome | None = None
        self._ended = False
        self.reads: Mapping[str, Callable[[dict[str, Any]], None]] = {
            "message_start": self._start,
            "content_block_start": self._start_block,
            "content_block_delta": self._add,
            "content_block_stop": self._stop_block,
            "message_delta": self._finish,
            "message_stop": self._stop,
            "error": self._fail,
        }

    def outcome(self) -> Outcome:
        """Return the outcome. Raise `NotRight` if the stream has no end."""
        if self._error is None and not self._ended:
            raise NotRight("the stream ends without message_stop")
        for index, written in self._inputs.items():
            self._message["content"][index]["input"] = _arguments(written)
        found = message_outcome({"stop_reason": None, "content": [], **self._message})
        return found if self._error is None else {**found, "error": self._error}

    def _start(self, event: dict[str, Any]) -> None:
        self._message = {**event["message"], "content": []}

    def _start_block(self, event: dict[str, Any]) -> None:
        blocks = self._message["content"]
        if self._open is not None or event["index"] != len(blocks):
            raise NotRight(f"block {event['index']} begins while block {self._open} is open")
        self._open = event["index"]
        blocks.append(dict(event["content_block"]))

    def _add(self, event: dict[str, Any]) -> None:
        index, delta = event["index"], event["delta"]
        if index != self._open:
            raise NotRight(f"a delta of block {index}, which is not open")
        block, kind = self._message["content"][-1], delta["type"]
        if kind == "input_json_delta":
            self._inputs[index] = self._inputs.get(index, "") + delta["partial_json"]
        elif kind in ("text_delta", "thinking_delta"):
            key = kind.removesuffix("_delta")
            block[key] = (block.get(key) or "") + delta[key]

    def _stop_block(self, event: dict[str, Any]) -> None:
        if event["index"] != self._open:
            raise NotRight(f"block {event['index']} ends, which is not open")
        self._open = None

    def _finish(self, event: dict[str, Any]) -> None:
        if self._open is not None:
            raise NotRight(f"the message ends while block {self._open} is open")
        self._message |= event["delta"]
        given = {key: value for key, value in (event.get("usage") or {}).items() if value is not None}
        self._message["usage"] = {**(self._message.get("usage") or {}), **given}

    def _stop(self, _: dict[str, Any]) -> None:
        self._ended = True

    def _fail(self, event: dict[str, Any]) -> None:
        self._error = {"message": _message(event)}


# Responses.


def response_outcome(body: Mapping[str, Any]) -> Outcome:
    parts = [part for item in body["output"] if item["type"] == "message" for part in item["content"]]
    thoughts = [item for item in body["output"] if item["type"] == "reasoning"]
    told = [part for item in thoughts for part in (item.get("summary") or []) + (item.get("content") or [])]
    calls = [item for item in body["output"] if item["type"] in ("function_call", "custom_tool_call")]
    usage, error = body.get("usage") or {}, body.get("error")
    return tidy(
        {
            "text": "".join(part["text"] for part in parts if part["type"] == "output_text"),
            "refusal": "".join(part["refusal"] for part in parts if part["type"] == "refusal"),
            "reasoning": "".join(part["text"] for part in told),
            "tools": [
                {"id": call["call_id"], "name": call["name"], "arguments": call.get("arguments", call.get("input"))}
                for call in calls
            ],
            "finish": _response_finish(body, bool(calls)),
            "usage": {
                "input": usage.get("input_tokens"),
                "output": usage.get("output_tokens"),
                "cached": (usage.get("input_tokens_details") or {}).get("cached_tokens"),
                "reasoning": (usage.get("output_tokens_details") or {}).get("reasoning_tokens"),
            },
            "error": None if error is None else {"message": _message({"error": error})},
        }
    )


def _response_finish(body: Mapping[str, Any], called: bool) -> str | None:
    status = body.get("status")
    if status == "incomplete":
        reason = (body.get("incomplete_details") or {}).get("reason")
        return {"max_output_tokens": "length", "content_filter": "filter"}.get(str(reason), str(reason))
    if status == "completed":
        return "tools" if called else "stop"
    return None if status is None or body.get("error") else str(status)


def response_stream_outcome(events: Sequence[tuple[str, str]]) -> Outcome:
    """Return the outcome of the last event, which has it all. Raise `NotRight` if the deltas say something else."""
    texts: dict[str, str] = {}
    last: dict[str, Any] | None = None
    items: list[Any] = []
    for data in (data for _, data in events):
        event = {"type": ""} if data in (DONE, "") else json.loads(data)
        kind = event["type"]
        if kind == "response.output_text.delta":
            texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
        elif kind == "response.output_item.done":
            items.append(event["item"])
        elif kind in ("response.completed", "response.incomplete", "response.failed", "response.done"):
            last = event["response"]
        elif kind == "error":
            return tidy({"text": "".join(texts.values()), "error": {"message": _message(event)}})
    if last is None:
        raise NotRight("the stream ends without its last event")
    found = response_outcome({**last, "output": last.get("output") or items})
    told, text = "".join(texts.values()), found.get("text", "")
    if texts and told != text:
        raise NotRight(f"the deltas say {told[:60]!r}, the last event {text[:60]!r}")
    return found


def embeddings_outcome(body: Mapping[str, Any]) -> Outcome:
    vectors: dict[int, list[float]] = {}
    for place, item in enumerate(body["data"]):
        given, index = item["embedding"], item.get("index", place)
        if isinstance(given, str):
            raw = base64.b64decode(given)
            given = list(struct.unpack(f"<{len(raw) // 4}f", raw))
        if index in vectors:
            raise NotRight(f"two vectors of index {index}")
        vectors[index] = given
    ordered = [vectors[index] for index in sorted(vectors)]
    return tidy({"vectors": ordered, "usage": _chat_usage(body.get("usage"))})


WHOLES = {
    "chat": chat_outcome,
    "completions": chat_outcome,
    "messages": message_outcome,
    "responses": response_outcome,
    "embeddings": embeddings_outcome,
}
STREAMS = {
    "chat": chat_stream_outcome,
    "completions": chat_stream_outcome,
    "messages": message_stream_outcome,
    "responses": response_stream_outcome,
}


def differences(right: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """Yield what differs from the right outcome, each in a few words. Parts that are not named must be absent."""
    for key in sorted({*right, *found} - {"comments"}):
        want, have = right.get(key), found.get(key)
        if key == "error" and want and have:
            yield from _error_differences(want, have)
        elif key == "tools" and want and have and len(want) == len(have):
            for wanted, had in zip(want, have, strict=True):
                named = {part: had.get(part) for part in wanted}
                if wanted != named:
                    yield f"tool {named}, expected {wanted}"
        elif key == "others" and want and have and len(want) == len(have):
            for wanted, had in zip(want, have, strict=True):
                yield from differences(wanted, had)
        elif want in (None, "", [], {}) and have in (None, "", [], {}):
            continue
        elif want != have:
            yield f"{key} {_short(have)}, expected {_short(want)}"


def _error_differences(want: Mapping[str, Any], have: Mapping[str, Any]) -> Iterator[str]:
    if "status" in want and "status" in have and want["status"] != have["status"]:
        yield f"status {have['status']}, expected {want['status']}"
    if "message" in want and want["message"] not in have["message"]:
        yield f"error {_short(have['message'])}, expected {_short(want['message'])}"


def _short(value: Any) -> str:
    said = repr(value)
    return said if len(said) <= 100 else f"{said[:60]}...{said[-30:]}"
