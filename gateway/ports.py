"""The Protocols that the pipeline depends on: clock, embedder, index, store, verifier. `gateway.adapters` has the real
implementations; the contract suites run against every implementation and every shared fake."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gateway.limits import Demand, Return, TakeResult
from gateway.messages import Call, EmbeddedVector, Embedding, Entry, Event, Neighbour, Outgoing, Refusal, Vector


class Clock(Protocol):
    def wall(self) -> float:
        """Seconds since the epoch; may jump."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; only differences mean something."""


class BodySource(Protocol):
    """A request's body, not yet read. One of the two may be used, once."""

    async def read(self) -> bytes:
        """All of it, decoded. Raises `PayloadTooLarge`, `RequestTimeout` or `BadRequest`."""

    def read_nowait(self) -> bytes | None:
        """What `read` returns, where it is here already; None where it has to be waited for. Raises as `read`."""

    async def buffer(self) -> None:
        """Waits until the whole body is here, or more of it than is buffered. Raises `RequestTimeout` or
        `BadRequest`."""

    def stream(self) -> AsyncIterator[bytes] | None:
        """As it comes, undecoded; None where there is none."""

    @property
    def buffered_body(self) -> bytes | None:
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


# Where answers, vectors and what was learnt are kept.
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
class EntrySize:
    """What the store says of an entry that it lists."""

    fingerprint: str
    size: int  # bytes of record and vector; 0: it is gone, and no longer listed
    worth: float  # US dollars that a hit saves
    expired: bool  # where it is gone: because its time was over


class SizedStore(Protocol):
    """Raises `StoreUnavailable`."""

    def weights(self) -> AsyncIterator[Sequence[EntrySize]]:
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


@dataclass(slots=True)
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

    def records(self, embedder: str) -> AsyncIterator[Sequence[tuple[Entry, EmbeddedVector | None]]]:
        """All entries in pages of bounded size, in no order; with their vector where they have one of that embedder."""

    async def delete(self, fingerprints: Sequence[str]) -> int: ...

    async def add_audit(self, line: bytes) -> None: ...

    async def audits(self, limit: int) -> Sequence[bytes]:
        """The youngest first; bounded, the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class ForeignEntry:
    """An entry that has a vector, and none of the embedder in use."""

    entry: Entry | None  # None: its record cannot be read
    version: str  # of the record; another one once the entry is answered anew


class MigrationStore(Protocol):
    """Entries from before the embedder was another one. Every method raises `StoreUnavailable`."""

    def foreign(self) -> AsyncIterator[Sequence[str]]:
        """The fingerprints of such entries, in pages of bounded size, in no order."""

    async def read(self, fingerprint: str) -> ForeignEntry | None:
        """None: it is gone, or no such entry."""

    async def replace(self, fingerprint: str, version: str, vector: Vector, keep: str = "") -> bool:
        """Gives the entry a vector of the embedder in use, if its record is still that version; its expiry stays, and
        so does a vector of the embedder `keep`. False, and nothing is written, where it is gone or has been answered
        anew."""

    async def settled(self) -> bool:
        """Whether lookups have gone over to the embedder in use, also before a restart."""

    async def settle(self) -> None:
        """They have: what was kept of the embedder before is dropped, once."""


class NearbyStore(ResponseStore, Protocol):
    """A store that keeps its hottest entries in process."""

    def peek(self, fingerprint: str) -> Entry | None:
        """What is in process, without asking further."""

    def forget(self, fingerprint: str) -> None:
        """Lets go of what is in process: the store has another one now."""

    def banned(self, entry: Entry, vector: Vector | None = None, asked: float = ...) -> bool:
        """Whether a removal covers it; `vector`: its own, where it is known; `asked`: when its backend was, by the
        monotonic clock, of one that is fetched here. `get` and `peek` return no such entry: this is for one that has
        been in hand for a while, or is about to be put."""


class VectorIndex(Protocol):
    """Nearest neighbours within one scope. Never returns an entry of another scope.

    Everything that waits raises `IndexUnavailable` where the index does not answer."""

    @property
    def shared(self) -> bool:
        """Whether it lies outside, and all gateways on the store use it: then who stores an answer writes its vector,
        and nobody fills it from the store, follows the others for it or compares it with the store."""

    @property
    def size(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def placed(self) -> int | None:
        """Entries that are searched on a device beside the CPU; None: it has none."""

    async def add(self, fingerprint: str, scope: str, vector: Vector, expires: float = math.inf) -> None:
        """Adds or replaces. After `expires` (wall clock, seconds) it may be forgotten."""

    async def add_all(self, vectors: Sequence[StoredVector]) -> None:
        """Adds or replaces several, for less than one by one; what does not fit is left out."""

    def holds(self, fingerprint: str) -> bool:
        """Whether it is there; at once, and right up to what is just changing. False: a shared index cannot tell."""

    def count(self, scope: str) -> int:
        """How many entries a search of this scope compares with; at once, and right up to what is just changing, or of
        a shared index to what it was a minute ago."""

    async def search(self, scope: str, vector: Vector, k: int) -> list[Neighbour]:
        """At most `k` neighbours, most similar first."""

    def search_nowait(self, scope: str, vector: Vector, k: int) -> list[Neighbour] | None:
        """What `search` finds, where that takes microseconds; None where it has to be waited for."""

    async def near(self, vector: Vector, similarity: float) -> Sequence[str]:
        """The fingerprints of all scopes within `similarity`, in [0, 1], of `vector`; for removals, not for requests:
        it looks at everything. What comes or goes meanwhile may or may not be among them."""

    async def remove(self, fingerprints: Sequence[str]) -> int:
        """Returns how many there were."""

    async def fingerprints(self) -> Sequence[str]:
        """Everything it holds, in no order."""


# Whether the answer to a stored question answers this one.
@dataclass(slots=True)
class StoredCandidate:
    """A neighbour with the question its answer was made for."""

    question: str
    similarity: float  # in [0, 1]


@dataclass(slots=True)
class Opinion:
    """What a verifier thinks of serving a candidate's answer."""

    score: float  # rises with the chance of being right, at most 1: what a route's threshold is held against
    probability: float  # that the answer is right, in [0, 1], as calibrated on the verifier's own material
    veto: Refusal | None = None  # not to be served whatever the score
    doubt: Refusal | None = None  # what spoke against it most: the reason if it is refused


