"""Server-sent events (WHATWG HTML, section 9.2.6): an incremental parser, and named events. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from gateway.errors import UpstreamStreamError
from gateway.messages import LF, Event

MAX_EVENT_BYTES = 4 * 1024 * 1024  # an image in one event is some hundred kB

CR = 13  # a number, as `LF` is


class SSEParser:
    """Feed it what comes, in any cut; comments, ids and retry hints are dropped."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes. Raises `UpstreamStreamError` when one exceeds `MAX_EVENT_BYTES`."""
        if not self._rest and _is_single_event(chunk):
            return [Event(chunk[6:-2])]
        buffer = self._rest + chunk if self._rest else chunk
        if CR in buffer:
            # A CR at the very end may be half of a CRLF: it waits for the next chunk.
            tail = b"\r" if buffer.endswith(b"\r") else b""
            buffer = buffer[: len(buffer) - len(tail)].replace(b"\r\n", b"\n").replace(b"\r", b"\n") + tail
        *blocks, self._rest = buffer.split(b"\n\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise UpstreamStreamError(f"an event of the upstream exceeds {MAX_EVENT_BYTES} bytes")
        return [event for event in map(_event, blocks) if event is not None]

    def close(self) -> list[Event]:
        """What a stream that ends without its last blank line still held. The standard drops it; servers that forget
        the blank line after `[DONE]` are common enough to be lenient here."""
        rest, self._rest = self._rest.replace(b"\r", b"\n").strip(b"\n"), b""
        event = _event(rest) if rest else None
        return [event] if event else []


def _is_single_event(chunk: bytes) -> bool:
    """Whether it is one event of one line: most servers write each by itself."""
    return chunk[:6] == b"data: " and chunk.find(LF) == len(chunk) - 2 and chunk[-1] == LF and CR not in chunk


def _event(block: bytes) -> Event | None:
    if block.startswith(b"data: ") and LF not in block:  # almost every event there is
        return Event(block[6:])
    data: list[bytes] = []
    name: str | None = None
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value.decode("utf-8", "replace")
    return Event(b"\n".join(data), name) if data else None


# Server-sent events whose name is the `type` of what they carry, as in several vendors' protocols. Pure.
_FIRST = re.compile(rb'\{"type": ?"([a-z_.]+)"')  # most servers write it first

_NAME = re.compile(r"[A-Za-z0-9_.-]+")  # one with a line break would be another line of the stream


def with_event_name(data: bytes) -> Event:
    """An event under the name that its `type` is; without a name where it has none."""
    if match := _FIRST.match(data):
        return Event(data, match[1].decode())
    try:
        kind = orjson.loads(data)["type"]
    except (ValueError, TypeError, KeyError):
        return Event(data)
    return Event(data, kind if isinstance(kind, str) and _NAME.fullmatch(kind) else None)


def encode_event(value: Mapping[str, Any]) -> Event:
    """`value` has a `type`."""
    return Event(orjson.dumps(value), value["type"])
