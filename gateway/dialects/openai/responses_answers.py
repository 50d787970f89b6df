"""OpenAI's Responses API: inspect responses, join and split their events, and renew their ids. Pure.

`payload` is the data of a stream's events in order, or one element: a complete body. The last event of a stream carries
the whole response, so deltas need not be joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from gateway.calls import Inspection, Token
from gateway.dialects.conversation import is_blank, split_pieces
from gateway.dialects.json_body import count_of, dump_json, escape_line_ends, load_json
from gateway.dialects.openai.answers import DONE, reading, token_details, usage_of
from gateway.dialects.sse import encode_event
from gateway.errors import MalformedResponse
from gateway.messages import Event
from gateway.outcomes import Admission

# Split a complete response into the typed events of a stream. Pure.
#
# https://developers.openai.com/api/reference/resources/responses/streaming-events
ENDS = {"completed": "response.completed", "incomplete": "response.incomplete", "failed": "response.failed"}

FINAL_FIELDS = ("usage", "completed_at", "error", "incomplete_details")  # fields that only the last event has

# Item type -> (the field that comes in pieces, the prefix of its events).
DELTA_FIELDS = {
    "function_call": ("arguments", "response.function_call_arguments"),
    "custom_tool_call": ("input", "response.custom_tool_call_input"),
    "mcp_call": ("arguments", "response.mcp_call_arguments"),
    "code_interpreter_call": ("code", "response.code_interpreter_call_code"),
}

# Item type -> the phases of a server-side tool call before and after that field.
PHASES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "web_search_call": (("in_progress", "searching"), ("completed",)),
    "file_search_call": (("in_progress", "searching"), ("completed",)),
    "image_generation_call": (("in_progress", "generating"), ("completed",)),
    "code_interpreter_call": (("in_progress",), ("interpreting", "completed")),
    "mcp_call": (("in_progress",), ("completed",)),
    "mcp_list_tools": (("in_progress",), ("completed",)),
}

# Part type -> (the field that comes in pieces, the prefix of its events).
PARTS = {
    "output_text": ("text", "response.output_text"),
    "refusal": ("refusal", "response.refusal"),
    "reasoning_text": ("text", "response.reasoning_text"),
}


def events_of(whole: bytes) -> tuple[Event, ...]:
    """Split a body into events; the last one carries all of it. Raise `MalformedResponse`."""
    with reading():
        body = load_json(whole)
        if isinstance(body.get("error"), dict) and "output" not in body:
            raise MalformedResponse(f"the response is an error: {str(body['error'].get('message'))[:300]}")
        numbered = enumerate(_events(body))
        return tuple(
            encode_event({"type": event.pop("type"), "sequence_number": at, **event}) for at, event in numbered
        )


def _events(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    end = ENDS.get(body.get("status", "completed"))
    if end is None:
        raise MalformedResponse(f"the response is not finished: its status is {str(body['status'])[:40]!r}")
    begun = {**body, "output": [], **{key: None for key in FINAL_FIELDS if key in body}}
    if "status" in body:
        begun["status"] = "in_progress"
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(body["output"]):
        yield from _item(index, item)
    yield {"type": end, "response": body}


def _item(index: int, item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    kind, placed = item["type"], {"item_id": item.get("id"), "output_index": index}
    opened, inner = dict(item), list[dict[str, Any]]()
    if "status" in item:
        opened["status"] = "in_progress"
    for key, event in (("summary", _summary), ("content", _content)):
        if kind in ("message", "reasoning") and isinstance(item.get(key), list):
            opened[key] = []
            inner += [each for place, part in enumerate(item[key]) for each in event(place, part)]
    before, after = PHASES.get(kind, ((), ()))
    if kind == "mcp_call" and item.get("error") is not None:
        after = ("failed",)
    inner += [{"type": f"response.{kind}.{phase}"} for phase in before]
    if kind in DELTA_FIELDS:
        key, name = DELTA_FIELDS[kind]
        if isinstance(item.get(key), str):
            opened[key] = ""
            inner += _pieces(name, key, item[key])
    inner += [{"type": f"response.{kind}.{phase}"} for phase in after]
    yield {"type": "response.output_item.added", "output_index": index, "item": opened}
    yield from ({**event, **placed} for event in inner)
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _pieces(name: str, key: str, text: str) -> list[dict[str, Any]]:
    deltas = [{"type": f"{name}.delta", "delta": piece} for piece in split_pieces(text)]
    return [*deltas, {"type": f"{name}.done", key: text}]


def _summary(place: int, part: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    name, placed = "response.reasoning_summary", {"summary_index": place}
    whole = isinstance(part.get("text"), str)
    yield {"type": f"{name}_part.added", **placed, "part": {**part, "text": ""} if whole else part}
    if whole:
        yield from ({**event, **placed} for event in _pieces(f"{name}_text", "text", part["text"]))
    yield {"type": f"{name}_part.done", **placed, "part": part}


def _content(place: int, part: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of a part of a message or of reasoning. A part of unknown type comes complete."""
    placed, opened, inner = {"content_index": place}, dict(part), list[dict[str, Any]]()
    key, name = PARTS.get(part["type"], ("", ""))
    if isinstance(part.get(key), str):
        opened[key] = ""
        *deltas, done = _pieces(name, key, part[key])
        if part["type"] == "output_text":
            deltas, done = _with_logprobs(part, deltas, done)
            opened |= {each: [] for each in ("annotations", "logprobs") if isinstance(part.get(each), list)}
            deltas += [
                {"type": f"{name}.annotation.added", "annotation_index": i, "annotation": annotation}
                for i, annotation in enumerate(part.get("annotations") or ())
            ]
        inner = [*deltas, done]
    yield {"type": "response.content_part.added", **placed, "part": opened}
    yield from ({**event, **placed} for event in inner)
    yield {"type": "response.content_part.done", **placed, "part": part}


