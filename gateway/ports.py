"""The Protocols that the stages depend on. Real adapters live in `gateway.adapters`; the contract suites under
`tests/contracts` run against every adapter and every shared fake."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.messages import Call, Embedding, Entry, Neighbour, Request, Response, Vector


class Clock(Protocol):
    def wall(self) -> float:
        """Seconds since the epoch; may jump."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; only differences mean something."""


class TextEncoder(Protocol):
    """The synchronous half of an embedder. One thread at a time calls it; it may take milliseconds."""

    @property
    def fingerprint(self) -> str:
        """Names model, weights and quantisation. Vectors of different fingerprints are never compared."""

    @property
    def dimension(self) -> int: ...

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        """One embedding a text, in order; vectors are float32 of shape (dimension,) and unit length."""


class Embedder(Protocol):
    @property
    def fingerprint(self) -> str: ...

    @property
    def dimension(self) -> int: ...

    async def embed(self, text: str) -> Embedding:
        """Raises `EmbedderUnavailable` when it cannot answer within its bounds; never hangs."""


@dataclass(frozen=True, slots=True)
class StoredVector:
    """What the store keeps for the index to be rebuilt from."""

    fingerprint: str
    scope: str
    vector: Vector
    expires: float  # wall clock, seconds


@dataclass(frozen=True, slots=True)
class StoreStats:
    entries: int
    bytes: int


class ResponseStore(Protocol):
    """The source of truth. Every method raises `StoreUnavailable` when the store does not answer in time."""

    async def get(self, fingerprint: str) -> Entry | None: ...

    async def put(self, entry: Entry, vector: Vector | None) -> None:
        """Stores or replaces. The entry is forgotten by itself at `entry.expires`."""

    async def delete(self, fingerprints: Sequence[str]) -> int:
        """Returns how many there were."""

    def vectors(self) -> AsyncIterator[StoredVector]:
        """Every stored vector of the current embedder, in no order."""

    async def stats(self) -> StoreStats: ...


class VectorIndex(Protocol):
    """Nearest neighbours within one scope. Never returns an entry of another scope."""

    @property
    def size(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    async def add(self, fingerprint: str, scope: str, vector: Vector, expires: float) -> None:
        """Adds or replaces."""

    async def search(self, scope: str, vector: Vector, k: int) -> list[Neighbour]:
        """At most `k` neighbours, most similar first."""

    async def remove(self, fingerprints: Sequence[str]) -> int:
        """Returns how many there were."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A neighbour with the question its answer was made for."""

    question: str
    similarity: float  # in [0, 1]


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a candidate's answer may be served. `reason` names what spoke against it."""

    accepted: bool
    reason: str | None
    threshold: float  # what `similarity` (or the probability) was held against, in [0, 1]


class Verifier(Protocol):
    """Decides whether the answer to a stored question answers this one."""

    async def judge(
        self, question: str, candidates: Sequence[Candidate], acceptance: Acceptance
    ) -> list[Judgement]:
        """One judgement a candidate, in order."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What a route's policy demands of a semantic hit; exactly one of the two is set."""

    min_similarity: float | None = None  # a plain threshold in [0, 1]
    max_wrong_hits: float | None = None  # wrong semantic hits over all requests of the route, in [0, 1]


class Backend(Protocol):
    """A named service that answers."""

    @property
    def name(self) -> str: ...

    async def send(self, request: Request) -> Response:
        """Sends the call and returns once the status and the first byte of the body are there.

        Raises `BackendError` when it fails before that. Closing the response's body cancels the call upstream.
        """

    async def models(self, request: Request) -> list[dict[str, Any]]:
        """The models it offers, as OpenAI model objects. Raises `BackendError`."""

    async def ready(self) -> bool:
        """A cheap health probe; never raises."""

    async def close(self) -> None: ...


class Dialect(Protocol):
    """A wire protocol that clients speak. Pure: no I/O."""

    @property
    def name(self) -> str: ...

    def parse(self, request: Request) -> Call | None:
        """The call, or None where the path is not this dialect's. Raises `BadRequest`."""

    def error(self, status: int, kind: str, message: str) -> bytes:
        """An error body in the dialect's own shape."""

    def error_event(self, kind: str, message: str) -> Event:
        """The event that ends a stream which broke after its first byte."""
