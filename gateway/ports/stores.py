"""Where answers, vectors and what was learnt are kept."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.messages import Entry, Neighbour, Placed, Vector


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

    def records(self, embedder: str) -> AsyncIterator[Sequence[tuple[Entry, Placed | None]]]:
        """All entries in pages of bounded size, in no order; with their vector where they have one of that embedder."""

    async def delete(self, fingerprints: Sequence[str]) -> int: ...

    async def add_audit(self, line: bytes) -> None: ...

    async def audits(self, limit: int) -> Sequence[bytes]:
        """The youngest first; bounded, the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """An entry that has a vector, and none of the embedder in use."""

    entry: Entry | None  # None: its record cannot be read
    version: str  # of the record; another one once the entry is answered anew


class MigrationStore(Protocol):
    """Entries from before the embedder was another one. Every method raises `StoreUnavailable`."""

    def foreign(self) -> AsyncIterator[Sequence[str]]:
        """The fingerprints of such entries, in pages of bounded size, in no order."""

    async def read(self, fingerprint: str) -> Foreign | None:
        """None: it is gone, or no such entry."""

    async def replace(self, fingerprint: str, version: str, vector: Vector, keep: str = "") -> bool:
        """Gives the entry a vector of the embedder in use, if its record is still that version; its expiry stays, and
        so does a vector of the embedder `keep`. False, and nothing is written, where it is gone or has been answered
        anew."""

    async def settled(self) -> bool:
        """Whether lookups have gone over to the embedder in use, also before a restart."""

    async def settle(self) -> None:
        """They have: what was kept of the embedder before is dropped, once."""


class NearStore(ResponseStore, Protocol):
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
