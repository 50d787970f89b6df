"""The Protocols that the stages depend on. Real adapters live in `gateway.adapters`; the contract suites under
`tests/contracts` run against every adapter and every shared fake."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.messages import (
    Admission,
    Call,
    Embedding,
    Entry,
    Event,
    Neighbour,
    Refusal,
    Request,
    Response,
    Vector,
)


class Clock(Protocol):
    def wall(self) -> float:
        """Seconds since the epoch; may jump."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; only differences mean something."""


class BodySource(Protocol):
    """A request's body, not yet read. One of the two may be used, once."""

    async def read(self) -> bytes:
        """All of it, decoded. Raises `TooLarge`, `RequestTimeout` or `BadRequest`."""

    def stream(self) -> AsyncIterator[bytes] | None:
        """As it comes, undecoded; None where there is none."""


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


@dataclass(frozen=True, slots=True)
class Weight:
    """What the store says of an entry that it lists."""

    fingerprint: str
    size: int  # bytes of record and vector; 0: it is gone, and no longer listed
    worth: float  # US dollars that a hit saves
    expired: bool  # where it is gone: because its time was over


class WeighedStore(Protocol):
    """Raises `StoreUnavailable`."""

    def weights(self) -> AsyncIterator[Sequence[Weight]]:
        """Of all entries, in pages of bounded size, in no order. What is listed and gone is listed no longer."""


class ResponseStore(Protocol):
    """The source of truth. Every method raises `StoreUnavailable` when the store does not answer in time."""

    async def get(self, fingerprint: str) -> Entry | None: ...

    async def put(self, entry: Entry, vector: Vector | None, lease: int = 0) -> bool:
        """Stores or replaces. The entry is forgotten by itself at `entry.expires`.

        `lease`: the token under which its answer was fetched, 0 for none; the lease ends with it. False, and nothing is
        written, where that lease was lost and what lies there may be newer.
        """

    async def delete(self, fingerprints: Sequence[str]) -> int:
        """Returns how many there were."""

    def vectors(self) -> AsyncIterator[StoredVector]:
        """Every stored vector of the current embedder, in no order."""

    def fingerprints(self) -> AsyncIterator[tuple[str, float]]:
        """Every entry's fingerprint and expiry (wall clock, seconds), without reading the entries; in no order.

        One may come twice, and one that has just expired, or made room for others, may still come.
        """

    async def vectors_of(self, fingerprints: Sequence[str]) -> Sequence[StoredVector]:
        """What `vectors` gives, of these alone."""

    async def stats(self) -> StoreStats: ...


@dataclass(frozen=True, slots=True)
class Claim:
    """What came of asking for a lease; at most one of the two is not 0. Both are 0 where an answer lies there."""

    token: int  # of the lease that was given, 0: none; higher than that of every lease given before
    holder: int  # the token of the lease that somebody else holds; 0: nobody does


class Leases(Protocol):
    """Who may call a backend for a fingerprint, among all gateways on a store. Leases expire by themselves.

    Every method raises `StoreUnavailable` when the store does not answer in time."""

    async def acquire(self, fingerprint: str, since: int | None) -> Claim:
        """Gives a lease unless another one is in force, or an entry lies there that was put under the token `since` or
        a later one; 0: any entry; None: no entry keeps it from being given."""

    async def renew(self, held: Mapping[str, int]) -> Sequence[str]:
        """Prolongs leases (fingerprint -> token). Returns those that are no longer in force: they stay lost."""

    async def release(self, held: Mapping[str, int]) -> None:
        """Ends leases, of those named the ones that are still in force."""

    async def holders(self, fingerprints: Sequence[str]) -> Sequence[int]:
        """The token of the lease in force for each, 0 for none."""


class CounterexampleStore(Protocol):
    """What clients said was wrong, for all gateways on a store. Raises `StoreUnavailable`."""

    async def add_counterexample(self, key: str) -> None: ...

    async def counterexamples(self) -> list[str]:
        """The keys, oldest first; bounded, the oldest are forgotten."""


