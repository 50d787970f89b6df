"""Responses, the forms of their bodies, and where an answer came from.

A value of this module never changes after its creation. Values that each request creates are dataclasses without
`frozen`: the constructor of a frozen one takes two to four times as long.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from gateway.outcomes import Verdict
from gateway.prices import Tokens


class Affinity(NamedTuple):
    """The backend that made a resource, and the address that did, or None if the backend has one address."""

    backend: str
    upstream: str | None


@dataclass(slots=True)
class Usage:
    """The tokens of one backend call."""

    backend: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0  # input tokens that the backend read from its prompt cache
    written_tokens: int = 0  # input tokens that the backend wrote to its prompt cache
    reasoning_tokens: int = 0  # output tokens that are no part of the answer

    @property
    def tokens(self) -> Tokens:
        return Tokens(
            self.input_tokens, self.output_tokens, self.cached_tokens, self.written_tokens, self.reasoning_tokens
        )


@dataclass(slots=True, unsafe_hash=True)
class Provenance:
    """The origin of an answer: the source of Cache-Status, the x-nearhit-* headers and the metric labels."""

    verdict: Verdict
    reason: str | None = None  # a member of Bypass, Refusal, Basis or Choice, or the kind of an error
    similarity: float | None = None  # semantic hits: in [0, 1]
    age_s: float | None = None  # hits: seconds since the answer was made
    ttl_s: float | None = None  # hits: seconds of freshness left
    backend: str | None = None
    tier: str | None = None  # light | large, if the route has tiers
    complexity: float | None = None  # in [0, 1]
    stored: bool = False  # the answer is stored, or will be when it ends
    saved_tokens: int = 0  # output and input tokens that a hit saved
    saved_dollars: float = 0.0
    fingerprint: str = ""  # hits: fingerprint of the stored answer
    output_tokens: int = 0  # hits: the stored answer's; 0 if unknown
    upstream_s: float = 0.0  # hits: duration of the original backend call
    other_usage: tuple[Usage, ...] = ()  # calls for this answer that cost money, too, such as a rejected light answer
    forwarded: bool = True  # unset if the gateway refused the request before it reached a backend
    exclusive: bool = False  # the backend's headers forbid to share the answer with other requests

    def as_stored(self) -> Provenance:
        return replace(self, stored=True)

    def as_exclusive(self) -> Provenance:
        return replace(self, exclusive=True)


MISSED = Provenance(Verdict.MISS)


# A number, because `b"\n" in data` takes ten times as long: CPython 3.11 first raises and drops a `TypeError`.
LF = 10


@dataclass(slots=True)
class Event:
    """One server-sent event of an answer, in the wire form of the client's dialect.

    `data` is the payload of the `data:` lines, joined with newlines; `name` is that of `event:`.
    """

    data: bytes
    name: str | None = None

    def frame(self) -> bytes:
        """Return the event in wire form, with its closing blank line."""
        if self.name is None and LF not in self.data:
            return b"data: %b\n\n" % self.data
        head = b"" if self.name is None else b"event: " + self.name.encode() + b"\n"
        if LF in self.data:
            return head + b"".join(b"data: " + line + b"\n" for line in self.data.split(b"\n")) + b"\n"
        return head + b"data: " + self.data + b"\n\n"


@dataclass(slots=True)
class Comment(Event):
    """A comment in a stream of events: a sign of life that is no part of the answer. `data` is its text."""

    def frame(self) -> bytes:
        return b":%b\n\n" % self.data


KEEP_ALIVE = Comment(b" keep-alive")


@dataclass(slots=True)
class FullBody:
    """A body that is complete in memory."""

    data: bytes


@dataclass(slots=True)
class EventStream:
    """A body of server-sent events. Its holder must iterate it to the end or call `aclose()`."""

    events: AsyncIterator[Event]


@dataclass(slots=True)
class ByteStream:
    """An opaque body, relayed as it arrives."""

    chunks: AsyncIterator[bytes]


Frame = str | bytes
"""A WebSocket frame: text or binary."""


@dataclass(frozen=True, slots=True)
class Closing:
    """The end of a WebSocket: a status code (RFC 6455, section 7.4) and a reason."""

    code: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Tunnel:
    """A WebSocket that the backend has accepted. Its holder must relay it to its end or close it.

    If it `carries_requests`, each of its messages is a request and counts as such, so the connection itself does not.
    """

    upstream: Duplex
    carries_requests: bool = False


Body = FullBody | EventStream | ByteStream | Tunnel


@dataclass(slots=True)
class Response:
    status: int
    headers: tuple[tuple[str, str], ...]  # end-to-end headers, without framing and hop-by-hop headers
    body: Body
    provenance: Provenance = MISSED  # as the backend sets it; `Dispatch` completes it
    wire: bytes | None = None  # head and body in wire form, if ready; the other fields are then empty
    refused: bool = False  # the backend refuses the gateway's own credentials, or lacks the model

    @property
    def content_type(self) -> str:
        for name, value in self.headers:
            if name.lower() == "content-type":
                return value
        return ""


def media_type(content_type: str) -> str:
    """Return the type of a body without its parameters, in lower case (RFC 9110, section 8.3.1)."""
    return content_type.partition(";")[0].strip().lower()


class Duplex(Protocol):
    """A WebSocket to a backend."""

    @property
    def protocol(self) -> str | None:
        """The subprotocol that the backend chose from the client's offers."""

    async def send(self, frame: Frame) -> None:
        """Send a frame; wait until that is possible. Raise `ConnectionError` if the other side is gone."""

    async def receive(self) -> Frame | Closing:
        """Return the next frame, or the close."""

    async def drain(self) -> None:
        """Return when the WebSocket may be closed because the gateway stops. It may also end itself, by a `Closing`."""

    async def close(self, closing: Closing) -> None:
        """Close the WebSocket within a bounded time. Closing twice is harmless."""