PriorBands = Sequence[tuple[float, float]]
"""By band of scores (`gateway.cache.threshold.ledger`): the share of neighbours that were wrong, and neighbours met a
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

    def opinions(self, question: str, candidates: Sequence[StoredCandidate]) -> list[Opinion]:
        """One a candidate, in order."""

    async def second_opinion(self, question: str, candidate: StoredCandidate, first: Opinion) -> Opinion | None:
        """A closer and dearer look, for candidates near the threshold. None: it has none to give."""

    def close(self) -> None:
        """Lets go of threads and models."""

    def features(self, question: str, candidate: StoredCandidate) -> Mapping[str, float]:
        """What it sees that sets the two apart, by name, to be shown; what is as between equals is left out."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What a route's policy demands of a semantic hit; exactly one of the two is set."""

    min_similarity: float | None = None  # a plain threshold in [0, 1]
    max_wrong_hits: float | None = None  # wrong semantic hits over all requests of the route, in [0, 1]


# Models that an upstream hosts, where it says how they are and lets them be loaded.
class ModelCondition(StrEnum):
    """Of a model at an upstream, as far as calls and probes have told."""

    READY = "ready"
    DEAD = "dead"  # its process has died; the server still says that it is ready
    ABSENT = "absent"  # the server does not have it, or has it not loaded


class HostedModels(Protocol):
    """The models of one upstream."""

    @property
    def server(self) -> str:
        """Its address: what is the same for all backends that use it."""

    @property
    def conditions(self) -> Mapping[str, ModelCondition]:
        """By the model's name."""

    async def wrong(self) -> None:
        """Returns while a model is not ready."""

    def told(self, name: str, condition: ModelCondition) -> None:
        """What a probe has told."""

    async def loaded(self, name: str) -> bool:
        """What the server says; never raises."""

    async def answers(self, name: str) -> bool:
        """What one short call says, and `conditions` by it; never raises."""

    async def reload(self, name: str) -> None:
        """Unloads it and loads it. Raises `ModelControlDisabled` where the server allows neither, `BackendError` where
        it cannot be loaded; it is absent then."""


# What gateways on one store tell each other, through the store.
class ChangeKind(StrEnum):
    """What has changed in the store. The value is a field's name in the log."""

    VECTORS = "vectors"  # entries with a vector came, or entries went: fingerprints
    RECORDS = "records"  # entries came that no index finds: fingerprints
    COUNTEREXAMPLE = "counterexample"  # its key
    BANS = "bans"  # something was removed; nothing further
    GOSSIP = (
        "said"  # what a gateway tells the others beside what it stores: base64 of msgpack, a topic and what it needs
    )


@dataclass(frozen=True, slots=True)
class StoreChange:
    """`kind` None: of a gateway of another version, which this one does not understand."""

    kind: ChangeKind | None
    by: str  # the gateway that made it
    at: float  # seconds since the epoch, by the store's clock
    value: str
    position: str = ""  # of itself in the log

    @property
    def names(self) -> list[str]:
        """The fingerprints."""
        return self.value.split()


@dataclass(frozen=True, slots=True)
class EntryPage:
    """What followed upon a position."""

    changes: Sequence[StoreChange]
    position: str  # behind them
    missed: bool  # something between the position that was asked for and these is no longer there
    more: bool  # others come after them
    added: int  # changes that were ever made, the ones after these included
    kept: int  # how many of those are still there
    now: float  # seconds since the epoch, by the store's clock


@dataclass(frozen=True, slots=True)
class Published:
    """A policy that one of the gateways on a store was told to put in force."""

    hash: str
    files: Mapping[str, str]  # name -> content
    author: str
    comment: str
    at: float  # seconds since 1970, by the clock of the gateway that was told


Lineage = frozenset[str]
"""Hashes of policies that gateways on a store have had in common, and have left."""


