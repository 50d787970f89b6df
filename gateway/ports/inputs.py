"""Time, request bodies, and text as vectors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from gateway.messages import Embedding


class Clock(Protocol):
    def wall(self) -> float:
        """Seconds since the epoch; may jump."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; only differences mean something."""


class BodySource(Protocol):
    """A request's body, not yet read. One of the two may be used, once."""

    async def read(self) -> bytes:
        """All of it, decoded. Raises `TooLarge`, `RequestTimeout` or `BadRequest`."""

    def read_nowait(self) -> bytes | None:
        """What `read` returns, where it is here already; None where it has to be waited for. Raises as `read`."""

    async def buffer(self) -> None:
        """Waits until the whole body is here, or more of it than is buffered. Raises `RequestTimeout` or
        `BadRequest`."""

    def stream(self) -> AsyncIterator[bytes] | None:
        """As it comes, undecoded; None where there is none."""

    @property
    def taken(self) -> bytes | None:
        """What `stream` would give, where all of it is here already; empty where there is no body."""

    @property
    def replayable(self) -> bool:
        """Whether `stream` gives the same body each time: it is here already, or there is none."""


class TextEncoder(Protocol):
    """The synchronous half of an embedder. One thread at a time calls it; it may take milliseconds."""

    @property
    def fingerprint(self) -> str:
        """Names model, weights and quantisation. Vectors of different fingerprints are never compared."""

    @property
    def dimension(self) -> int: ...

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        """One embedding a text, in order; vectors are float32 of shape (dimension,) and unit length."""


class ImmediateEncoder(TextEncoder, Protocol):
    """One that takes microseconds."""

    def encode_one(self, text: str) -> Embedding: ...


class Embedder(Protocol):
    @property
    def fingerprint(self) -> str: ...

    @property
    def dimension(self) -> int: ...

    async def embed(self, text: str, owner: str = "") -> Embedding:
        """`owner`: who may notice by the time it takes that the text was embedded before, see `cache.keys.owner_of`;
        empty: the gateway itself. Raises `EmbedderUnavailable` when it cannot answer within its bounds; never hangs."""

    def embed_nowait(self, text: str, owner: str = "") -> Embedding | None:
        """What `embed` would return, where that takes microseconds; None where it has to be waited for."""


class EagerEmbedder(Embedder, Protocol):
    def begin(self, text: str, owner: str = "") -> None:
        """A hint that `embed` is likely to be called with the same in a moment. May do nothing."""
