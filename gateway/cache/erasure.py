"""The erasure of one subject: what belongs to it, and the traces by which the rest is found. Pure but for the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from gateway.cache.bans import BanConditions, is_same_tenant
from gateway.cache.links import question_digests
from gateway.entries import EmbeddedVector, Entry, Vector
from gateway.ports import Judgement

# Seconds after an erasure in which lookups of its subject teach nothing: longer than any audit or comparison that
# began before takes.
GRACE_S = 900.0

MAX_RECENT = 64  # erasures whose grace is remembered

MAX_VECTORS = 20_000  # of erased questions, by which labels without a name are found: 30 MB with 384 dimensions

CHUNK = 256  # vectors that are compared at once, in some 20 ms


@dataclass(frozen=True, slots=True)
class ErasureTarget:
    """The subjects of an erasure, by digest. `tenant` narrows them; without subjects it is everything of the tenant."""

    subjects: frozenset[str]
    tenant: str | None
    at: float  # wall clock: what was asked later stays

    def names(self, subjects: Sequence[str]) -> bool:
        """Return whether something with these subjects belongs to it, as far as its subjects tell."""
        return not self.subjects or not self.subjects.isdisjoint(subjects)

    def matches(self, subjects: Sequence[str], tenant: str) -> bool:
        """Return whether something of a tenant with these subjects belongs to it."""
        return self.names(subjects) and (self.tenant is None or is_same_tenant(self.tenant, tenant))

    @staticmethod
    def of(conditions: BanConditions, at: float) -> ErasureTarget:
        return ErasureTarget(conditions.subjects, conditions.tenant, at)


@dataclass(slots=True)
class ErasureTraces:
    """The entries and questions that were erased so far. They find links, counterexamples, decoys and other labels."""

    fingerprints: set[str] = field(default_factory=set)
    questions: set[str] = field(default_factory=set)  # digests, as links and counterexamples have them
    vectors: list[Vector] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, question: str | None, vector: Vector | None = None) -> None:
        if question is not None:
            self.questions.update(question_digests(question))
        if vector is None:
            return
        if len(self.vectors) < MAX_VECTORS:
            self.vectors.append(vector)
        elif len(self.vectors) == MAX_VECTORS and not any("vectors" in note for note in self.notes):
            self.notes.append(
                f"only the first {MAX_VECTORS} vectors were compared with learnt labels: repeat the command"
            )

    def add_entry(self, entry: Entry, own_vector: EmbeddedVector | None) -> None:
        self.fingerprints.add(entry.fingerprint)
        self.add(entry.question, None if own_vector is None else own_vector.vector)

    def matrices(self) -> Iterator[Vector]:
        """Yield the vectors as float32 arrays of shape (at most `CHUNK`, dimension)."""
        by_dimension: dict[int, list[Vector]] = {}
        for vector in self.vectors:
            by_dimension.setdefault(len(vector), []).append(vector)
        for vectors in by_dimension.values():
            for at in range(0, len(vectors), CHUNK):
                yield np.stack(vectors[at : at + CHUNK]).astype(np.float32)


class Erasable(Protocol):
    """A store that may hold something of a subject."""

    async def erase(self, target: ErasureTarget, traces: ErasureTraces, *, dry_run: bool) -> int:
        """Remove what belongs to the target, and return how much it was. Add its traces. Raise `StoreUnavailable` or
        `OSError`. With `dry_run`, only count."""


class RecentErasures:
    """The last erasures of this process. Work that began before them must teach nothing."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._targets: tuple[ErasureTarget, ...] = ()

    def add(self, target: ErasureTarget) -> None:
        self._targets = (*self._targets, target)[-MAX_RECENT:]

    def includes(self, subjects: Sequence[str], tenant: str, at: float) -> bool:
        """Return whether what these subjects caused at that time (wall clock) was erased since."""
        return any(at <= target.at and target.matches(subjects, tenant) for target in self._targets)

    def covers(self, judged: Judgement) -> bool:
        """Return whether a lookup, or the entry that it found, belongs to a subject that was erased lately."""
        if not self._targets:
            return False
        subjects, oldest = (*judged.entry.subjects, *judged.subjects), self._wall() - GRACE_S
        return any(target.at >= oldest and target.matches(subjects, judged.entry.tenant) for target in self._targets)
