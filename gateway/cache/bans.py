"""What operators have removed is never served again. Pure.

A removal is a ban, as in Varnish: conditions and a time. It covers every answer that meets them and that was asked for
up to then, wherever that answer lies, and also if it comes later: one fetched before a removal and stored after it is
as unwanted as the others. Reads and writes ask the bans, so that a removal holds before the store has been swept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgpack
import numpy as np

from gateway.messages import EmbeddedVector, Entry, Vector

MAX_BANS = 64  # every read of an entry that is older than one of them looks through them
MAX_NEAR = 5_000  # fingerprints a ban names: 0.3 MB
HASH_DIGITS, SHOWN_DIGITS = 64, 12
NEVER, LATER = float("-inf"), float("inf")
UNREADABLE_S = 86400.0
UNREADABLE = "unreadable"  # the id of a ban that is not known: it is never told on


@dataclass(frozen=True, slots=True, eq=False)  # arrays do not compare
class SimilarityCondition:
    """Close to a question: by its vector where an answer comes with one of the same embedder, else by the fingerprints
    found so far."""

    vector: Vector
    similarity: float  # at least; in [0, 1]
    matching: frozenset[str] = frozenset()
    embedder: str = ""  # the fingerprint of what made the vector

    def matches(self, entry: Entry, own_vector: EmbeddedVector | None) -> bool:
        if entry.fingerprint in self.matching:
            return True
        if own_vector is None or own_vector.embedder != self.embedder or own_vector.vector.shape != self.vector.shape:
            return False
        return self._is_within(own_vector.vector)

    def _is_within(self, vector: Vector) -> bool:
        return float(np.dot(vector, self.vector)) >= self.similarity

    def covers(self, other: SimilarityCondition) -> bool:
        same = self.embedder == other.embedder and np.array_equal(self.vector, other.vector)
        return same and self.similarity <= other.similarity and self.matching >= other.matching


@dataclass(frozen=True, slots=True)
class BanConditions:
    """All that are given hold, of the tags at least one. None given: everything."""

    tags: frozenset[str] = frozenset()
    tenant: str | None = None  # as in the entry, or the first digits of a hash
    route: str | None = None
    model: str | None = None  # as the client named it
    before: float | None = None  # wall clock: the answer was made at or before it
    fingerprint: str | None = None
    near: SimilarityCondition | None = None
    backend: str | None = None  # that gave the answer

    def matches(self, entry: Entry, own_vector: EmbeddedVector | None = None) -> bool:
        """`own_vector`: the entry's own vector, where it is known."""
        return (
            (not self.tags or not self.tags.isdisjoint(entry.tags))
            and (self.tenant is None or is_same_tenant(self.tenant, entry.tenant))
            and self.route in (None, entry.route)
            and self.model in (None, entry.model)
            and self.backend in (None, entry.backend)
            and (self.before is None or entry.created <= self.before)
            and self.fingerprint in (None, entry.fingerprint)
            and (self.near is None or self.near.matches(entry, own_vector))
        )

    def covers(self, other: BanConditions) -> bool:
        """Whether all that `other` means is meant by this too."""
        return (
            (not self.tags or (bool(other.tags) and other.tags <= self.tags))
            and (self.before is None or (other.before is not None and other.before <= self.before))
            and (self.near is None or (other.near is not None and self.near.covers(other.near)))
            and all(
                mine is None or mine == others
                for mine, others in (
                    (self.tenant, other.tenant),
                    (self.route, other.route),
                    (self.model, other.model),
                    (self.backend, other.backend),
                    (self.fingerprint, other.fingerprint),
                )
            )
        )


EVERYTHING = BanConditions()


@dataclass(frozen=True, slots=True)
class Ban:
    id: str
    at: float  # wall clock
    expires_at: float  # wall clock: after which nothing that it covers can be left
    conditions: BanConditions
    made_monotonic: float = field(
        default=NEVER, compare=False
    )  # monotonic clock of the process that made it, and knows it there

    def covers(self, entry: Entry, own_vector: EmbeddedVector | None = None, asked: float = LATER) -> bool:
        """`asked`: when its backend was, by the monotonic clock, where that was here: the wall clock may have been set
        since."""
        return (entry.asked <= self.at or asked <= self.made_monotonic) and self.conditions.matches(entry, own_vector)

    def sweeps(self, entry: Entry, own_vector: EmbeddedVector | None, now: float) -> bool:
        """Whether it is to be removed from a store that is looked through at `now`. What claims to come from the
        future was made before the removal, too: by a machine whose clock is ahead, or before ours was set back."""
        return self.conditions.matches(entry, own_vector) and (entry.asked <= self.at or entry.created > now)

    def is_superset(self, other: Ban) -> bool:
        later = (
            self.at >= other.at and self.made_monotonic >= other.made_monotonic and self.expires_at >= other.expires_at
        )
        return later and self.conditions.covers(other.conditions)


def is_same_tenant(requested: str, tenant: str) -> bool:
    """Tenants that are hashes may be given by the digits that logs and samples show, or more of them."""
    if requested == tenant:
        return True
    hashed = len(tenant) == HASH_DIGITS and len(requested) >= SHOWN_DIGITS
    return hashed and tenant.startswith(requested)


