"""The Protocols that the pipeline depends on: clock, embedder, index, store, verifier.

`gateway.adapters` has the real implementations. The contract suites run against every implementation and every shared
fake.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from gateway.entries import EmbeddedVector, Embedding, Entry, Neighbour, Vector
from gateway.outcomes import Refusal
from gateway.scores import ScoredPrompt


class Clock(Protocol):
    def wall(self) -> float:
        """Return seconds since the epoch; may jump."""

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back; only differences have a meaning."""


class BodyReader(Protocol):
    """Reads a body piece by piece on its way to a backend."""

    @property
    def is_known(self) -> bool:
        """Whether what it looks for is known, or the body has ended."""

    def feed(self, data: bytes) -> None:
        """Read the next piece; an empty one is the end. Raise `GatewayError` if the body may not pass."""


class BodySource(Protocol):
    """The unread body of a request. Use either `read` or `stream`, once."""

    async def read(self) -> bytes:
        """Return the whole body, decoded. Raise `PayloadTooLarge`, `RequestTimeout` or `BadRequest`."""

    def read_nowait(self) -> bytes | None:
        """Return the result of `read` if the body has arrived, else None. Raise as `read`."""

    async def buffer(self, *, whole: bool = False) -> None:
        """Wait until the whole body, or more of it than the buffer holds, has arrived. Raise `RequestTimeout` or
        `BadRequest`. With `whole` the buffer holds as much as `read` would return."""

    async def look_ahead(self, reader: BodyReader, limit: int) -> bool:
        """Show the body to `reader` as it arrives, undecoded, and keep what is read for `stream`. Return once `reader`
        knows enough; False: the first `limit` bytes did not suffice. Raise as `buffer`, and what the reader raises.

        `reader` is also shown the rest, when that is read.
        """

    def stream(self) -> AsyncIterator[bytes] | None:
        """Return the body undecoded, as it arrives; None if there is none."""

    @property
    def buffered_body(self) -> bytes | None:
        """The content of `stream`, if all of it has arrived; empty if there is no body; else None."""

    @property
    def replayable(self) -> bool:
        """Whether `stream` yields the same body each time: it has arrived completely, or there is none."""


class TextEncoder(Protocol):
    """The synchronous half of an embedder. One thread at a time calls it; a call may take milliseconds."""

    @property
    def fingerprint(self) -> str:
        """The name of model, weights and quantisation. Vectors of different fingerprints are never compared."""

    @property
    def dimension(self) -> int: ...

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        """Return one embedding per text, in order. Vectors are float32 of shape (dimension,) and unit length."""


class ImmediateEncoder(TextEncoder, Protocol):
    """A text encoder that takes microseconds."""

    def encode_text(self, text: str) -> Embedding: ...


@dataclass(frozen=True, slots=True)
class EncoderCpu:
    """CPU seconds of an encoder's passes since the start, by what the passes were for."""

    requests_s: float = 0.0
    learning_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EncoderQueue:
    """The work of requests before an encoder or a cross-encoder. Work that no client waits for does not count."""

    wait_s: float = 0.0  # that the waiting work is likely to take
    pass_s: float = 0.0  # that the work of the pass in progress is likely to take, from its beginning
    standing_s: float = 0.0  # since the queue was last empty


class Embedder(Protocol):
    @property
    def fingerprint(self) -> str: ...

    @property
    def dimension(self) -> int: ...

    async def embed(self, text: str, owner: str = "") -> Embedding:
        """Return the embedding of a text. Raise `EmbedderUnavailable` if that is not possible within the embedder's
        bounds; never hang.

        `owner` is the party that may learn, from the time it takes, that the text was embedded before (see
        `cache.keys.owner_of`). Empty: the gateway itself.
        """

    def embed_nowait(self, text: str, owner: str = "") -> Embedding | None:
        """Return the result of `embed` if that takes microseconds, else None."""


OwnedText = tuple[str, str]
"""An owner (see `Embedder.embed`) and a text."""


