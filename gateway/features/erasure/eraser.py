"""Erase all that one subject asked or caused, in every place of this gateway and of the store.

The entries go first, by a ban with a time (`gateway.cache.purge`), so that nothing in flight comes back. Other gateways
follow that ban, and erase the files of their own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np

from gateway.cache.bans import Ban
from gateway.cache.embedding_spaces import Spaces
from gateway.cache.erasure import ErasureTarget, ErasureTraces, RecentErasures
from gateway.cache.feedback import Counterexamples, ServedHits, is_related
from gateway.cache.index_checkpoints import IndexFiles
from gateway.cache.links import Links
from gateway.cache.purge import Purge, PurgeRequest
from gateway.cache.stored_parts import DISK, LEARNED, MESSAGES, RELATIONS, StoredParts, UnreachedPart
from gateway.entries import Vector
from gateway.errors import GatewayError, StoreUnavailable
from gateway.feature import all_features
from gateway.files import unowned_dirs
from gateway.jobs import erasable_parts
from gateway.ports import Clock, RelationStore
from gateway.steps.erasures import ErasureCore
from gateway.subjects import Subject, SubjectDigests

LOG = logging.getLogger("nearhit.removal")
NAMES_PER_MESSAGE = 500  # to the other gateways


@dataclass(slots=True)
class ErasureProgress:
    """The outcome of an erasure so far."""

    subject: str  # the digest
    counts: dict[str, int] = field(default_factory=dict)  # by store
    durable: bool = False
    notes: list[str] = field(default_factory=list)


class ErasureIncomplete(GatewayError):
    """The store or the disk failed during an erasure. `erased` has the counts so far."""

    status = 503
    kind = "store_unavailable"

    def __init__(self, erased: ErasureProgress, error: str) -> None:
        super().__init__(f"{error}; the entries are removed, other places may not be: repeat the command")
        self.erased = erased


class StoreDisk(Protocol):
    async def drop_deleted(self) -> list[str]:
        """Drop from the store's disk what was deleted. Return a sentence for each thing that was not reached."""


class ErasableRelations(RelationStore, Protocol):
    async def remove_relations(self, counterexamples: Sequence[str], links: Sequence[str]) -> None: ...


class Disk:
    """The files of the store's server. They come last, once everything else is deleted."""

    part = DISK

    def __init__(self, disk: StoreDisk) -> None:
        self._disk = disk

    async def erase(self, target: ErasureTarget, traces: ErasureTraces, *, dry_run: bool) -> int:
        if not dry_run:
            traces.notes += await self._disk.drop_deleted()
        return 0


class Relations:
    """Links and counterexamples, by the erased entries and the digests of the erased questions."""

    part = RELATIONS

    def __init__(self, store: ErasableRelations, counterexamples: Counterexamples, links: Links) -> None:
        self._store = store
        self._counterexamples = counterexamples
        self._links = links

    async def erase(self, target: ErasureTarget, traces: ErasureTraces, *, dry_run: bool) -> int:
        wrong, links = (
            [key for key in keys if is_related(key, traces.fingerprints, traces.questions)]
            for keys in (await self._store.counterexamples(), await self._store.links())
        )
        if not dry_run:
            await self._store.remove_relations(wrong, links)
            self.forget(traces.fingerprints, traces.questions)
        return len(wrong) + len(links)

    def forget(self, fingerprints: set[str], questions: set[str]) -> None:
        """Forget them in memory."""
        self._counterexamples.forget(fingerprints, questions)
        self._links.forget(fingerprints, questions)