class LearningStore(Protocol):
    """What routes have learnt, over a restart. Raises `StoreUnavailable`."""

    async def put_learning(self, route: str, snapshot: bytes) -> None:
        """Stores or replaces. Bounded: beyond some hundreds of routes others are forgotten."""

    async def learning(self, route: str) -> bytes | None: ...


class RemovalStore(Protocol):
    """What removals need of the store. Every method raises `StoreUnavailable`."""

    async def version(self) -> bytes:
        """Changes whenever the bans do; cheap."""

    async def bans(self) -> Sequence[bytes]: ...

    async def write_bans(self, bans: Mapping[str, bytes], drop: Sequence[str]) -> bool:
        """Adds or replaces by id, forgets those of `drop`. Returns whether it is known to have reached the disk."""

    async def latest_expiry(self) -> float:
        """Of all entries; wall clock, seconds. 0 where there is none."""

    def records(self) -> AsyncIterator[Sequence[tuple[Entry, Vector | None]]]:
        """All entries in pages of bounded size, in no order; with their vector where it is the current embedder's."""

    async def delete(self, fingerprints: Sequence[str]) -> int: ...

    async def add_audit(self, line: bytes) -> None: ...

    async def audits(self, limit: int) -> Sequence[bytes]:
        """The youngest first; bounded, the oldest are forgotten."""


class NearStore(ResponseStore, Protocol):
    """A store that keeps its hottest entries in process."""

    def peek(self, fingerprint: str) -> Entry | None:
        """What is in process, without asking further."""

    def forget(self, fingerprint: str) -> None:
        """Lets go of what is in process: the store has another one now."""

    def banned(self, entry: Entry, vector: Vector | None = None) -> bool:
        """Whether a removal covers it; `vector`: its own, where it is known. `get` and `peek` return no such entry:
        this is for one that has been in hand for a while, or is about to be put."""