class LearningEmbedder(Embedder, Protocol):
    """An embedder that serves waiting clients first and all other work when it is idle, and measures both."""

    async def embed_idle(self, texts: Sequence[str]) -> list[Embedding]:
        """Return one embedding per text, in order, made while no request's text waits. Raise `EmbedderUnavailable`."""

    async def embed_deferred(self, texts: Sequence[OwnedText]) -> list[Embedding]:
        """Return the same as `embed` for each owner and text, made while no request's text waits: several in one pass.

        Raise `EmbedderUnavailable`.
        """

    @property
    def cpu(self) -> EncoderCpu:
        """The CPU that the passes took, where they run in a thread of their own."""

    @property
    def queue(self) -> EncoderQueue:
        """The queue at this moment."""


class EagerEmbedder(Embedder, Protocol):
    def begin(self, text: str, owner: str = "") -> None:
        """Hint that a call of `embed` with the same arguments is likely to follow. May do nothing."""


# Stores of answers, vectors and learning.
@dataclass(frozen=True, slots=True)
class StoredVector:
    """A vector in the store, from which the index can be rebuilt."""

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
    """The store's information on an entry that it lists."""

    fingerprint: str
    size: int  # bytes of record and vector; 0 if deleted, and no longer listed
    worth: float  # US dollars that a hit saves
    expired: bool  # if deleted: whether its time was over


class SizedStore(Protocol):
    """A store that lists its entries with their sizes. Raises `StoreUnavailable`."""

    def weights(self) -> AsyncIterator[Sequence[EntrySize]]:
        """Yield all entries in pages of bounded size, in no order. Entries found to be deleted are removed from the
        list."""


class ResponseStore(Protocol):
    """The source of truth. Every method raises `StoreUnavailable` if the store does not answer in time."""

    async def get(self, fingerprint: str) -> Entry | None: ...

    async def put(self, entry: Entry, vector: Vector | None, lease: int = 0) -> bool:
        """Store or replace an entry. The store deletes it at `entry.expires`.

        `lease` is the token under which the answer was fetched, 0 for none; the lease ends. Return False, and write
        nothing, if that lease was lost, because the stored entry may be newer.
        """

    async def amend(self, old: Entry, new: Entry) -> bool:
        """Replace the record of an entry if it is still `old`. Vector and expiry stay. Return whether it was."""

    async def delete(self, fingerprints: Sequence[str]) -> int:
        """Delete entries. Return how many existed."""

    def vectors(self) -> AsyncIterator[StoredVector]:
        """Yield every stored vector of the current embedder, in no order."""

    def fingerprints(self) -> AsyncIterator[tuple[str, float]]:
        """Yield every entry's fingerprint and expiry (wall clock, seconds), in no order, without reading the entries.

        A fingerprint may come twice. An entry that has just expired or been evicted may still come.
        """

    async def vectors_of(self, fingerprints: Sequence[str]) -> Sequence[StoredVector]:
        """Return the stored vectors of these entries."""

    async def stats(self) -> StoreStats: ...


class VectorStore(ResponseStore, Protocol):
    """A store whose entries may lack a vector, or have that of another embedder. Raises `StoreUnavailable`."""

    async def foreign(self, fingerprints: Sequence[str]) -> set[str]:
        """Return those of these entries that have a vector, but none of the current embedder."""

    def without_vector(self) -> AsyncIterator[Sequence[str]]:
        """Yield the fingerprints of entries without any vector, in pages of bounded size, in no order."""

    async def add_vector(self, entry: Entry, vector: Vector) -> bool:
        """Add the vector to an entry, if its record is still `entry`. Return whether it was."""


@dataclass(slots=True)
class Claim:
    """The answer to a request for a lease. At most one of the two fields is not 0. Both are 0 if an entry exists."""

    token: int  # of the granted lease, or 0; higher than the tokens of all leases granted before
    holder: int  # token of the lease that another gateway holds, or 0


class Leases(Protocol):
    """Leases: the right to call a backend for a fingerprint, among all gateways on a store. They expire.

    Every method raises `StoreUnavailable` if the store does not answer in time.
    """

    async def acquire(self, fingerprint: str, since: int | None) -> Claim:
        """Grant a lease, unless another one is in force or an entry exists that was put under token `since` or later.

        With `since` 0 any entry prevents the lease. With None no entry does.
        """

    async def look_up(self, fingerprint: str) -> Entry | Claim:
        """Return the entry. If there is none, ask for the lease in the same round trip.

        A claim without a token and without a holder: the entry is unreadable.
        """

    async def renew(self, leases: Mapping[str, int]) -> Sequence[str]:
        """Prolong leases (fingerprint -> token). Return the fingerprints of those that are lost; they stay lost."""

    async def release(self, leases: Mapping[str, int]) -> None:
        """End leases, as far as they are still in force."""

    async def holders(self, fingerprints: Sequence[str]) -> Sequence[int]:
        """Return the token of each lease in force, 0 for none."""


