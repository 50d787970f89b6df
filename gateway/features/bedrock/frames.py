"""Streams of AWS (`application/vnd.amazon.eventstream`): an incremental parser. Pure.

A message begins with its length and that of its headers (4 bytes each), and the CRC-32 of both. The headers and the
payload follow, and the CRC-32 of all before it. It is described in
https://docs.aws.amazon.com/transcribe/latest/dg/streaming-setting-up.html.
"""

from __future__ import annotations

import re
import struct
from collections import deque
from collections.abc import Mapping
from zlib import crc32

import orjson

from gateway.dialects.json_body import dump_json, load_json
from gateway.errors import UpstreamStreamError
from gateway.messages import Event

MEDIA_TYPE = "application/vnd.amazon.eventstream"
EXCEPTION = "exception"  # the name of an event that reports an error
RECENT = 4  # events: the last two of a stream tell whether it is whole
MAX_KNOWN = 32  # headers: one of each type of event
_KIND = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # of an event
_PRELUDE, _CRC = struct.Struct(">III"), struct.Struct(">I")
_FIXED_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}  # bytes of a value, by the type of a header
_BYTES, _STRING = 6, 7  # types with a length of two bytes


class FrameParser:
    """`FrameParser` parses chunks of any size. An event is named by its type, which is also the `type` of its data.
    `max_event` is the longest message in bytes."""

    keeps_open = False

    def __init__(self, max_event: int) -> None:
        self._max_event = max_event
        self._rest = bytearray()  # an incomplete message
        self._recent: deque[Event] = deque(maxlen=RECENT)
        self._known: dict[bytes, Mapping[str, str]] = {}  # headers by their bytes

    @property
    def recent(self) -> list[Event]:
        """The last events, from which a dialect tells whether the stream is over."""
        return list(self._recent)

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events that `chunk` completes. Raise `UpstreamStreamError` for what is no such stream, once the
        events before it are taken."""
        self._rest += chunk
        events: list[Event] = []
        try:
            while (event := self._next()) is not None:
                events.append(event)
        except UpstreamStreamError:
            if not events:
                raise
        self._recent += events
        return events

    def close(self) -> list[Event]:
        """Return no event, since half a message is none. Raise `UpstreamStreamError` if the rest is no such stream."""
        return self.feed(b"")

    def _next(self) -> Event | None:
        """Take the next whole message that has a type, and return its event; None if there is none."""
        at, event = 0, None
        while event is None and (size := self._size(at)) and len(self._rest) - at >= size:
            event = self._event(bytes(self._rest[at : at + size]))
            at += size
        del self._rest[:at]
        return event

    def _event(self, message: bytes) -> Event | None:
        """Return the event of a whole message, or None if it has no type. Raise `UpstreamStreamError`."""
        if crc32(message[:-4]) != _CRC.unpack(message[-4:])[0]:
            raise UpstreamStreamError("the upstream sends a damaged event: its checksum is wrong")
        end = _PRELUDE.size + _PRELUDE.unpack_from(message)[1]
        headers, payload = self._headers(message[_PRELUDE.size : end]), message[end:-4]
        kind = headers.get(":event-type", "")
        if headers.get(":message-type", "event") != "event":
            kind, payload = EXCEPTION, _exception(headers, payload)
        return Event(_with_type(kind, payload or b"{}"), kind) if _KIND.fullmatch(kind) else None

    def _headers(self, data: bytes) -> Mapping[str, str]:
        """Return the headers in these bytes. Those of most events are the same."""
        headers = self._known.get(data)
        if headers is None:
            try:
                headers = _read_headers(data)
            except (struct.error, IndexError, UnicodeDecodeError, KeyError):
                raise UpstreamStreamError("the upstream sends an event whose headers cannot be read") from None
            if len(self._known) < MAX_KNOWN:
                self._known[data] = headers
        return headers

    def _size(self, at: int) -> int:
        """Return the bytes of the message that begins at an index, or 0 while they are unknown. Raise
        `UpstreamStreamError`."""
        rest = self._rest
        if len(rest) - at < _PRELUDE.size:
            return 0
        size, header_size, crc = _PRELUDE.unpack_from(rest, at)
        if crc32(rest[at : at + 8]) != crc or size < header_size + 16:
            raise UpstreamStreamError("the upstream sends no event stream of AWS: the checksum of a message is wrong")
        if size > self._max_event:
            raise UpstreamStreamError(
                f"an event of the upstream is longer than {self._max_event} bytes (server.max_event)"
            )
        return int(size)


def _with_type(kind: str, payload: bytes) -> bytes:
    """Return the payload, which is a JSON object, with the type of its event. Raise `UpstreamStreamError`."""
    if payload[:1] != b"{":
        raise UpstreamStreamError("the upstream sends an event that is no JSON object")
    rest = payload[1:].lstrip()
    return b'{"type":"%b"%b%b' % (kind.encode(), b"" if rest[:1] == b"}" else b",", rest)


def _exception(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Return the payload of an error with the name of its kind. An `error` has it in its headers, with its words."""
    kind = headers.get(":exception-type") or headers.get(":error-code") or "unknownException"
    try:
        value = load_json(payload) if payload else {}
    except orjson.JSONDecodeError:
        value = {}
    message = value.get("message") if isinstance(value, dict) else None
    return dump_json({"kind": kind, "message": message or headers.get(":error-message") or kind})


def _read_headers(data: bytes) -> dict[str, str]:
    """Return the headers whose value is a text. Raise `struct.error` or `IndexError`, or `KeyError` for an unknown
    type."""
    headers: dict[str, str] = {}
    at = 0
    while at < len(data):
        end = at + 1 + data[at]
        name, kind = data[at + 1 : end], data[end]
        at = end + 1
        if kind in (_BYTES, _STRING):
            (size,) = struct.unpack_from(">H", data, at)
            at += 2
        else:
            size = _FIXED_SIZES[kind]
        if at + size > len(data):
            raise IndexError("a header that ends after its message")
        if kind == _STRING:
            headers[name.decode()] = data[at : at + size].decode()
        at += size
    return headers