def number_of(position: str) -> tuple[int, int]:
    """What positions are compared by."""
    milliseconds, _, sequence = position.partition("-")
    return int(milliseconds), int(sequence or 0)


class ChangeLog(Protocol):
    """Changes in the order in which the store has seen them; the oldest are forgotten. Every method raises
    `StoreUnavailable`."""

    async def end(self) -> str:
        """The position behind the youngest change."""

    async def oldest(self) -> str:
        """The position behind the oldest change that is still there."""

    async def read(self, after: str) -> EntryPage: ...

    async def wait(self, after: str) -> None:
        """Returns once there is a change after `after`, or after a while."""


class GossipLog(ChangeLog, Protocol):
    """A log in which gateways talk, beside what they store. Raises `StoreUnavailable`."""

    async def say(self, values: Sequence[str]) -> str:
        """As changes of kind `GOSSIP`, in order -> the position of the last one. There must be one."""


class Replies(Protocol):
    """Answers to what one gateway has asked all others. Raises `StoreUnavailable`."""

    async def reply(self, name: str, answer: bytes) -> None: ...

    async def wait(self, name: str, seconds: float) -> bytes | None:
        """The first one; None where there is none in that time."""


# Where the dashboard's history outlives a restart.
Slot = tuple[int, int]
"""The length of its resolution's slots in seconds, and its number."""


class TimelineStore(Protocol):
    """All gateways on a store write into it, each its own part of a slot. Every method may raise `StoreUnavailable`."""

    @property
    def name(self) -> str:
        """Of this gateway, in this run of it."""

    async def write(self, parts: Mapping[Slot, Mapping[str, float]], keep: Mapping[int, int]) -> None:
        """Replaces this gateway's parts. `keep`: seconds that slots of each length are kept."""

    async def read(self, slots: Iterable[Slot]) -> Mapping[Slot, Mapping[str, Mapping[str, float]]]:
        """The parts of all gateways by their names; a slot that nobody has written is left out."""


# Calls of one dialect before a backend that speaks another.
class Translated(Protocol):
    """One call in the backend's dialect, and the way back of its answer. Pure, but for what it remembers of the stream:
    each answer takes its own."""

    @property
    def outgoing(self) -> Outgoing: ...

    def whole(self, data: bytes) -> bytes:
        """The backend's body of status 200 -> the client's. Raises `MalformedResponse`."""

    def events(self, event: Event) -> Sequence[Event]:
        """The next event of the backend's stream -> what the client is told of it. Raises `MalformedResponse`."""

    def error(self, status: int, data: bytes) -> bytes:
        """The backend's body of another status, whatever it is -> an error in the client's shape."""


class Translation(Protocol):
    """From one dialect to another."""

    def __call__(self, call: Call, *, model: str | None, created: int) -> Translated:
        """`model`: the name that the backend is asked for; None: the client's. `created`: seconds since the epoch.
        Raises `BadRequest` on what the other dialect cannot say."""


# Where limits are counted, for all gateways that share it.
class QuotaStore(Protocol):
    """By its own clock. Every method raises `StoreUnavailable`. What is counted expires by itself."""

    async def take(self, demands: Sequence[Demand]) -> TakeResult:
        """Meets all demands at once, or none."""

    async def settle(self, returns: Sequence[Return]) -> None:
        """Puts right what was taken."""

    async def beat(self, gateway: str, places: Sequence[tuple[str, str]]) -> int:
        """Says that this gateway is alive, and keeps its places (key, member), which are free otherwise after a while.
        Returns how many gateways are alive, this one included."""


# So near the threshold, a closer look is worth its milliseconds: of the lookups of the
# development stream 11 % were, of banking77, where most questions have a neighbour, 28 %.
GRAY = 0.05


VERBATIM = Opinion(1.0, 1.0)
"""Of a candidate whose question differs in spaces alone."""


@dataclass(slots=True)
class Evaluated:
    """A candidate held against its route's threshold. `reason` None: it may be served."""

    similarity: float
    opinion: Opinion
    threshold: float
    score: float  # the opinion's, moved by what the route has learnt near this question
    probability: float  # that the stored answer is right, by the route's own labels
    reason: Refusal | None

    @property
    def verbatim(self) -> bool:
        """The very same words: there is nothing to be doubted, and nothing to be learnt."""
        return self.opinion is VERBATIM

    @property
    def gray(self) -> bool:
        """Neither clear: too near the threshold for the first opinion."""
        return self.opinion.veto is None and not self.verbatim and abs(self.score - self.threshold) < GRAY


@dataclass(slots=True)
class Judgement(Evaluated):
    """The same of a stored answer and a question."""

    entry: Entry
    question: str  # that was asked
    vector: Vector  # of it


MAX_COUNTEREXAMPLES = 100_000  # some 12 MB; beyond it the oldest are forgotten


class ComplexityScorer(Protocol):
    """How hard a request is for the light model."""

    @property
    def basis(self) -> str:
        """Names the weights and inputs of its scores; scores of another basis do not compare with them."""

    def score(self, text: str, max_tokens: int | None, vector: Vector | None) -> float:
        """In [0, 1]. `vector`: the embedding of `text`; None where there is none."""