class CounterexampleStore(Protocol):
    """Counterexamples that clients reported, for all gateways on a store. Raises `StoreUnavailable`."""

    async def add_counterexample(self, key: str) -> None: ...

    async def counterexamples(self) -> list[str]:
        """Return the keys, oldest first. Their number is bounded: the oldest are deleted."""


class LinkStore(Protocol):
    """Links between questions and entries (`gateway.cache.links`), for all gateways on a store. Raises
    `StoreUnavailable`."""

    async def add_links(self, keys: Sequence[str]) -> None: ...

    async def links(self) -> list[str]:
        """Return the keys of links and turns, oldest first. Their number is bounded: the oldest are deleted."""


class TurnStore(Protocol):
    """Turns that semantic hits have answered (`gateway.cache.links`), for all gateways on a store. Raises
    `StoreUnavailable`."""

    async def add_turns(self, keys: Sequence[str]) -> None:
        """Add turns by their keys. `LinkStore.links` returns them with the links. Their number is bounded."""


class RelationStore(CounterexampleStore, LinkStore, TurnStore, Protocol):
    """The counterexamples, the links and the turns of all gateways on a store. Raises `StoreUnavailable`."""


class LearningStore(Protocol):
    """The learning state of routes, which survives a restart. Raises `StoreUnavailable`."""

    async def put_learning(self, route: str, snapshot: bytes) -> None:
        """Store or replace the state of a route. Beyond some hundreds of routes, others are deleted."""

    async def learning(self, route: str) -> bytes | None: ...


class RemovalStore(Protocol):
    """The part of the store that purges use. Every method raises `StoreUnavailable`."""

    @property
    def record_version(self) -> int:
        """The version of the records that it reads. It rises with each version."""

    async def version(self) -> bytes:
        """Return a value that changes with the bans; cheap."""

    async def bans(self) -> Sequence[bytes]: ...

    async def write_bans(self, bans: Mapping[str, bytes], drop: Sequence[str]) -> bool:
        """Add or replace bans by id, and delete those in `drop`. Return whether the change is known to be on disk."""

    async def latest_expiry(self) -> float:
        """Return the latest expiry of all entries; wall clock, seconds. 0 if there is none."""

    def records(
        self, embedder: str, *, unreadable: Callable[[str], None] | None = None
    ) -> AsyncIterator[Sequence[tuple[Entry, EmbeddedVector | None]]]:
        """Yield all entries in pages of bounded size, in no order. Each comes with its vector, if it has one of that
        embedder.

        With `unreadable`, yield also the entries of former versions, which no request is served. It is called with the
        fingerprint of each entry that cannot be read.
        """

    async def delete(self, fingerprints: Sequence[str]) -> int:
        """Delete entries, also those of former versions. Return how many existed."""


@dataclass(frozen=True, slots=True)
class ForeignEntry:
    """An entry that has a vector, but none of the embedder in use."""

    entry: Entry | None  # None if its record is unreadable
    version: str  # the record's; changes when the entry is fetched again


class MigrationStore(Protocol):
    """Access to entries with vectors of a former embedder. Every method raises `StoreUnavailable`."""

    def foreign(self) -> AsyncIterator[Sequence[str]]:
        """Yield the fingerprints of such entries, in pages of bounded size, in no order."""

    async def read(self, fingerprint: str) -> ForeignEntry | None:
        """Return the entry; None if it is gone or has no foreign vector."""

    async def replace(self, fingerprint: str, version: str, vector: Vector, keep: str = "") -> bool:
        """Give the entry a vector of the embedder in use, if its record still has that version.

        The expiry stays, and so does a vector of the embedder `keep`. Return False, and write nothing, if the entry is
        gone or was fetched again.
        """

    async def is_settled(self) -> bool:
        """Return whether lookups use the embedder in use, also before a restart."""

    async def settle(self) -> None:
        """Record that lookups have switched, and drop the former embedder's data once."""