def limit_bans(bans: Iterable[Ban], now: float, limit: int = MAX_BANS) -> tuple[Ban, ...]:
    """At most `limit` bans that cover what these do, oldest first.

    What is over goes, and what another one includes. If that is not enough, the older half becomes one that covers all
    up to the youngest of them: too much rather than too little, since what it removes is only fetched again.
    """
    retained: list[Ban] = []
    for ban in sorted((ban for ban in bans if ban.expires_at > now), key=lambda ban: ban.at, reverse=True):
        if not any(other.is_superset(ban) for other in retained):
            retained.append(ban)
    retained.reverse()
    if len(retained) <= limit:
        return tuple(retained)
    old = retained[: len(retained) - limit // 2]
    youngest = old[-1]
    expires_at, made_monotonic = max(ban.expires_at for ban in old), max(ban.made_monotonic for ban in old)
    merged = Ban(f"all-{youngest.id}", youngest.at, expires_at, EVERYTHING, made_monotonic)
    return (merged, *retained[len(old) :])


@dataclass(slots=True)
class Bans:
    """Those in force in a process. `version` changes with them: what was looked at under it need not be again.

    `loaded` is set once the store's have been read: until then nobody knows what of the store may be served.
    """

    loaded: bool = False
    version: int = 0
    in_force: tuple[Ban, ...] = ()
    _latest_at: float = NEVER  # no ban covers what was asked for later
    _latest_monotonic: float = NEVER  # likewise, by the monotonic clock

    def __len__(self) -> int:
        return len(self.in_force)

    def covers(self, entry: Entry, own_vector: EmbeddedVector | None = None, asked: float = LATER) -> bool:
        """`asked`: see `Ban.covers`."""
        if entry.asked > self._latest_at and asked > self._latest_monotonic:
            return False
        return any(ban.covers(entry, own_vector, asked) for ban in self.in_force)

    def sweep(self, entry: Entry, now: float) -> bool:
        """Whether memory is to let go of it, as `Ban.sweeps`."""
        return self.covers(entry) or any(ban.sweeps(entry, None, now) for ban in self.in_force if entry.created > now)

    def add(self, ban: Ban, now: float) -> None:
        """One made here, in force from now on, also where the store cannot be told; it takes the place of one with its
        id."""
        self._put([*(other for other in self.in_force if other.id != ban.id), ban], now)

    def stored(self, bans: Iterable[Ban], now: float) -> tuple[Ban, ...]:
        """Those that all gateways on a store share -> those of them that are new here. What was in force stays so: a
        store that has lost its last writes has answers again that they removed."""
        known = {ban.id: ban.made_monotonic for ban in self.in_force}
        given = tuple(replace(ban, made_monotonic=known.get(ban.id, NEVER)) for ban in bans)
        others = {ban.id for ban in given} | {UNREADABLE}
        self._put([*(other for other in self.in_force if other.id not in others), *given], now)
        self.loaded = True
        return tuple(ban for ban in self.in_force if ban.id not in known)

    def expire(self, now: float) -> None:
        """Lets go of those whose entries are all over."""
        if any(ban.expires_at <= now for ban in self.in_force):
            self._put(self.in_force, now)

    def _put(self, bans: Iterable[Ban], now: float) -> None:
        self.in_force = limit_bans(bans, now)
        self.version += 1
        self._latest_at = max((ban.at for ban in self.in_force), default=NEVER)
        self._latest_monotonic = max((ban.made_monotonic for ban in self.in_force), default=NEVER)


def with_matching(ban: Ban, matching: Iterable[str]) -> Ban:
    """The same with more fingerprints known to be close to its question."""
    near = ban.conditions.near
    assert near is not None
    more = replace(near, matching=near.matching | frozenset(matching))
    return replace(ban, conditions=replace(ban.conditions, near=more))


# Bans as they lie in the store.

FORMAT = 1


def encode(ban: Ban) -> bytes:
    c, near = ban.conditions, ban.conditions.near
    packed: bytes = msgpack.packb(
        {
            "format": FORMAT,
            "id": ban.id,
            "at": ban.at,
            "until": ban.expires_at,
            "tags": sorted(c.tags),
            "tenant": c.tenant,
            "route": c.route,
            "model": c.model,
            "backend": c.backend,
            "before": c.before,
            "fingerprint": c.fingerprint,
            "near": near
            and [near.vector.astype("<f4").tobytes(), near.similarity, sorted(near.matching), near.embedder],
        }
    )
    return packed


def decode(data: bytes, now: float) -> Ban:
    """One that cannot be read, a newer gateway's perhaps, covers everything: too much rather than too little."""
    try:
        fields = msgpack.unpackb(data)
        at, expires_at = float(fields["at"]), float(fields["until"])
        conditions = _conditions(fields) if fields["format"] == FORMAT else EVERYTHING
        return Ban(str(fields["id"]), at, expires_at, conditions)
    except (KeyError, TypeError, ValueError, msgpack.UnpackException):
        return Ban(UNREADABLE, now, now + UNREADABLE_S, EVERYTHING)


def _conditions(fields: Mapping[str, Any]) -> BanConditions:
    near = fields["near"]
    return BanConditions(
        tags=frozenset(fields["tags"]),
        tenant=fields["tenant"],
        route=fields["route"],
        model=fields["model"],
        before=fields["before"],
        fingerprint=fields["fingerprint"],
        near=near and _near(*near),
        backend=fields.get("backend"),  # those of older gateways have none
    )


def _near(vector: bytes, similarity: float, matching: list[str], embedder: str = "") -> SimilarityCondition:
    """Those of older gateways do not say which embedder it was: they mean what they found."""
    return SimilarityCondition(
        np.frombuffer(vector, "<f4").astype(np.float32), float(similarity), frozenset(matching), embedder
    )
