"""Removes answers: at once, everywhere, for good.

First the ban, in this process and in the store, so that nothing it covers is served from then on, by any gateway, also
after a crash; then the answers themselves, which takes as long as the store is large. Other gateways on the store learn
of a ban by a version number that they ask for twice in the half second that it may take.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

from gateway.cache.bans import (
    MAX_NEAR,
    SHOWN_DIGITS,
    Ban,
    BanConditions,
    SimilarityCondition,
    decode,
    encode,
    with_matching,
)
from gateway.cache.embedding_spaces import Spaces
from gateway.cache.flight import SharedCall
from gateway.cache.memory_cache import TieredStore
from gateway.errors import BadRequest, EmbedderUnavailable, GatewayError, Overloaded, StoreUnavailable
from gateway.messages import EmbeddedVector, Entry
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock, RemovalStore

# What is asked of a removal, and what came of it.
SAMPLES, QUESTION_SHOWN = 10, 80


@dataclass(frozen=True, slots=True)
class PurgeRequest:
    """What is to be removed, as it was asked for. At least one is given."""

    tags: tuple[str, ...] = ()
    tenant: str | None = None
    route: str | None = None
    model: str | None = None
    like: str | None = None
    min_similarity: float = 0.8
    older_than_s: float | None = None
    fingerprint: str | None = None
    all: bool = False
    backend: str | None = None

    def describe(self) -> dict[str, Any]:
        """Without texts that users wrote."""
        given = {
            "tags": list(self.tags),
            "tenant": self.tenant and self.tenant[:SHOWN_DIGITS],
            "route": self.route,
            "model": self.model,
            "backend": self.backend,
            "like": self.like is not None,
            "min_similarity": None if self.like is None else self.min_similarity,
            "older_than_s": self.older_than_s,
            "fingerprint": self.fingerprint,
            "all": self.all,
        }
        return {name: value for name, value in given.items() if value not in (None, False, [])}


@dataclass(slots=True)
class PurgeResult:
    """Counts what has been done so far."""

    matched: int = 0
    removed: int = 0
    recorded: bool = False  # all gateways on the store heed it, also after a restart
    durable: bool = False  # it is known to have reached the store's disk
    samples: list[dict[str, Any]] = field(default_factory=list)
    late_matches: set[str] = field(default_factory=set)  # close to the question, and only found in the store
    notes: list[str] = field(default_factory=list)  # what is likely not as it was meant

    def match(self, entries: Iterable[Entry], now: float) -> None:
        for entry in entries:
            self.matched += 1
            if len(self.samples) < SAMPLES:
                self.samples.append(sample_of(entry, now))

    def as_json(self) -> dict[str, Any]:
        return {
            "matched": self.matched,
            "removed": self.removed,
            "durable": self.durable,
            "samples": self.samples,
            "notes": self.notes,
        }


class PurgeIncomplete(GatewayError):
    """The store failed on the way; `outcome` says what has been done."""

    status = 503
    kind = "store_unavailable"

    def __init__(self, outcome: PurgeResult, error: str) -> None:
        where = (
            "the removal is in force in every gateway on this store, and what is left in it is not served"
            if outcome.recorded
            else "the removal is in force in this gateway alone, until the store answers or it restarts"
        )
        super().__init__(f"{error}; {where}: ask again", retry_after_s=1)
        self.outcome = outcome


def sample_of(entry: Entry, now: float) -> dict[str, Any]:
    """What an operator is shown of an entry."""
    return {
        "fingerprint": entry.fingerprint,
        "route": entry.route,
        "tenant": entry.tenant[:SHOWN_DIGITS],
        "model": entry.model,
        "age_s": round(max(0.0, now - entry.created), 3),
        "tags": list(entry.tags),
        "question": None if entry.question is None else entry.question[:QUESTION_SHOWN],
    }


LOG = logging.getLogger("nearhit.removal")

POLL_S = 0.2

MARGIN_S = 60.0  # clocks that differ, a machine that stood still

UNKNOWN_S = 30 * 86400.0  # how long answers live in a store that does not say

MAX_AT_ONCE = 4  # each looks through the whole store


class Purge:
    """`flights` are those in the air; `horizon_s` says for how long what is asked for now may live."""

    def __init__(
        self,
        *,
        front: TieredStore,
        store: RemovalStore,
        spaces: Spaces,
        flights: dict[str, SharedCall],
        clock: Clock,
        telemetry: Telemetry,
        horizon_s: Callable[[], float],
    ) -> None:
        self._front = front
        self._bans = front.bans
        self._store = store
        self._spaces = spaces
        self._flights = flights
        self._clock = clock
        self._telemetry = telemetry
        self._horizon_s = horizon_s
        self._version: bytes | None = None  # of the store's bans, as they were last read
        self._stored_ids: frozenset[str] = frozenset()  # their ids
        self._running = 0
        self._wake_event = asyncio.Event()

    # What is removed here

    async def purge(self, request: PurgeRequest, *, dry_run: bool) -> PurgeResult:
        """Raises `GatewayError`: `BadRequest`, `Overloaded` (nothing was done), or `PurgeIncomplete`."""
        if self._running >= MAX_AT_ONCE:
            raise Overloaded(f"{MAX_AT_ONCE} removals are under way, nothing was done: ask again", retry_after_s=1)
        self._running += 1
        outcome = PurgeResult()
        try:
            conditions = await self._conditions(request)
            if dry_run:
                await self._count(conditions, outcome)
                return outcome
            await self._remove(conditions, outcome)
        except StoreUnavailable as error:
            self._telemetry.store_errors.add()
            if dry_run:
                raise Overloaded(f"{error}: nothing was done", retry_after_s=1) from None
            raise PurgeIncomplete(outcome, str(error)) from None
        finally:
            self._running -= 1
        return outcome

    async def _conditions(self, request: PurgeRequest) -> BanConditions:
        before = None if request.older_than_s is None else self._clock.wall() - request.older_than_s
        near = None if request.like is None else await self._similarity_condition(request.like, request.min_similarity)
        return BanConditions(
            frozenset(request.tags),
            request.tenant,
            request.route,
            request.model,
            before,
            request.fingerprint,
            near,
            request.backend,
        )

    async def _similarity_condition(self, text: str, similarity: float) -> SimilarityCondition:
        space = self._spaces.serving
        try:
            embedding = await space.embedder.embed(text)
        except EmbedderUnavailable as error:
            raise Overloaded(f"{error}: nothing was done", retry_after_s=1) from None
        if embedding.partial:
            raise BadRequest("like: longer than the embedding model reads: nothing was done, expected a shorter text")
        matching = await space.index.near(embedding.vector, similarity)
        if len(matching) > MAX_NEAR:
            raise BadRequest(
                f"like: {len(matching)} entries are that close, nothing was done: expected at most {MAX_NEAR}, "
                "by a larger min_similarity, or a tag or a route instead"
            )
        return SimilarityCondition(embedding.vector, similarity, frozenset(matching), space.embedder.fingerprint)

    async def _count(self, conditions: BanConditions, outcome: PurgeResult) -> None:
        now = self._clock.wall()
        async for page in self._records(conditions):
            matched = [
                e
                for e, own_vector in page
                if conditions.matches(e, own_vector) and not self._bans.covers(e, own_vector)
            ]
            outcome.match(matched, now)

    async def _remove(self, conditions: BanConditions, outcome: PurgeResult) -> None:
        ban = await self._ban(conditions)
        await self._enforce(ban)
        recording = asyncio.create_task(self._record_first(ban, outcome))
        try:
            await self._sweep(ban, outcome)
        finally:
            await recording
        if outcome.late_matches:
            self._bans.add(with_matching(ban, sorted(outcome.late_matches)[:MAX_NEAR]), ban.at)
            await self._record(ban.id)

    async def _ban(self, conditions: BanConditions) -> Ban:
        """From now on, for as long as what it means may live: what is stored, and what is still asked for."""
        try:
            latest = await self._store.latest_expiry()
        except StoreUnavailable:  # the removal holds here all the same
            latest = self._clock.wall() + UNKNOWN_S
        at, made_monotonic = self._clock.wall(), self._clock.monotonic()
        return Ban(uuid.uuid4().hex, at, max(latest, at + self._horizon_s()) + MARGIN_S, conditions, made_monotonic)

    async def _enforce(self, ban: Ban) -> None:
        """In this process: in force before anything is waited for."""
        self._bans.add(ban, ban.at)
        self._on_bans_changed()
        near = ban.conditions.near
        if near is not None:
            await self._spaces.forget(sorted(near.matching))
        await self._front.sweep(None if near is None else self._checked_predicate(near))

    def _checked_predicate(self, near: SimilarityCondition) -> Callable[[str], bool]:
        """Whether an entry was held against it: what memory alone has, as the store took no answers, is in no index."""
        space = self._spaces.of(near.embedder)
        return _never if space is None else space.index.holds

    def _on_bans_changed(self) -> None:
        # What is on its way may be meant, which is not known before it has come: newcomers ask anew.
        self._flights.clear()
        self._telemetry.bans.set(value=len(self._bans))

    async def _record_first(self, ban: Ban, outcome: PurgeResult) -> None:
        outcome.durable = await self._record(ban.id)
        outcome.recorded = True

    async def _record(self, changed: str | None = None) -> bool:
        """Makes the store's bans those in force here."""
        in_force = {ban.id: ban for ban in self._bans.in_force}
        new = {name: encode(ban) for name, ban in in_force.items() if name == changed or name not in self._stored_ids}
        dropped = sorted(self._stored_ids - in_force.keys())
        if not new:
            return False
        durable = await self._store.write_bans(new, dropped)
        self._stored_ids = frozenset(in_force)
        self._version = None  # looked at anew: a store that is killed now may come back without them, and as it was
        return durable

    async def _sweep(self, ban: Ban, outcome: PurgeResult) -> None:
        near = ban.conditions.near
        async for page in self._records(ban.conditions):
            now = self._clock.wall()
            matched = [entry for entry, own_vector in page if ban.sweeps(entry, own_vector, now)]
            if not matched:
                continue
            names = [entry.fingerprint for entry in matched]
            outcome.match(matched, now)
            await self._spaces.forget(names)  # first, as `Evictor` does it
            outcome.removed += await self._store.delete(names)
            for entry in matched:
                self._front.forget(entry.fingerprint)  # read again since, from before a clock was set back
                self._telemetry.purged.add(entry.route)
            if near is not None:
                outcome.late_matches |= set(names) - near.matching

    # What other gateways remove

    def wake(self) -> None:
        """There is something new."""
        self._wake_event.set()

    async def follow(self) -> None:
        """What the log of changes tells comes at once; where that lags, the version does not."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._wake_event.wait()
            self._wake_event.clear()
            try:
                await self.refresh()
            except Exception:  # whatever it is, the next removal must not be missed for it
                LOG.exception("removals of other gateways could not be read")

    async def refresh(self) -> None:
        """Learns of what was removed elsewhere; once at the start, before anything of the store is served."""
        self._bans.expire(self._clock.wall())
        try:
            version = await self._store.version()
            if version != self._version or not self._bans.loaded:
                await self._load(version)
            if self._running == 0 and any(ban.id not in self._stored_ids for ban in self._bans.in_force):
                await self._record()  # the store was away when it was made
        except StoreUnavailable:
            return

    async def load(self) -> None:
        """The same, if nothing is known yet. Raises `StoreUnavailable`."""
        if not self._bans.loaded:
            await self._load(await self._store.version())

    async def _load(self, version: bytes) -> None:
        now = self._clock.wall()
        bans = [decode(data, now) for data in await self._store.bans()]
        new = self._bans.stored(bans, now)
        self._stored_ids = frozenset(ban.id for ban in bans)
        self._version = version
        if new:
            self._on_bans_changed()
        for ban in new:
            await self._catch_up(ban)

    async def _catch_up(self, ban: Ban) -> None:
        """Lets go of what lies here. This index knows answers that the other gateway's does not."""
        near = ban.conditions.near
        await self._front.sweep(None if near is None else self._checked_predicate(near))
        if near is None:
            return
        await self._spaces.forget(sorted(near.matching))
        space = self._spaces.of(near.embedder)
        # It means what was found when it was made, and in an index of all gateways that was everything.
        if space is None or space.index.shared:
            return
        close = await space.index.near(near.vector, near.similarity)
        for name in set(close) - near.matching:
            entry = await self._front.get(name)
            if entry is not None and ban.covers(entry, EmbeddedVector(near.vector, near.embedder)):
                await self._spaces.forget([name])
                await self._front.delete([name])

    # What is there

    async def entries(
        self,
        limit: int,
        *,
        tag: str | None = None,
        tenant: str | None = None,
        route: str | None = None,
        model: str | None = None,
        backend: str | None = None,
    ) -> list[dict[str, Any]]:
        """Samples of what may be served and meets all that is given, in no order. Raises `StoreUnavailable`."""
        tags = frozenset([tag] if tag else ())
        conditions = BanConditions(tags, tenant, route, model, backend=backend)
        matching: list[dict[str, Any]] = []
        async with aclosing(self.stored(conditions)) as entries:
            async for entry, _ in entries:
                matching.append(sample_of(entry, self._clock.wall()))
                if len(matching) == limit:
                    break
        return matching

    async def stored(self, conditions: BanConditions) -> AsyncGenerator[tuple[Entry, EmbeddedVector | None], None]:
        """Every entry that meets them and has not been removed. Raises `StoreUnavailable`."""
        async for page in self._records(conditions):
            for entry, own_vector in page:
                if conditions.matches(entry, own_vector) and not self._bans.covers(entry, own_vector):
                    yield entry, own_vector

    def _records(self, conditions: BanConditions) -> AsyncIterator[Sequence[tuple[Entry, EmbeddedVector | None]]]:
        """With the vectors that the conditions can be held against."""
        near = conditions.near
        return self._store.records(self._spaces.serving.embedder.fingerprint if near is None else near.embedder)


def _never(_: str) -> bool:
    return False
