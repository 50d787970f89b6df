"""The messages of WebSockets on `/v1/responses`: those of clients, and what a connection remembers between them. Pure.

Each `response.create` is a call with the body of `POST /v1/responses`, without `stream` and `background`. The events of
the answer come back one a frame (https://developers.openai.com/api/docs/guides/websocket-mode).
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.dialects.json_body import dump_strict, load_json, parse_object
from gateway.dialects.openai.responses_answers import REQUEST_FIELDS, events_of
from gateway.dialects.sse import with_event_name
from gateway.errors import BadRequest
from gateway.messages import Event

CREATE, CANCEL = "response.create", "response.cancel"
ACKNOWLEDGED = frozenset({"response.processed"})  # tells the server what the client has read: nothing to do
# Fields of the message that are none of the call's.
TRANSPORT = frozenset({"type", "stream", "background", "generate", "stream_id"})
COMPLETED, ITEM_DONE = "response.completed", "response.output_item.done"
ERROR = "error"

STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")
MAX_STREAMS = 32  # named ones of a connection, as at OpenAI
MAX_TURNS = 64  # remembered responses of a connection

# Items whose ids are known to the server alone. A server that stores nothing refuses them as unknown.
SERVER_IDS = frozenset(
    {"message", "reasoning", "function_call", "custom_tool_call", "local_shell_call", "web_search_call"}
)


class FrameRefused(Exception):
    """A message of a client is refused. The connection goes on."""

    def __init__(
        self, message: str, *, code: str, param: str | None = None, status: int = 400, stream_id: str | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.code, self.param, self.status, self.stream_id = message, code, param, status, stream_id

    def frame(self) -> str:
        error = {
            "type": "invalid_request_error" if self.status < 500 else "server_error",
            "code": self.code,
            "message": self.message,
            "param": self.param,
        }
        return _error_frame(self.status, error, {}, self.stream_id)


@dataclass(frozen=True, slots=True)
class Create:
    """A call. If it `generates` nothing, the client only prepares the state that the next call continues."""

    body: Mapping[str, Any]  # of the HTTP form
    generates: bool
    stream_id: str | None

    @property
    def is_stored(self) -> bool:
        """Whether the backend keeps the response under its id."""
        return self.body.get("store") is not False


def parse_message(frame: str | bytes) -> Create | str | None:
    """Return a call, `CANCEL`, or None if the message needs no answer. Raise `FrameRefused`."""
    if isinstance(frame, bytes):
        raise FrameRefused("the message is binary: expected a text frame with a JSON object", code="invalid_message")
    try:
        message = parse_object(frame.encode("utf-8", "surrogatepass"))
    except BadRequest as error:
        raise FrameRefused(error.message.replace("the body", "the message"), code="invalid_json") from None
    kind = message.get("type")
    if isinstance(kind, str) and (kind in ACKNOWLEDGED or kind == CANCEL):
        return CANCEL if kind == CANCEL else None
    stream_id = message.get("stream_id")
    if stream_id is not None and not (isinstance(stream_id, str) and STREAM_ID.fullmatch(stream_id)):
        raise FrameRefused(
            "'stream_id' is invalid: expected 1 to 256 letters, digits, '_', '-' or '.'",
            code="invalid_stream_id",
            param="stream_id",
        )
    if kind != CREATE:
        raise FrameRefused(
            f"messages of type {str(kind)[:60]!r} are not supported: expected {CREATE}",
            code="unknown_message_type",
            param="type",
            stream_id=stream_id,
        )
    body = {key: value for key, value in message.items() if key not in TRANSPORT}
    return Create(body, message.get("generate") is not False, stream_id)


@dataclass(slots=True)
class _Turn:
    items: list[Any]  # of the whole conversation so far
    size: int  # bytes


class Turns:
    """`Turns` is what a connection remembers of its responses that no backend stores: their items.

    A call that continues one of them gets these items before its own. The least recently used ones go first at
    `MAX_TURNS`, or at `max_bytes` together.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._turns: OrderedDict[str, _Turn] = OrderedDict()
        self._size = 0

    def continued(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the body with all items if it continues a response that is remembered here; otherwise unchanged."""
        previous = body.get("previous_response_id")
        turn = self._turns.get(previous) if isinstance(previous, str) else None
        if turn is None or previous is None:
            return body
        self._turns.move_to_end(previous)
        rest = {key: value for key, value in body.items() if key != "previous_response_id"}
        return {**rest, "input": [*turn.items, *_items_of(body.get("input"))]}

    def remember(self, response: str, body: Mapping[str, Any], output: Sequence[Any], size: int) -> None:
        """Remember the items of a response. `body` is the one that `continued` returned; `size` is in bytes."""
        items = [*_items_of(body.get("input")), *(each for item in output if (each := _as_input(item)) is not None)]
        former = self._turns.pop(response, None)
        self._size += size - (0 if former is None else former.size)
        self._turns[response] = _Turn(items, size)
        while self._turns and (self._size > self._max_bytes or len(self._turns) > MAX_TURNS):
            _, oldest = self._turns.popitem(last=False)
            self._size -= oldest.size


def _items_of(given: Any) -> list[Any]:
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return given if isinstance(given, list) else []


def _as_input(item: Any) -> Any:
    """Return an item of an answer as a later input has it, or None if a server without a memory can't read it."""
    if not isinstance(item, dict):
        return None
    kind = item.get("type")
    if kind == "reasoning" and not item.get("encrypted_content"):
        return None
    return {key: value for key, value in item.items() if key != "id"} if kind in SERVER_IDS else item


class Outcome:
    """`Outcome` collects the id and the items of a response from its events."""

    def __init__(self) -> None:
        self.id: str | None = None  # set once the response is complete
        self.output: Sequence[Any] = ()
        self.size = 0
        self._items: list[Any] = []

    def see(self, event: Event) -> None:
        name = event.name or with_event_name(event.data).name
        if name not in (ITEM_DONE, COMPLETED):
            return
        try:
            value = load_json(event.data)
        except orjson.JSONDecodeError:
            return
        if not isinstance(value, dict):
            return
        if name == ITEM_DONE:
            self._items.append(value.get("item"))
            self.size += len(event.data)
            return
        response = value.get("response")
        if isinstance(response, dict) and isinstance(response.get("id"), str):
            output = response.get("output")
            self.id, self.output = response["id"], output if isinstance(output, list) and output else self._items
            self.size = max(self.size, len(event.data))


# Frames for the client


def event_frame(event: Event, stream_id: str | None) -> str | None:
    """Return the frame of an event, or None if it is no JSON object, such as `[DONE]`.

    An error event gets a status, without which clients take it for part of the answer.
    """
    data = event.data.strip()
    if not data.startswith(b"{"):
        return None
    if (event.name or with_event_name(data).name) == ERROR:
        return _event_error_frame(data, stream_id)
    text = data.decode("utf-8", "replace")
    return text if stream_id is None else f'{{"stream_id":"{stream_id}",{text[1:]}'


def _event_error_frame(data: bytes, stream_id: str | None) -> str:
    try:
        value = load_json(data)
    except orjson.JSONDecodeError:
        value = {"message": _quoted(data)}
    error, status = value.get("error"), value.get("status")
    if not isinstance(error, dict):
        error = {"type": "server_error", **{key: value.get(key) for key in ("code", "message", "param")}}
    return _error_frame(status if type(status) is int and 400 <= status < 600 else 502, error, {}, stream_id)


def _quoted(data: bytes) -> str:
    return data[:1000].decode("utf-8", "replace")


def answer_error_frame(status: int, body: bytes, headers: Mapping[str, str], stream_id: str | None) -> str:
    """Return the frame for an answer that is an error. The `headers` tell the client more."""
    try:
        value = load_json(body)
    except orjson.JSONDecodeError:
        value = None
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict):
        text = error if isinstance(error, str) else _quoted(body)
        error = {"type": "server_error", "code": None, "message": text or f"status {status}", "param": None}
    return _error_frame(status, error, headers, stream_id)


def _error_frame(status: int, error: Mapping[str, Any], headers: Mapping[str, str], stream_id: str | None) -> str:
    frame: dict[str, Any] = {"type": ERROR, "status": status}
    if stream_id is not None:
        frame["stream_id"] = stream_id
    frame["error"] = error
    if headers:
        frame["headers"] = headers
    try:
        return dump_strict(frame).decode()
    except orjson.JSONEncodeError:
        problem = "the backend's error is nested too deeply to be sent"
        return _error_frame(status, {"type": "server_error", "message": problem}, headers, stream_id)


def prepared_events(body: Mapping[str, Any], answer_id: str, created: int) -> tuple[Event, ...]:
    """Return the events of a response without output, for a call that only prepares the next one."""
    given = {key: default if body.get(key) is None else body[key] for key, default in REQUEST_FIELDS.items()}
    head = {"id": answer_id, "object": "response", "created_at": created, "status": "completed"}
    usage = {
        "input_tokens": 0,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 0,
    }
    empty: dict[str, Any] = {"error": None, "incomplete_details": None, "output": [], "usage": usage, "store": False}
    continued = {"model": body.get("model"), "previous_response_id": body.get("previous_response_id")}
    return events_of(orjson.dumps({**head, **given, **continued, **empty}))