class VectorIndex(Protocol):
    """Nearest neighbours within one scope. Never returns an entry of another scope."""

    @property
    def size(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    async def add(self, fingerprint: str, scope: str, vector: Vector) -> None:
        """Adds or replaces."""

    def count(self, scope: str) -> int:
        """How many entries a search of this scope compares with; at once, and right up to what is just changing."""

    async def search(self, scope: str, vector: Vector, k: int) -> list[Neighbour]:
        """At most `k` neighbours, most similar first."""

    async def near(self, vector: Vector, similarity: float) -> Sequence[str]:
        """The fingerprints of all scopes within `similarity`, in [0, 1], of `vector`; for removals, not for requests:
        it looks at everything. What comes or goes meanwhile may or may not be among them."""

    async def remove(self, fingerprints: Sequence[str]) -> int:
        """Returns how many there were."""

    async def fingerprints(self) -> Sequence[str]:
        """Everything it holds, in no order."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A neighbour with the question its answer was made for."""

    question: str
    similarity: float  # in [0, 1]


@dataclass(frozen=True, slots=True)
class Opinion:
    """What a verifier thinks of serving a candidate's answer."""

    score: float  # rises with the chance of being right, at most 1: what a route's threshold is held against
    probability: float  # that the answer is right, in [0, 1], as calibrated on the verifier's own material
    veto: Refusal | None = None  # not to be served whatever the score
    doubt: Refusal | None = None  # what spoke against it most: the reason if it is refused


PriorBands = Sequence[tuple[float, float]]
"""By band of scores (`gateway.cache.control.ledger`): the share of neighbours that were wrong, and neighbours met a
request, on the material that a verifier was calibrated on."""


class Verifier(Protocol):
    """Judges whether the answer to a stored question answers this one. Whether it is served, the route decides."""

    @property
    def basis(self) -> str:
        """Names it and its weights: scores of different bases are never compared."""

    @property
    def prior(self) -> PriorBands: ...

    @property
    def floor(self) -> float:
        """The similarity in [0, 1] below which no neighbour is worth reading."""

    async def opinions(self, question: str, candidates: Sequence[Candidate]) -> list[Opinion]:
        """One a candidate, in order."""

    async def second_opinion(self, question: str, candidate: Candidate, first: Opinion) -> Opinion | None:
        """A closer and dearer look, for candidates near the threshold. None: it has none to give."""

    def close(self) -> None:
        """Lets go of threads and models."""

    def features(self, question: str, candidate: Candidate) -> Mapping[str, float]:
        """What it sees that sets the two apart, by name, to be shown; what is as between equals is left out."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What a route's policy demands of a semantic hit; exactly one of the two is set."""

    min_similarity: float | None = None  # a plain threshold in [0, 1]
    max_wrong_hits: float | None = None  # wrong semantic hits over all requests of the route, in [0, 1]


class Backend(Protocol):
    """A named service that answers."""

    @property
    def name(self) -> str: ...

    @property
    def http(self) -> bool:
        """Whether paths that no dialect knows can be passed through to it."""

    @property
    def inflight(self) -> int: ...

    async def send(self, request: Request) -> Response:
        """Sends the call and returns once the status and the first byte of the body are there.

        Raises `BackendError` when it fails before that. Closing the response's body cancels the call upstream.
        """

    async def models(self, request: Request) -> list[dict[str, Any]]:
        """The models it offers, as OpenAI model objects. Raises `BackendError`."""

    async def ready(self) -> bool:
        """A cheap health probe; never raises."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a dialect reads from a finished answer."""

    admission: Admission
    input_tokens: int  # 0 where the answer does not tell
    output_tokens: int


class TextAnswer(Protocol):
    """Puts plain text into a dialect's wire form, for backends that know nothing but text."""

    def start(self) -> Sequence[Event]:
        """What goes before the first text."""

    def delta(self, text: str) -> Event: ...

    def finish(self, reason: str, input_tokens: int, output_tokens: int) -> Sequence[Event]:
        """What ends the stream. `reason`: `stop` or `length`."""


class Dialect(Protocol):
    """A wire protocol that clients speak. Pure: no I/O, no clock."""

    @property
    def name(self) -> str: ...

    def claims(self, method: str, path: str) -> bool:
        """Whether requests like this are this dialect's. What nobody claims is passed through as it comes."""

    def parse(self, path: str, body: bytes) -> Call:
        """The call of a request that this dialect claims. Raises `BadRequest`."""

    def inspect(self, call: Call, payload: Sequence[bytes], streamed: bool) -> Inspection:
        """Judges a finished answer; `payload` as in `Entry`. Never raises: what it cannot read is `MALFORMED`."""

    def whole(self, call: Call, payload: Sequence[bytes]) -> bytes:
        """The event data of a complete stream -> the body that a non-stream client expects. Lossless.

        Raises `Malformed`.
        """

    def events(self, call: Call, whole: bytes) -> tuple[Event, ...]:
        """A whole body -> the events that a stream client expects. Lossless. Raises `Malformed`."""

    def renewed(self, call: Call, data: bytes, *, answer_id: str, created: int) -> bytes:
        """A whole body, or one event's data, as if it were made now: under an id of the dialect's form made of
        `answer_id`, and with `created`, seconds since the epoch. What has neither comes back as it is."""

    def shown(self, call: Call, event: Event) -> bool:
        """Whether this client asked for this event; the gateway itself may have asked for more."""

    def answer_text(self, call: Call, payload: Sequence[bytes], streamed: bool) -> str | None:
        """What a finished answer says, as plain text; None where it is not text alone. `payload` as in `Entry`."""

    def text_answer(self, call: Call, *, answer_id: str, created: int, model: str) -> TextAnswer: ...

    def embedding_answer(self, call: Call, vectors: Sequence[Sequence[float]], *, model: str) -> bytes:
        """The body that answers a call of operation `embeddings`."""

    def error(self, kind: str, message: str) -> bytes:
        """An error body in the dialect's own shape."""

    def error_events(self, kind: str, message: str) -> tuple[Event, ...]:
        """What ends a stream that broke after its first byte."""