def _with_logprobs(
    part: Mapping[str, Any], deltas: list[dict[str, Any]], done: dict[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Split by token if the tokens are known and form the text. Clients rely on a `logprobs` list in any case."""
    logprobs = part.get("logprobs")
    tokens = [each.get("token") for each in logprobs] if isinstance(logprobs, list) else []
    if tokens and all(isinstance(token, str) for token in tokens) and "".join(tokens) == part["text"]:
        kind = f"{PARTS['output_text'][1]}.delta"
        each = [{"type": kind, "delta": t, "logprobs": [lp]} for t, lp in zip(tokens, logprobs or (), strict=True)]
        return each, {**done, "logprobs": logprobs}
    return [{**delta, "logprobs": []} for delta in deltas], {**done, "logprobs": logprobs or []}


# Build the typed events of a response from plain text, for backends that return only text. Pure.

# The fields that a response repeats from its request, with their defaults.
REQUEST_FIELDS: dict[str, Any] = {
    "instructions": None, "max_output_tokens": None, "metadata": {}, "parallel_tool_calls": True, "temperature": None,
    "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [], "top_p": None, "user": None,
}  # fmt: skip


class ResponsesTextAnswer:
    """`ResponsesTextAnswer` builds a response with one message of one text.

    The response says that it is not stored. The object collects the text, so each response needs its own.
    """

    def __init__(self, body: Mapping[str, Any], answer_id: str, created: int, model: str) -> None:
        given = {key: default if body.get(key) is None else body[key] for key, default in REQUEST_FIELDS.items()}
        head = {"id": answer_id, "object": "response", "created_at": created, "model": model}
        self._response = {**head, **given, "previous_response_id": None, "background": False, "store": False}
        self._created = created
        self._item_id = "msg_" + answer_id.removeprefix("resp_")
        self._text: list[str] = []
        self._at = 0

    def start(self) -> Sequence[Event]:
        begun = self._response_with("in_progress", [], None)
        return [
            self._event("response.created", response=begun),
            self._event("response.in_progress", response=begun),
            self._event("response.output_item.added", output_index=0, item=self._item("in_progress", [])),
            self._event("response.content_part.added", **self._item_location(), part=_part("")),
        ]

    def delta(self, text: str, tokens: Sequence[Token] = ()) -> Event:
        self._text.append(text)
        return self._event("response.output_text.delta", **self._item_location(), delta=text, logprobs=[])

    def finish(self, reason: str, input_tokens: int, output_tokens: int) -> Sequence[Event]:
        text, status = "".join(self._text), "incomplete" if reason == "length" else "completed"
        item = self._item(status, [_part(text)])
        usage = {
            "input_tokens": input_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": input_tokens + output_tokens,
        }
        return [
            self._event("response.output_text.done", **self._item_location(), text=text, logprobs=[]),
            self._event("response.content_part.done", **self._item_location(), part=_part(text)),
            self._event("response.output_item.done", output_index=0, item=item),
            self._event(f"response.{status}", response=self._response_with(status, [item], usage)),
        ]

    def _event(self, kind: str, **fields: Any) -> Event:
        event = encode_event({"type": kind, "sequence_number": self._at, **fields})
        self._at += 1
        return event

    def _item_location(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    def _item(self, status: str, content: list[Any]) -> dict[str, Any]:
        return {"id": self._item_id, "type": "message", "status": status, "role": "assistant", "content": content}

    def _response_with(self, status: str, output: list[Any], usage: dict[str, Any] | None) -> dict[str, Any]:
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        ended = {"completed_at": self._created} if status == "completed" else {}
        state = {"status": status, "error": None, "incomplete_details": details, **ended}
        return {**self._response, **state, "output": output, "usage": usage}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


PREFIX = "resp_"

FINAL_EVENTS = frozenset(
    {"response.completed", "response.incomplete", "response.failed", "response.done"}  # the last one of some servers
)

# Fields about the user and for bookkeeping. They do not decide the response, but the response repeats them.
ECHOED = ("user", "metadata", "safety_identifier", "prompt_cache_key")

LAST_EVENTS = FINAL_EVENTS | {"error"}

TEXT_ITEMS = frozenset({"message", "reasoning"})  # items with the model's own words; all others come from tools


def inspect(payload: Sequence[bytes], streamed: bool) -> Inspection:
    """Return whether the response is complete enough to be stored, and its token counts."""
    try:
        if streamed and (end := _end(payload)) is None:
            return Inspection(Admission.CUT, 0, 0)
        if streamed and end is not None and end["type"] == "error":
            return Inspection(Admission.ERROR_STATUS, 0, 0)
        body = _response(payload) if streamed else load_json(payload[0])
        usage = usage_of(body)
        counts = count_of(usage.get("input_tokens")), count_of(usage.get("output_tokens"))
        tokens = *counts, *token_details(usage)
        return Inspection(_admission(body), *tokens)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError):  # orjson's errors are ValueErrors
        return Inspection(Admission.MALFORMED, 0, 0)


def _admission(body: Mapping[str, Any]) -> Admission:
    """Return the admission. Raise `TypeError` or `KeyError` for responses that could not be streamed."""
    status = body.get("status")
    if body.get("error") is not None or status in ("failed", "cancelled"):
        return Admission.ERROR_STATUS
    if status != "completed":
        return Admission.INCOMPLETE
    items = body["output"]
    if not isinstance(body["id"], str) or not isinstance(items, list):
        raise TypeError("a response without an id or without items")
    kinds = [_kind(item) for item in items]
    for item, kind in zip(items, kinds, strict=True):
        if item.get("status", "completed") not in ("completed", None):
            return Admission.INCOMPLETE
        if kind == "message":
            _check_message(item)
    parts = [part for item, kind in zip(items, kinds, strict=True) if kind == "message" for part in item["content"]]
    if any(part["type"] == "refusal" for part in parts):
        return Admission.REFUSED
    if TEXT_ITEMS.issuperset(kinds) and all(part["type"] == "output_text" and is_blank(part["text"]) for part in parts):
        return Admission.EMPTY
    return Admission.STORED if TEXT_ITEMS.issuperset(kinds) else Admission.TOOLS


def _kind(thing: Mapping[str, Any]) -> str:
    kind = thing["type"]
    if not isinstance(kind, str):
        raise TypeError("an item or a part without a type")
    return kind


def _check_message(item: Mapping[str, Any]) -> None:
    if not isinstance(item["content"], list):
        raise TypeError("a message without parts")
    for part in item["content"]:
        if _kind(part) == "output_text" and not isinstance(part["text"], str):
            raise TypeError("a text part without a string")


def _end(payload: Sequence[bytes]) -> dict[str, Any] | None:
    """Return the event that ends the stream, which may be an error; None if there is none."""
    data = next((data for data in reversed(payload) if data != DONE), None)  # some servers end with it
    if data is None:
        return None
    try:
        event = load_json(data)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(event, dict):
        return None
    if event.get("type") == "error" or (event.get("error") is not None and "response" not in event):
        return {**event, "type": "error"}
    return event if event.get("type") in FINAL_EVENTS else None


def _response(payload: Sequence[bytes]) -> dict[str, Any]:
    """Return the response that the events describe. Malformed streams raise `KeyError` and the like.

    Some servers leave out the items at the end. Then they are taken from the events that completed them.
    """
    end = _end(payload)
    if end is None:
        raise ValueError("the stream has no end")
    if end["type"] == "error":
        raise MalformedResponse(f"the response is an error: {_sentence(end)}")
    response = end["response"]
    if not isinstance(response, dict):
        raise TypeError("an end without a response")
    return response if response.get("output") else {**response, "output": _done_items(payload)}


def _done_items(payload: Iterable[bytes]) -> list[Any]:
    done: dict[int, Any] = {}
    for data in payload:
        if b"response.output_item.done" in data:
            event = load_json(data)
            if event.get("type") == "response.output_item.done":
                done[event.get("output_index", len(done))] = event["item"]  # llama.cpp's servers send no index
    return [done[index] for index in sorted(done)]


def _sentence(event: Mapping[str, Any]) -> str:
    error = event.get("error")
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or event.get("message"))[:300]


def assemble(payload: Sequence[bytes]) -> bytes:
    """Join a stream into the body that the same request without `stream` gets. Raise `MalformedResponse`."""
    with reading():
        return dump_json(_response(payload))


def text(whole: bytes) -> str | None:
    """Return the text of a complete body, joined as the SDK's `output_text` does; None if it has other content.

    Other content is a tool call or a refusal. Reasoning is left out. Raise `MalformedResponse`.
    """
    with reading():
        items = [item for item in load_json(whole)["output"] if item["type"] != "reasoning"]
        if any(item["type"] != "message" for item in items):
            return None
        parts = [part for item in items for part in item["content"]]
        if any(part["type"] != "output_text" for part in parts):
            return None
        return "".join(part["text"] for part in parts) or None


def renew(data: bytes, answer_id: str, created: int, *, kept: bool) -> bytes:
    """Return a body, or the data of an event with one, with another id and time, unless it is stored upstream.

    If it is `kept`, a response that does not say so is stored.
    """

    def anew(response: dict[str, Any]) -> dict[str, Any]:
        stored = response.get("store")
        if (kept if stored is None else stored is not False) or "id" not in response:
            return response
        times = {key: created for key in ("created_at", "completed_at") if response.get(key) is not None}
        return {**response, "id": answer_id, **times}

    return _map_response(data, anew)


def restore_request_fields(fields: Mapping[str, Any], data: bytes) -> bytes:
    """Return a body, or the data of an event with one, with the values that this request has in `fields`.

    The data was made for another request. Fields that the response does not repeat are not added.
    """

    def own(response: dict[str, Any]) -> dict[str, Any]:
        values = {key: fields[key] for key in fields.keys() & response.keys()}
        if isinstance(response.get("metadata"), dict):
            values["metadata"] = fields["metadata"] or {}  # the default is an empty object
        return response if all(response[key] == value for key, value in values.items()) else {**response, **values}

    return _map_response(data, own)


def _map_response(data: bytes, change: Any) -> bytes:
    """Apply `change` to the response in `data`. If it returns the same object, the bytes stay."""
    if b'"output"' not in data:  # there is no response in it
        return data
    try:
        value = load_json(data)
    except orjson.JSONDecodeError:
        return data
    if not isinstance(value, dict):
        return data
    inner = value.get("response")
    if isinstance(inner, dict):
        changed = change(inner)
        return data if changed is inner else escape_line_ends(dump_json({**value, "response": changed}))
    changed = change(value) if value.get("object") == "response" or "output" in value else value
    return data if changed is value else escape_line_ends(dump_json(changed))