class NearbyStore(ResponseStore, Protocol):
    """A store that keeps its hottest entries in process."""

    def peek(self, fingerprint: str) -> Entry | None:
        """Return the entry if it is in process, without further lookups."""

    def admit(self, entry: Entry) -> Entry | None:
        """Keep an entry that was read from the store, and return it, or None if it may not be served."""

    def forget(self, fingerprint: str) -> None:
        """Drop the entry from the process, because the store has another one now."""

    def banned(self, entry: Entry, vector: Vector | None = None, request_monotonic: float = ...) -> bool:
        """Return whether a purge covers the entry.

        `vector` is its own, if known. `request_monotonic` is the time of its backend call by the monotonic clock, for
        an entry fetched here. `get` and `peek` never return such an entry. This check is for an entry held for a while,
        or about to be stored.
        """


class VectorIndex(Protocol):
    """Nearest neighbours within one scope. It never returns an entry of another scope.

    Every method that waits raises `IndexUnavailable` if the index does not answer.
    """

    @property
    def shared(self) -> bool:
        """Whether the index is external and common to all gateways on the store.

        The gateway that stores an answer then writes its vector. No gateway fills the index from the store, replicates
        it or compares it with the store.
        """

    @property
    def size(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def entries_on_device(self) -> int | None:
        """The number of entries on a device other than the CPU, or None if there is no device."""

    async def add(self, fingerprint: str, scope: str, vector: Vector, expires: float = math.inf) -> None:
        """Add or replace a vector. After `expires` (wall clock, seconds) it may be dropped."""

    async def add_all(self, vectors: Sequence[StoredVector]) -> None:
        """Add or replace several vectors, at less cost than one by one. Vectors that do not fit are left out."""

    def holds(self, fingerprint: str) -> bool:
        """Return at once whether the entry is present, apart from changes in progress. A shared index cannot tell and
        returns False."""

    def count(self, scope: str) -> int:
        """Return at once how many entries a search of this scope compares. The number excludes changes in progress; for
        a shared index it is up to a minute old."""

    async def search(self, scope: str, vector: Vector, k: int) -> list[Neighbour]:
        """Return at most `k` neighbours, most similar first."""

    def search_nowait(self, scope: str, vector: Vector, k: int) -> list[Neighbour] | None:
        """Return the result of `search` if that takes microseconds, else None."""

    async def near(self, vector: Vector, similarity: float) -> Sequence[str]:
        """Return the fingerprints, from all scopes, within `similarity` (in [0, 1]) of `vector`.

        It scans everything, so it is for purges and not for requests. Entries that change meanwhile may or may not be
        included.
        """

    async def remove(self, fingerprints: Sequence[str]) -> int:
        """Remove entries. Return how many existed."""

    async def fingerprints(self) -> Sequence[str]:
        """Return all fingerprints, in no order."""


# Decide whether the answer to a stored question also answers this one.
@dataclass(slots=True)
class StoredCandidate:
    """A neighbour with the question that its answer was made for."""

    question: str
    similarity: float  # in [0, 1]
    entries: int = 0  # of the scope that it was found in; 0: not known, and judged as one of many


@dataclass(slots=True)
class Opinion:
    """A verifier's opinion on serving a candidate's answer."""

    score: float  # rises with the probability of being right, at most 1; a route compares it with its threshold
    probability: float  # that the answer is right, in [0, 1], as calibrated on the verifier's own data
    veto: Refusal | None = None  # not to be served at any score
    doubt: Refusal | None = None  # the strongest objection: the reason if the candidate is refused
    ceiling: float | None = None  # the most that a second opinion could say; None if this opinion is final
    # Of the first opinion, in [0, 1]: the second opinion weighs them.
    trees_doubt: float = 1.0
    words_shared: float = 0.0  # share of the words of both questions that both have
    is_same: bool = False  # both count as the same text, so that no label of other questions moves the score
    is_of_few: bool = False  # the weights of few entries gave the score (`gateway.cache.verifiers`)
    least: float = -math.inf  # the least that a second opinion is expected to say
    estimate: Opinion | None = None  # stands where the second opinion cannot change the decision; None: this one does


PriorBands = Sequence[tuple[float, float]]
"""Per band of scores (`gateway.cache.threshold.ledger`), on the verifier's calibration data: the share of wrong
neighbours, and the neighbours per request."""


class Verifier(Protocol):
    """`Verifier` judges whether the answer to a stored question answers this one. The route decides whether to serve
    it."""

    @property
    def basis(self) -> str:
        """The name of the verifier and its weights. Scores of different bases are never compared."""

    @property
    def prior(self) -> PriorBands: ...

    @property
    def floor(self) -> float:
        """The similarity in [0, 1] below which a neighbour is not read at all."""

    def opinions(self, question: str, candidates: Sequence[StoredCandidate]) -> list[Opinion]:
        """Return one opinion per candidate, in order."""

    async def second_opinion(self, question: str, candidate: StoredCandidate, first: Opinion) -> Opinion | None:
        """Return a more precise and more expensive opinion, for candidates that it could get served. Return None if it
        is not available."""

    def close(self) -> None:
        """Release threads and models."""

    def features(self, question: str, candidate: StoredCandidate) -> Mapping[str, float]:
        """Return the differences that it sees between the two questions, by name, for display. Features that equal
        questions share are left out."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A route's condition for a semantic hit; exactly one of the two is set."""

    min_similarity: float | None = None  # a plain threshold in [0, 1]
    max_wrong_hits: float | None = None  # wrong semantic hits per request of the route, in [0, 1]


class ModelCondition(StrEnum):
    """The state of a model on an upstream, as known from calls and probes."""

    READY = "ready"
    DEAD = "dead"  # its process has died, although the server reports it ready
    ABSENT = "absent"  # not on the server, or not loaded


# Messages between gateways on one store, through the store.
class ChangeKind(StrEnum):
    """The kind of a change in the store. The value is the field's name in the log."""

    VECTORS = "vectors"  # entries with a vector were added, or entries removed: fingerprints
    RECORDS = "records"  # entries were added that no index finds: fingerprints
    COUNTEREXAMPLE = "counterexample"  # its key
    LINKS = "links"  # their keys
    BANS = "bans"  # a purge; no value
    GOSSIP = (
        "said"  # a message to the other gateways that is not about stored entries: base64 of msgpack, topic and content
    )


@dataclass(frozen=True, slots=True)
class StoreChange:
    """A change in the store. `kind` is None if another version wrote it and this one cannot read it."""

    kind: ChangeKind | None
    by: str  # the gateway that made it
    at: float  # seconds since the epoch, by the store's clock
    value: str
    position: str = ""  # its own position in the log

    @property
    def names(self) -> list[str]:
        """The fingerprints."""
        return self.value.split()


@dataclass(frozen=True, slots=True)
class EntryPage:
    """The changes after a position."""

    changes: Sequence[StoreChange]
    position: str  # after the last of them
    missed: bool  # changes between the requested position and these are gone
    more: bool  # more changes follow
    added: int  # total of changes ever made, including the later ones
    kept: int  # how many of them still exist
    now: float  # seconds since the epoch, by the store's clock


@dataclass(frozen=True, slots=True)
class PublishedPolicy:
    """A policy that an operator published through one of the gateways on a store."""

    hash: str
    files: Mapping[str, str]  # name -> content
    author: str
    comment: str
    at: float  # seconds since 1970, on the clock of that gateway


Lineage = frozenset[str]
"""Hashes of policies that the gateways on a store shared before and have replaced."""


def number_of(position: str) -> tuple[int, int]:
    """Return the sort key of a position."""
    milliseconds, _, sequence = position.partition("-")
    return int(milliseconds), int(sequence or 0)


class MetricsStore(Protocol):
    """The port to the metrics of other gateways on the store. Both methods raise `StoreUnavailable`."""

    async def publish(self, figures: bytes, keep_s: int) -> None:
        """Publish this gateway's metrics. Those of gateways silent for `keep_s` seconds are dropped."""

    async def others(self) -> list[bytes]:
        """Return the metrics that the other gateways have published."""


class ChangeJournal(Protocol):
    """The writer of the log of changes, for the other gateways on the store."""

    @property
    def gateway(self) -> str:
        """The name of the writer."""

    def append(self, pipe: Any, kind: ChangeKind, *names: str) -> None:
        """Append a change to a pipeline of the client, which the caller executes."""

    def command(self, kind: ChangeKind, *names: str) -> list[str | int]:
        """Return the change as the words of a command, for scripts."""


class ChangeLog(Protocol):
    """Changes in the order of the store; the oldest are dropped. Every method raises `StoreUnavailable`."""

    async def end(self) -> str:
        """Return the position after the youngest change."""

    async def oldest(self) -> str:
        """Return the position after the oldest change that still exists."""

    async def read(self, after: str) -> EntryPage: ...

    async def wait(self, after: str) -> None:
        """Return once there is a change after `after`, or after a while."""


class GossipLog(ChangeLog, Protocol):
    """A change log that also has messages between gateways. Raises `StoreUnavailable`."""

    async def append(self, values: Sequence[str]) -> str:
        """Append changes of kind `GOSSIP`, in order, and return the position of the last one. `values` must not be
        empty."""


class Replies(Protocol):
    """Answers to a question that one gateway put to all others. Raises `StoreUnavailable`."""

    async def reply(self, name: str, answer: bytes) -> None: ...

    async def wait(self, name: str, seconds: float) -> bytes | None:
        """Return the first answer; None if none comes in that time."""


# The store of the dashboard's history, which survives a restart.
Slot = tuple[int, int]
"""The length of the slots of its resolution in seconds, and its number."""


class TimelineStore(Protocol):
    """The common history of all gateways on a store. Each gateway writes its own part of a slot. Every method may raise
    `StoreUnavailable`."""

    @property
    def name(self) -> str:
        """The name of this gateway in this run."""

    async def write(self, parts: Mapping[Slot, Mapping[str, float]], keep: Mapping[int, int]) -> None:
        """Replace this gateway's parts. `keep` has the seconds to keep slots of each length."""

    async def read(self, slots: Iterable[Slot]) -> Mapping[Slot, Mapping[str, Mapping[str, float]]]:
        """Return the parts of all gateways, by gateway name. Slots that nobody has written are left out."""


VERBATIM = Opinion(1.0, 1.0)
"""The opinion on a candidate whose question differs only in white space."""

LINKED = Opinion(1.0, 1.0)
"""The opinion on a candidate that a link names."""


@dataclass(slots=True)
class EvaluatedCandidate:
    """A candidate compared with its route's threshold. `reason` is None if it may be served."""

    similarity: float
    opinion: Opinion
    threshold: float
    score: float  # the opinion's score, adjusted by the route's learning near this question
    probability: float  # that the stored answer is right, by the route's own labels
    reason: Refusal | None

    @property
    def verbatim(self) -> bool:
        """Whether the words are identical: then there is nothing to doubt and nothing to learn."""
        return self.opinion is VERBATIM

    @property
    def linked(self) -> bool:
        """Whether a link names the entry: then its score says nothing, and teaches nothing."""
        return self.opinion is LINKED

    @property
    def final(self) -> bool:
        """Whether no second opinion is outstanding. Only final scores count for the route's figures."""
        return self.opinion.ceiling is None


@dataclass(slots=True)
class Judgement(EvaluatedCandidate):
    """An evaluated candidate, with the stored answer and the question."""

    entry: Entry
    question: str  # the client's question
    vector: Vector  # the question's
    subjects: tuple[str, ...] = ()  # digests of those who asked (`gateway.subjects`)
    client: str = ""  # digest of the credential that asked, 16 hex digits, or "" if not known


MAX_COUNTEREXAMPLES = 100_000  # some 12 MB; beyond it the oldest are dropped

MAX_LINKS = 100_000  # 28 to 39 MB in a gateway; beyond it the oldest are dropped
MAX_TURNS = 50_000  # that semantic hits answered: 10 MB in a gateway; beyond it the oldest are dropped


class ComplexityScorer(Protocol):
    """`ComplexityScorer` rates how hard a request is for the light model."""

    @property
    def basis(self) -> str:
        """The name of the weights and inputs of its scores. Scores of different bases do not compare."""

    def judge(self, text: str, max_tokens: int | None, vector: Vector | None) -> ScoredPrompt:
        """Return the complexity of a text. `vector` is the embedding of `text`, None if there is none."""
