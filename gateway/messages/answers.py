"""What is said back: the forms that a body may have, and the response that carries it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.messages.provenance import MISSED, Provenance

if TYPE_CHECKING:
    from gateway.ports import Duplex

# A number: `b"\n" in data` takes ten times as long, as CPython 3.11 makes a `TypeError` and drops it first.
LF = 10


@dataclass(slots=True)
class Event:
    """One server-sent event of an answer, in the client dialect's own wire form.

    `data` is the payload of the `data:` lines, joined with newlines; `name` that of `event:`.
    """

    data: bytes
    name: str | None = None

    def frame(self) -> bytes:
        """The event as it goes over the wire, with its closing blank line."""
        if self.name is None and LF not in self.data:
            return b"data: %b\n\n" % self.data
        head = b"" if self.name is None else b"event: " + self.name.encode() + b"\n"
        if LF in self.data:
            return head + b"".join(b"data: " + line + b"\n" for line in self.data.split(b"\n")) + b"\n"
        return head + b"data: " + self.data + b"\n\n"


@dataclass(slots=True)
class Whole:
    """A body that is complete in memory."""

    data: bytes


@dataclass(slots=True)
class EventStream:
    """A body of server-sent events. Whoever holds it iterates it to the end or calls `aclose()` on it."""

    events: AsyncIterator[Event]


@dataclass(slots=True)
class ByteStream:
    """An opaque body, relayed as it comes."""

    chunks: AsyncIterator[bytes]


Frame = str | bytes
"""What one side of a WebSocket says: text or binary."""


@dataclass(frozen=True, slots=True)
class Closing:
    """The end of a WebSocket: a status code (RFC 6455 section 7.4) and a reason."""

    code: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Tunnel:
    """The backend has agreed to a WebSocket. Whoever holds it relays it to its end, or closes it."""

    upstream: Duplex


Body = Whole | EventStream | ByteStream | Tunnel


@dataclass(slots=True)
class Response:
    status: int
    headers: tuple[tuple[str, str], ...]  # end-to-end headers, without framing and hop-by-hop ones
    body: Body
    provenance: Provenance = MISSED  # what a backend returns; `Dispatch` says more
    wire: bytes | None = None  # head and body as they go over the wire, where they are known; the rest is empty then

    @property
    def content_type(self) -> str:
        for name, said in self.headers:
            if name.lower() == "content-type":
                return said
        return ""