class LearnedQuestions:
    """Labelled lookups and decoys of all routes. Without names, they are found by the vectors of erased questions."""

    part = LEARNED

    def __init__(self, spaces: Spaces) -> None:
        self.spaces = spaces

    async def erase(self, target: ErasureTarget, traces: ErasureTraces, *, dry_run: bool) -> int:
        if dry_run:
            return 0
        return await self.forget(traces.matrices())

    async def forget(self, matrices: Iterable[Vector]) -> int:
        """Drop what was learnt of questions with these vectors. Raise `StoreUnavailable`."""
        dropped, changed = 0, set[str]()
        for vectors in matrices:
            for space in self.spaces.all:
                dropped += space.decoys.forget_questions(vectors)
                for route, control in space.controls.all():
                    if forgotten := control.forget(vectors):
                        dropped += forgotten
                        changed.add(route)
            await asyncio.sleep(0)
        for route in sorted(changed):
            await self.spaces.serving.learning.save_one(route)
        return dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class Eraser:
    """`Eraser` erases subjects."""

    digests: SubjectDigests
    removal: Purge
    parts: Callable[[], Awaitable[StoredParts]]  # returns all that store something, besides the entries
    relations: Relations
    learned: LearnedQuestions
    served: ServedHits
    recent: RecentErasures
    clock: Clock
    publish: Callable[..., None]  # tells the other gateways which entries, questions and vectors are gone

    def digest(self, subject: Subject) -> str:
        return self.digests.of(subject.kind, subject.name)

    async def erase(self, subject: Subject, tenant: str | None, *, dry_run: bool) -> ErasureProgress:
        """Erase a subject, of one tenant if `tenant` is given.

        With `dry_run`, only count, without the learnt lookups and decoys. Raise what `Purge.purge` raises, and
        `ErasureIncomplete`.
        """
        erased, traces = ErasureProgress(self.digest(subject)), ErasureTraces()
        subjects = () if subject.kind == "tenant" else (erased.subject,)
        request = PurgeRequest(
            subjects=subjects, tenant=subject.name if subject.kind == "tenant" else tenant, erasure=True
        )
        outcome = await self.removal.purge(request, dry_run=dry_run, on_match=traces.add_entry)
        erased.counts["entries"] = outcome.matched if dry_run else outcome.removed
        erased.durable = outcome.durable
        erased.notes += outcome.notes
        target = ErasureTarget(frozenset(subjects), request.tenant, self.clock.wall())
        if not dry_run:
            self._forget_in_memory(target)
        try:
            for each in await self.parts():
                count = await each.erase(target, traces, dry_run=dry_run)
                if each.part.counted:
                    erased.counts[each.part.name] = count
        except (StoreUnavailable, OSError) as error:
            raise ErasureIncomplete(
                erased, str(error) if isinstance(error, StoreUnavailable) else "the disk failed"
            ) from None
        finally:
            erased.notes += traces.notes
        if not dry_run:
            self._announce(traces)
        return erased

    def _forget_in_memory(self, target: ErasureTarget) -> None:
        """Forget the subject in memory: nothing of it is learnt from now on."""
        self.recent.add(target)
        self.served.forget(self.recent.covers)
        self.digests.forget()

    def _announce(self, traces: ErasureTraces) -> None:
        """Tell the other gateways what is gone."""
        names, questions = sorted(traces.fingerprints), sorted(traces.questions)
        for at in range(0, max(len(names), len(questions)), NAMES_PER_MESSAGE):
            end = at + NAMES_PER_MESSAGE
            self.publish(names[at:end], questions[at:end], b"", 0)
        for vectors in traces.matrices():
            self.publish([], [], vectors.astype("<f2").tobytes(), vectors.shape[1])

    # Erasures by other gateways

    def apply_event(self, names: Sequence[str], questions: Sequence[str], vectors: bytes, dimension: int) -> None:
        """Forget what another gateway has erased. Raise `ValueError` or `TypeError` where it cannot be read."""
        if names or questions:
            self.relations.forget(set(names), set(questions))
        if dimension:
            matrix = np.frombuffer(vectors, "<f2").reshape(-1, dimension).astype(np.float32)
            for space in self.learned.spaces.all:
                space.decoys.forget_questions(matrix)
                for _, control in space.controls.all():
                    control.forget(matrix)

    async def follow(self, ban: Ban) -> bool:
        """Erase the files and the memory of this process after an erasure of another gateway. Return whether all is
        erased."""
        target, traces = ErasureTarget.of(ban.conditions, ban.at), ErasureTraces()
        self._forget_in_memory(target)
        try:
            own = [each for each in await self.parts() if each.part.own]
            counts = {each.part.name: await each.erase(target, traces, dry_run=False) for each in own}
        except (StoreUnavailable, OSError) as error:
            LOG.warning("an erasure of another gateway failed here", extra={"fields": {"error": str(error)}})
            return False
        self._announce(traces)
        LOG.info("an erasure of another gateway was followed", extra={"fields": {"id": ban.id, **counts}})
        return True


def eraser_of(core: ErasureCore) -> Eraser:
    """Build the eraser of a gateway that has a secret for erasures."""
    parts, stores = core.parts(), core.stores
    assert parts.subjects is not None  # else nothing names those who caused it
    relations = Relations(stores.redis, parts.memory.counterexamples, parts.memory.links)
    learned = LearnedQuestions(parts.spaces)
    return Eraser(
        digests=parts.subjects,
        removal=core.removal,
        parts=partial(_stored_parts, core, relations, learned, parts.subjects),
        relations=relations,
        learned=learned,
        served=parts.memory.served,
        recent=parts.erased,
        clock=parts.clock,
        publish=parts.fleet.publisher("erase"),
    )


async def _stored_parts(
    core: ErasureCore, relations: Relations, learned: LearnedQuestions, subjects: SubjectDigests
) -> StoredParts:
    """Return the registry of all parts that store something of requests, besides the entries.

    The files of the store come last.
    Features that no route uses any more may have stored something, too. So all are imported, in a thread.
    """
    await asyncio.to_thread(tuple, all_features())
    config, stores, parts = core.config, core.stores, core.parts()
    spaces, unowned = parts.spaces, partial(unowned_dirs, config.data_dir, config.server.workers)
    return StoredParts(
        *core.feature_parts(),
        parts.label_archive,
        *erasable_parts(stores, subjects.of_request),
        relations,
        learned,
        IndexFiles(config.data_dir, lambda: [s.checkpoints for s in spaces.all if s.checkpoints is not None], unowned),
        UnreachedPart(MESSAGES, exists=stores.shared is not None),
        Disk(stores.file),
    )
