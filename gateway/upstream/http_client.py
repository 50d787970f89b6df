"""What an HTTP backend needs of its client: requests out, answers in. Errors are those of `gateway.upstream.http1.errors`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol


class Opening:
    """The part of a request's head that many requests share, as a client has written it: `None` before the first."""

    __slots__ = ("written",)

    def __init__(self) -> None:
        self.written: bytes | None = None


class Outward(NamedTuple):
    """A request as it is to go out. `body` streams where it is not at hand, with its `length` where that is known;
    `repeatable`: it may be sent once more where the server closes a kept connection without a word. `opening`: shared
    by all requests of this method, target and headers, which then differ in `more` headers, body and length alone."""

    method: str
    target: str  # path and query, as they are to be sent
    headers: Sequence[tuple[str, str]]  # without Host and framing
    body: bytes | AsyncIterator[bytes] = b""
    length: int | None = None
    repeatable: bool = True
    more: Sequence[tuple[str, str]] = ()  # headers
    opening: Opening | None = None


class HttpAnswer(Protocol):
    """Whoever has it reads it to its end, or closes it."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        """In order, repeated ones kept, hop-by-hop ones included."""

    @property
    def noted(self) -> Mapping[str, str]:
        """Of the headers those in `gateway.upstream.http1.headers.NOTED`, by their names in small letters."""

    @property
    def memo(self) -> dict[bool, Any] | None:
        """Shared by answers with the same headers, for what follows from these; None: nobody knows of others."""

    @property
    def whole(self) -> bool:
        """The last byte of the body has come."""

    @property
    def at_end(self) -> bool:
        """And was read."""

    def take(self) -> bytes:
        """What of the body is here."""

    async def read(self, due: float) -> bytes:
        """What has come since the last time, as soon as there is anything; empty at the end. `due`: time of the event
        loop. Raises `ExchangeFailed`."""

    def close(self) -> None:
        """Gives the connection back where the body was read to its end, and cuts it otherwise. As often as you like."""


class HttpClient(Protocol):
    """Of one origin."""

    def ask(self, request: Outward, due: float) -> Awaitable[HttpAnswer]:
        """Status and headers of the answer. `due`: time of the event loop. Raises `ExchangeFailed`, `ValueError` where
        the request cannot be said in HTTP/1.1, and what its body raises."""

    async def close(self) -> None: ...
