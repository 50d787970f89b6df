"""Server-sent events (WHATWG HTML, section 9.2.6): an incremental parser, and named events. Pure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.config.schema import MAX_EVENT
from gateway.dialects.json_body import dump_json, escape_line_ends, load_json
from gateway.errors import UpstreamStreamError
from gateway.messages import LF, Comment, Event

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

RECENT = 16  # events: after the end of an answer come its usage, and vendors' notes
RECENT_BYTES = 8 * 1024  # all these notes together are shorter

LONG_CHUNK = RECENT_BYTES // RECENT  # bytes; `RECENT` shorter ones cannot reach `RECENT_BYTES`

CR, SPACE = 13, 32  # integers, like `LF`


class SSEParser:
    """`SSEParser` parses chunks of any size. Ids and retry hints are dropped, and so are events without data, which
    some servers send to keep a connection open. Comments are appended to `comments`, if given, for its owner to take.
    `max_event` is the longest event in bytes."""

    def __init__(self, max_event: int = MAX_EVENT, comments: list[Comment] | None = None) -> None:
        self._max_event = max_event
        self._comments = comments
        self._is_start = True  # nothing was read but a part of a byte order mark, or events of one line
        self._rest: list[bytes] = []  # the pieces of an incomplete event, none of them empty
        self._rest_size = 0
        self._after_cr = False  # the last chunk ended in CR: LF at the start of the next one belongs to it
        self._recent: deque[Event] = deque(maxlen=RECENT)
        self.keeps_open = False  # a comment came, or an event without data: the server keeps the connection open

    @property
    def recent(self) -> list[Event]:
        """The last events, from which a dialect tells whether the stream is over."""
        return list(self._recent)

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events that `chunk` completes. Raise `UpstreamStreamError` if one exceeds `max_event`."""
        if not self._rest and _is_single_event(chunk):
            events = [Event(chunk[6:-2])]
            self._recent += events
            if len(chunk) > LONG_CHUNK:
                self._drop_old()
            return events
        if self._after_cr and chunk:
            chunk, self._after_cr = chunk.removeprefix(b"\n"), False
        if CR in chunk:
            # A final CR ends its line at once. It may be all of a line end, and nothing may follow for long.
            self._after_cr = chunk[-1] == CR
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if self._is_start and not (chunk := self._without_mark(chunk)):
            return []
        rest = self._rest
        if rest:
            is_comment = self._comments is not None and rest[0][:1] == b":" and LF in chunk
            # The pieces are joined once, so a long event takes linear time.
            if not (is_comment or _ends_event(rest[-1], chunk)):
                self._keep(chunk)
                return []
            chunk = b"".join([*rest, chunk])
            self._rest, self._rest_size = [], 0
        *blocks, last = chunk.split(b"\n\n")
        if self._comments is not None and (chunk[:1] == b":" or b"\n:" in chunk):
            last = _take_comments(self._comments, blocks, last)
        self._keep(last)
        events = [event for event in map(_event, blocks) if event is not None]
        if len(events) < len(blocks) or last[:1] == b":":
            self.keeps_open = True
        self._recent += events
        if len(chunk) > LONG_CHUNK:
            self._drop_old()
        return events

    def _without_mark(self, chunk: bytes) -> bytes:
        """Return the chunk without a byte order mark at the start of the stream. It is empty while the mark may
        be incomplete."""
        if not self._recent:
            chunk, self._rest = b"".join([*self._rest, chunk]), []
            if BYTE_ORDER_MARK.startswith(chunk):
                self._rest = [chunk] if chunk and chunk != BYTE_ORDER_MARK else []
                self._is_start = chunk != BYTE_ORDER_MARK
                return b""
            chunk = chunk.removeprefix(BYTE_ORDER_MARK)
        self._is_start = False
        return chunk

    def _keep(self, piece: bytes) -> None:
        """Keep a piece of an incomplete event. Raise `UpstreamStreamError` if the event is too long."""
        if piece:
            self._rest.append(piece)
            self._rest_size += len(piece)
        if self._rest_size > self._max_event:
            self._rest, self._rest_size = [], 0
            raise UpstreamStreamError(
                f"an event of the upstream is longer than {self._max_event} bytes (server.max_event)"
            )

    def _drop_old(self) -> None:
        """Keep the last `RECENT` events, or as few as reach `RECENT_BYTES` together."""
        recent, size = self._recent, 0
        for count, event in enumerate(reversed(recent), 1):
            size += len(event.data)
            if size >= RECENT_BYTES:
                while len(recent) > count:
                    recent.popleft()
                return

    def close(self) -> list[Event]:
        """Return the event that lacks its final blank line.

        The standard drops it, but many servers forget the blank line after `[DONE]`.
        """
        rest, self._rest = b"".join(self._rest).strip(b"\n"), []
        event = _event(rest) if rest else None
        return [event] if event else []


def _take_comments(comments: list[Comment], blocks: Sequence[bytes], last: bytes) -> bytes:
    """Append the comments of whole blocks, and those at the start of the last block, which is not complete. Return the
    rest of it."""
    for block in blocks:
        comments += [Comment(line[1:]) for line in block.split(b"\n") if line[:1] == b":"]
    while last[:1] == b":" and LF in last:
        line, _, last = last.partition(b"\n")
        comments.append(Comment(line[1:]))
    return last


def _is_single_event(chunk: bytes) -> bool:
    """Return whether the chunk is one event of one line: most servers write each event separately."""
    return (
        chunk[:6] == b"data: "
        and chunk.find(LF) == len(chunk) - 2
        and chunk[-1] == LF
        and chunk[6] > SPACE
        and CR not in chunk
    )


def _ends_event(last: bytes, chunk: bytes) -> bool:
    """Return whether `chunk`, which follows `last` in a stream, ends an event."""
    return b"\n\n" in chunk or (chunk[:1] == b"\n" and last[-1] == LF)


def _event(block: bytes) -> Event | None:
    if block.startswith(b"data: ") and LF not in block and len(block) > 6 and block[6] > SPACE:  # almost every event
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
        elif field == b"error" and value.startswith(b"{"):  # the servers of llama.cpp before October 2025
            data.append(b'{"error":%b}' % value)
    joined = b"\n".join(data)
    return Event(joined, name) if joined and not joined.isspace() else None


# Events whose name is the `type` of their data, as in several vendors' protocols. Pure.
_FIRST = re.compile(rb'\{"type": ?"([a-z_.]+)"')  # most servers write the type first

_NAME = re.compile(r"[A-Za-z0-9_.-]+")  # a line break in a name would start another line of the stream


def with_event_name(data: bytes) -> Event:
    """Return an event named by its `type`; without a name if it has none."""
    if match := _FIRST.match(data):
        return Event(data, match[1].decode())
    try:
        kind = load_json(data)["type"]
    except (ValueError, TypeError, KeyError):
        return Event(data)
    return Event(data, kind if isinstance(kind, str) and _NAME.fullmatch(kind) else None)


def with_names(events: Sequence[Event]) -> Sequence[Event]:
    """Return events with the names that a server left out: the clients of such protocols read events by their names."""
    for event in events:
        if event.name is None:
            return [with_event_name(each.data) if each.name is None else each for each in events]
    return events


def encode_event(value: Mapping[str, Any]) -> Event:
    """Return `value`, which has a `type`, as an event."""
    return Event(escape_line_ends(dump_json(value)), value["type"])
