"""Bans keep removed answers from being served again. Pure.

A removal is a ban, as in Varnish: conditions and a time. A ban covers every matching answer whose backend call began up
to that time, wherever the answer lies. It also covers an answer that was fetched before the removal and is stored after
it. Reads and writes check the bans, so a removal takes effect before the store is swept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgpack
import numpy as np

from gateway.config.policy.parameters import untuned
from gateway.entries import EmbeddedVector, Entry, Vector

MAX_BANS = 64  # every read of an entry older than the newest ban checks all of them
MAX_NEAR = 5_000  # fingerprints in a ban: 0.3 MB
ROUNDING = 1e-6  # of a cosine in 32 bits: that of equal vectors may be a little below 1
HASH_DIGITS, SHOWN_DIGITS = 64, 12
NEVER, LATER = float("-inf"), float("inf")
UNREADABLE_S = 86400.0
LATEST = 2**31  # a version of records that none reaches
UNREADABLE = "unreadable"  # the id of a ban that cannot be decoded; it is never passed on


@dataclass(frozen=True, slots=True, eq=False)  # arrays do not compare
class SimilarityCondition:
    """A condition that matches answers close to a question.

    It compares vectors where the entry comes with one of the same embedder, else the fingerprints found so far.
    """

    vector: Vector
    similarity: float  # minimum cosine, in [0, 1]
    matching: frozenset[str] = frozenset()
    embedder: str = ""  # the fingerprint of the embedder that made the vector

    def matches(self, entry: Entry, own_vector: EmbeddedVector | None) -> bool:
        if entry.fingerprint in self.matching:
            return True
        if own_vector is None or own_vector.embedder != self.embedder or own_vector.vector.shape != self.vector.shape:
            return False
        return self._is_within(own_vector.vector)

    def _is_within(self, vector: Vector) -> bool:
        return float(np.dot(vector, self.vector)) >= self.similarity - ROUNDING

    def covers(self, other: SimilarityCondition) -> bool:
        same = self.embedder == other.embedder and np.array_equal(self.vector, other.vector)
        return same and self.similarity <= other.similarity and self.matching >= other.matching


@dataclass(frozen=True, slots=True)
class BanConditions:
    """The conditions of a ban. All that are set must match, and at least one of the tags. None set: everything."""

    tags: frozenset[str] = frozenset()
    tenant: str | None = None  # as in the entry, or the first digits of its hash
    route: str | None = None
    model: str | None = None  # as the client named it
    before: float | None = None  # wall clock: matches answers made at or before it
    fingerprint: str | None = None
    near: SimilarityCondition | None = None
    backend: str | None = None  # that gave the answer
    subjects: frozenset[str] = frozenset()  # digests: matches answers that any of them caused

    def matches(self, entry: Entry, own_vector: EmbeddedVector | None = None) -> bool:
        """Return whether an entry meets the conditions. `own_vector` is the entry's vector, if it is known."""
        return (
            (not self.tags or not self.tags.isdisjoint(entry.tags))
            and (not self.subjects or not self.subjects.isdisjoint(entry.subjects))
            and (self.tenant is None or is_same_tenant(self.tenant, entry.tenant))
            and self.route in (None, entry.route)
            and self.model in (None, entry.model)
            and (self.backend is None or self.backend in (entry.backend, untuned(entry.backend)))
            and (self.before is None or entry.created <= self.before)
            and self.fingerprint in (None, entry.fingerprint)
            and (self.near is None or self.near.matches(entry, own_vector))
        )

    def covers(self, other: BanConditions) -> bool:
        """Return whether these conditions match everything that `other` matches."""
        return (
            (not self.tags or (bool(other.tags) and other.tags <= self.tags))
            and (not self.subjects or (bool(other.subjects) and other.subjects <= self.subjects))
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
    expires_at: float  # wall clock; after it, no covered entry can be left
    conditions: BanConditions
    made_monotonic: float = field(
        default=NEVER, compare=False
    )  # monotonic clock; set only in the process that made the ban
    erasure: bool = False  # each gateway also erases what it keeps besides entries (`gateway.cache.erasure`)
    # The version of the records whose names its maker knew: it removed entries of this one and of former ones.
    records: int = field(default=0, compare=False)

    def covers(self, entry: Entry, own_vector: EmbeddedVector | None = None, request_monotonic: float = LATER) -> bool:
        """Return whether the ban covers an entry.

        This process called the backend at `request_monotonic`. It is by the monotonic clock, because the wall clock may
        have been set since.
        """
        return (entry.request_time <= self.at or request_monotonic <= self.made_monotonic) and self.conditions.matches(
            entry, own_vector
        )

    def sweeps(self, entry: Entry, own_vector: EmbeddedVector | None, now: float) -> bool:
        """Return whether a sweep of a store at `now` should remove the entry.

        An entry dated in the future was also made before the removal: its machine's clock was ahead, or ours was set
        back.
        """
        return self.conditions.matches(entry, own_vector) and (entry.request_time <= self.at or entry.created > now)

    def is_superset(self, other: Ban) -> bool:
        later = (
            self.at >= other.at and self.made_monotonic >= other.made_monotonic and self.expires_at >= other.expires_at
        )
        return later and self.erasure >= other.erasure and self.conditions.covers(other.conditions)


def is_same_tenant(requested: str, tenant: str) -> bool:
    """Return whether a tenant is the requested one.

    A hashed tenant also matches a prefix of at least 12 digits, as logs and samples show it.
    """
    if requested == tenant:
        return True
    hashed = len(tenant) == HASH_DIGITS and len(requested) >= SHOWN_DIGITS
    return hashed and tenant.startswith(requested)


def limit_bans(bans: Iterable[Ban], now: float, limit: int = MAX_BANS) -> tuple[Ban, ...]:
    """Return at most `limit` bans that cover at least as much as these, oldest first.

    Expired bans go, and bans that another one includes. If that is not enough, the erasures of users and keys become
    one for each tenant. If that is still not enough, the older half becomes one ban on everything up to its newest
    member. That removes too much rather than too little, and those answers are only fetched again.
    """
    retained: list[Ban] = []
    for ban in sorted((ban for ban in bans if ban.expires_at > now), key=lambda ban: ban.at, reverse=True):
        if not any(other.is_superset(ban) for other in retained):
            retained.append(ban)
    retained.reverse()
    if len(retained) > limit:
        retained = _join_subjects(retained)
    if len(retained) <= limit:
        return tuple(retained)
    old = retained[: len(retained) - limit // 2]
    youngest = old[-1]
    expires_at, made_monotonic = max(ban.expires_at for ban in old), max(ban.made_monotonic for ban in old)
    records = min(ban.records for ban in old)
    merged = Ban(f"all-{youngest.id}", youngest.at, expires_at, EVERYTHING, made_monotonic, records=records)
    return (merged, *retained[len(old) :])


def _join_subjects(bans: Iterable[Ban]) -> list[Ban]:
    """Return the bans, oldest first, with one for all those that name nothing but subjects and a tenant."""
    joined: dict[str | None, Ban] = {}
    others = []
    for ban in bans:
        subjects, tenant = ban.conditions.subjects, ban.conditions.tenant
        if not subjects or ban.conditions != BanConditions(tenant=tenant, subjects=subjects):
            others.append(ban)
        elif (joint := joined.get(tenant)) is None:
            joined[tenant] = ban
        else:
            joined[tenant] = Ban(
                f"of-{ban.id}"[:64],
                ban.at,
                max(joint.expires_at, ban.expires_at),
                BanConditions(tenant=tenant, subjects=joint.conditions.subjects | subjects),
                max(joint.made_monotonic, ban.made_monotonic),
                joint.erasure or ban.erasure,
                min(joint.records, ban.records),
            )
    return sorted((*others, *joined.values()), key=lambda ban: ban.at)


@dataclass(slots=True)
class Bans:
    """The bans in force in this process.

    `version` changes with them, so a check under the same version need not be repeated. `loaded` is set once the
    store's bans were read: before that, nothing from the store may be served.
    """

    loaded: bool = False
    version: int = 0
    in_force: tuple[Ban, ...] = ()
    _latest_at: float = NEVER  # no ban covers an answer whose call began later
    _latest_monotonic: float = NEVER  # the same by the monotonic clock

    def __len__(self) -> int:
        return len(self.in_force)

    def covers(self, entry: Entry, own_vector: EmbeddedVector | None = None, request_monotonic: float = LATER) -> bool:
        """Return whether any ban covers an entry. `request_monotonic` is that of `Ban.covers`."""
        if entry.request_time > self._latest_at and request_monotonic > self._latest_monotonic:
            return False
        return any(ban.covers(entry, own_vector, request_monotonic) for ban in self.in_force)

    def is_erased(self, entry: Entry) -> bool:
        """Return whether an entry was made before its subject was erased, also if it comes from an export since."""
        requested_at = entry.created - entry.upstream_s
        return any(ban.erasure and requested_at <= ban.at and ban.conditions.matches(entry) for ban in self.in_force)

    def sweep(self, entry: Entry, now: float) -> bool:
        """Return whether to remove an entry from memory, as `Ban.sweeps`."""
        return self.covers(entry) or any(ban.sweeps(entry, None, now) for ban in self.in_force if entry.created > now)

    def add(self, ban: Ban, now: float) -> None:
        """Put a ban of this gateway in force at once, also where the store cannot be reached.

        It replaces a ban with the same id.
        """
        self._put([*(other for other in self.in_force if other.id != ban.id), ban], now)

    def stored(self, bans: Iterable[Ban], now: float) -> tuple[Ban, ...]:
        """Add the bans that all gateways on a store share, and return those that are new here.

        Bans in force stay: a store that lost its last writes may have the removed answers again.
        """
        made_at = {ban.id: ban.made_monotonic for ban in self.in_force}
        merged = tuple(replace(ban, made_monotonic=made_at.get(ban.id, NEVER)) for ban in bans)
        others = {ban.id for ban in merged} | {UNREADABLE}
        self._put([*(other for other in self.in_force if other.id not in others), *merged], now)
        self.loaded = True
        return tuple(ban for ban in self.in_force if ban.id not in made_at)

    def expire(self, now: float) -> None:
        """Drop the bans whose entries have all expired."""
        if any(ban.expires_at <= now for ban in self.in_force):
            self._put(self.in_force, now)

    def _put(self, bans: Iterable[Ban], now: float) -> None:
        self.in_force = limit_bans(bans, now)
        self.version += 1
        self._latest_at = max((ban.at for ban in self.in_force), default=NEVER)
        self._latest_monotonic = max((ban.made_monotonic for ban in self.in_force), default=NEVER)


def with_matching(ban: Ban, matching: Iterable[str]) -> Ban:
    """Return the ban with more fingerprints known to be close to its question."""
    near = ban.conditions.near
    assert near is not None
    more = replace(near, matching=near.matching | frozenset(matching))
    return replace(ban, conditions=replace(ban.conditions, near=more))


# The encoding of bans in the store.

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
            "subjects": sorted(c.subjects),
            "erasure": ban.erasure,
            "records": ban.records,
            "near": near
            and [near.vector.astype("<f4").tobytes(), near.similarity, sorted(near.matching), near.embedder],
        }
    )
    return packed


def decode(data: bytes, now: float) -> Ban:
    """Decode a ban. One that cannot be read, perhaps from a newer gateway, covers everything rather than too little."""
    try:
        fields = msgpack.unpackb(data)
        at, expires_at = float(fields["at"]), float(fields["until"])
        conditions = _conditions(fields) if fields["format"] == FORMAT else EVERYTHING
        erasure, records = bool(fields.get("erasure")), int(fields.get("records", 0))
        return Ban(str(fields["id"]), at, expires_at, conditions, erasure=erasure, records=records)
    except (KeyError, TypeError, ValueError, msgpack.UnpackException):
        # its maker may be of a later version, which knows the names of this one
        return Ban(UNREADABLE, now, now + UNREADABLE_S, EVERYTHING, records=LATEST)


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
        backend=fields.get("backend"),  # older gateways write neither
        subjects=frozenset(fields.get("subjects", ())),
    )


def _near(vector: bytes, similarity: float, matching: list[str], embedder: str = "") -> SimilarityCondition:
    """Decode a similarity condition. Older gateways do not write the embedder; theirs match by fingerprint only."""
    return SimilarityCondition(
        np.frombuffer(vector, "<f4").astype(np.float32), float(similarity), frozenset(matching), embedder
    )
