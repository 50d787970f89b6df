"""What an HTTP backend needs of its client: requests out, answers in. Errors are those of `gateway.http1.errors`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Outward:
    """A request as it is to go out. `body` streams where it is not at hand, with its `length` where that is known;
    `repeatable`: it may be sent once more where the server closes a kept connection without a word."""

    method: str
    target: str  # path and query, as they are to be sent
    headers: Sequence[tuple[str, str]]  # without Host and framing
    body: bytes | AsyncIterator[bytes] = b""
    length: int | None = None
    repeatable: bool = True


class HttpAnswer(Protocol):
    """Whoever has it reads it to its end, or closes it."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        """In order, repeated ones kept, hop-by-hop ones included."""

    @property
    def content_type(self) -> str:
        """Without parameters, in small letters."""

    @property
    def content_encoding(self) -> str: ...

    @property
    def content_length(self) -> str | None: ...

    @property
    def connection(self) -> str | None:
        """The header of that name."""

    @property
    def at_end(self) -> bool:
        """Nothing of the body is left to read."""

    async def read(self, due: float) -> bytes:
        """What has come since the last time, as soon as there is anything; empty at the end. `due`: time of the event
        loop. Raises `ExchangeFailed`."""

    def close(self) -> None:
        """Gives the connection back where the body was read to its end, and cuts it otherwise. As often as you like."""


class HttpClient(Protocol):
    """Of one origin."""

    async def ask(self, request: Outward, due: float) -> HttpAnswer:
        """Status and headers of the answer. `due`: time of the event loop. Raises `ExchangeFailed`, `ValueError` where
        the request cannot be said in HTTP/1.1, and what its body raises."""

    async def close(self) -> None: ...
