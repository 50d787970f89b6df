"""Remove answers: at once, on every gateway, permanently.

The ban comes first, in this process and in the store, where it survives a crash. A gateway that knows the ban serves no
answer that it covers. Then the answers are deleted, which takes longer in a large store. Other gateways poll a version
number of the bans every 0.2 s, so a ban reaches them within half a second.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

from gateway.cache.bans import (
    EVERYTHING,
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
from gateway.cache.stored_parts import StoredCommand, not_reached
from gateway.cache.text_likeness import TextComparison, letter_counts
from gateway.entries import EmbeddedVector, Entry
from gateway.errors import BadRequest, EmbedderUnavailable, GatewayError, Overloaded, StoreUnavailable
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock, RemovalStore

SAMPLES, QUESTION_SHOWN = 10, 80


@dataclass(frozen=True, slots=True)
class PurgeRequest:
    """The conditions of a removal, as requested. At least one is set."""

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
    subjects: tuple[str, ...] = ()  # digests
    erasure: bool = False

    def describe(self) -> dict[str, Any]:
        """Return the conditions without texts that users wrote."""
        conditions = {
            "tags": list(self.tags),
            "subjects": list(self.subjects),
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
        return {name: value for name, value in conditions.items() if value not in (None, False, [])}


@dataclass(slots=True)
class PurgeResult:
    """The counts of a removal so far."""

    matched: int = 0
    removed: int = 0
    recorded: bool = False  # all gateways on the store know the ban, also after a restart
    durable: bool = False  # the ban has reached the store's disk
    samples: list[dict[str, Any]] = field(default_factory=list)
    late_matches: set[str] = field(default_factory=set)  # close to the question, but found only in the store
    on_match: Callable[[Entry, EmbeddedVector | None], None] | None = None  # called with each entry that matches
    notes: list[str] = field(default_factory=list)  # hints that the request may not mean what the operator expects
    texts: TextComparison | None = None  # for entries without a vector

    def match(self, records: Iterable[tuple[Entry, EmbeddedVector | None]], now: float) -> None:
        for entry, own_vector in records:
            self.matched += 1
            if self.on_match is not None:
                self.on_match(entry, own_vector)
            if len(self.samples) < SAMPLES:
                self.samples.append(sample_of(entry, now))

    def note_unreadable(self, count: int) -> None:
        if count:
            self.notes.append(
                f"not reached: {count} stored records that cannot be read (damaged, of another version, or of a key "
                "that is not configured); this gateway serves none of them"
            )

    def note_vectorless(self) -> None:
        if self.texts is not None and self.texts.compared:
            self.notes.append(f"{self.texts.compared} entries have no vector: like was compared with their text")

    def as_json(self) -> dict[str, Any]:
        return {
            "matched": self.matched,
            "removed": self.removed,
            "durable": self.durable,
            "samples": self.samples,
            "notes": self.notes,
            "not_reached": not_reached(StoredCommand.PURGE),
        }


class PurgeIncomplete(GatewayError):
    """The store failed during a removal. `outcome` has the counts so far."""

    status = 503
    kind = "store_unavailable"

    def __init__(self, outcome: PurgeResult, error: str) -> None:
        where = (
            "the removal is in force in every gateway on this store, and the remaining answers are not served"
            if outcome.recorded
            else "the removal is in force in this gateway only, until the store answers or it restarts"
        )
        super().__init__(f"{error}; {where}: repeat the request", retry_after_s=1)
        self.outcome = outcome


def sample_of(entry: Entry, now: float) -> dict[str, Any]:
    """Return the fields of an entry that operators see."""
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

MARGIN_S = 60.0  # seconds; for differing clocks or a suspended machine

# Seconds that an erasure stays in force at least: a gateway that was away for a shorter time still erases its files.
ERASURE_S = 30 * 86400.0

UNKNOWN_S = 30 * 86400.0  # seconds; the assumed lifetime of answers if the store does not tell

MAX_AT_ONCE = 4  # each one reads the whole store

DELETED_AT_ONCE = 1_000  # entries in one round trip; a store that is far away takes one for each


class Purge:
    """`Purge` removes entries. `flights` are the calls in flight.

    `horizon_s` returns how long an answer that is requested now may live. `open_spaces` opens the spaces if they are
    not open yet.
    """

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
        open_spaces: Callable[[], Awaitable[None]],
    ) -> None:
        self._front = front
        self._bans = front.bans
        self._store = store
        self._spaces = spaces
        self._flights = flights
        self._clock = clock
        self._telemetry = telemetry
        self._horizon_s = horizon_s
        self._open_spaces = open_spaces
        self._version: bytes | None = None  # of the store's bans when last read, or None to read them again
        self._stored_ids: frozenset[str] = frozenset()  # the ids of the store's bans
        self._running = 0
        self._unswept: list[Ban] = []  # of gateways that do not know the names of entries of this version
        self._wake_event = asyncio.Event()
        self.on_erasures: Callable[[Sequence[Ban]], None] = _ignore  # called with those of other gateways

    # Removals by this gateway

    async def purge(
        self,
        request: PurgeRequest,
        *,
        dry_run: bool,
        on_match: Callable[[Entry, EmbeddedVector | None], None] | None = None,
    ) -> PurgeResult:
        """Remove entries. `on_match` is called with each one. Raise `BadRequest`, `Overloaded` (nothing was done) or
        `PurgeIncomplete`."""
        if self._running >= MAX_AT_ONCE:
            raise Overloaded(f"{MAX_AT_ONCE} removals are running, nothing was done: try again", retry_after_s=1)
        self._running += 1
        outcome = PurgeResult(on_match=on_match)
        try:
            conditions = await self._conditions(request)
            if conditions.near is not None and request.like is not None:
                outcome.texts = TextComparison(conditions.near, letter_counts(request.like))
            if dry_run:
                await self._count(conditions, outcome)
                return outcome
            await self._remove(conditions, outcome, erasure=request.erasure)
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
            frozenset(request.subjects),
        )

    async def _similarity_condition(self, text: str, similarity: float) -> SimilarityCondition:
        try:
            await self._open_spaces()  # no route may have needed the model so far
        except Exception as error:  # of a model, its files or its server
            LOG.warning("the embedding model cannot be opened", exc_info=error)
            raise BadRequest(f"like: the embedding model cannot be opened, nothing was done: {error}") from None
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
        unreadable, count = list[str](), 0
        async for page in self._compared_records(conditions, outcome, unreadable.append):
            count += len(unreadable)
            unreadable.clear()
            matched = [
                (entry, own_vector)
                for entry, own_vector in page
                if conditions.matches(entry, own_vector) and not self._bans.covers(entry, own_vector)
            ]
            outcome.match(matched, now)
        if conditions != EVERYTHING:
            outcome.note_unreadable(count)
        outcome.note_vectorless()

    async def _remove(self, conditions: BanConditions, outcome: PurgeResult, *, erasure: bool) -> None:
        ban = await self._ban(conditions, erasure=erasure)
        await self._enforce(ban)
        recording = asyncio.create_task(self._record_first(ban, outcome))
        try:
            await self._sweep(ban, outcome)
        finally:
            await recording
        if outcome.late_matches:
            self._bans.add(with_matching(ban, sorted(outcome.late_matches)[:MAX_NEAR]), ban.at)
            await self._record(ban.id)

    async def _ban(self, conditions: BanConditions, *, erasure: bool) -> Ban:
        """Return a ban on everything up to now. It lasts as long as stored and currently requested answers may live."""
        try:
            latest = await self._store.latest_expiry()
        except StoreUnavailable:  # the removal takes effect here all the same
            latest = self._clock.wall() + UNKNOWN_S
        at, made_monotonic = self._clock.wall(), self._clock.monotonic()
        expires_at = max(latest, at + self._horizon_s(), at + ERASURE_S if erasure else at) + MARGIN_S
        records = self._store.record_version
        return Ban(uuid.uuid4().hex, at, expires_at, conditions, made_monotonic, erasure, records)

    async def _enforce(self, ban: Ban) -> None:
        """Enforce the ban in this process, before anything is awaited."""
        self._bans.add(ban, ban.at)
        self._on_bans_changed()
        near = ban.conditions.near
        if near is not None:
            await self._spaces.forget(sorted(near.matching))
        await self._front.sweep(None if near is None else self._checked_predicate(near))

    def _checked_predicate(self, near: SimilarityCondition) -> Callable[[str], bool]:
        """Return the test that an entry was compared with the ban. An entry in memory only is in no index."""
        space = self._spaces.of(near.embedder)
        return _never if space is None else space.index.holds

    def _on_bans_changed(self) -> None:
        # Answers in flight may be banned, which is unknown before they arrive: new requests must not join them.
        self._flights.clear()
        self._telemetry.bans.set(value=len(self._bans))

    async def _record_first(self, ban: Ban, outcome: PurgeResult) -> None:
        outcome.durable = await self._record(ban.id)
        outcome.recorded = True

    async def _record(self, changed: str | None = None) -> bool:
        """Write the bans of this process to the store."""
        in_force = {ban.id: ban for ban in self._bans.in_force}
        new = {name: encode(ban) for name, ban in in_force.items() if name == changed or name not in self._stored_ids}
        dropped = sorted(self._stored_ids - in_force.keys())
        if not new:
            return False
        durable = await self._store.write_bans(new, dropped)
        self._stored_ids = frozenset(in_force)
        self._version = None  # read them again: if the store is killed now, it may come back without these bans
        return durable

    async def _sweep(self, ban: Ban, outcome: PurgeResult) -> None:
        routes: dict[str, str] = {}  # fingerprint -> route, of the entries to delete
        unreadable, count = list[str](), 0
        async for page in self._compared_records(ban.conditions, outcome, unreadable.append):
            now = self._clock.wall()
            if ban.conditions != EVERYTHING:
                count += len(unreadable)
            elif unreadable:
                await self._store.delete(unreadable)
            unreadable.clear()
            matched = [
                (entry, own_vector)
                for entry, own_vector in page
                if entry.fingerprint not in routes and ban.sweeps(entry, own_vector, now)
            ]
            outcome.match(matched, now)
            routes |= {entry.fingerprint: entry.route for entry, _ in matched}
            if len(routes) >= DELETED_AT_ONCE:
                await self._delete(ban, routes, outcome)
                routes = {}
        if routes:
            await self._delete(ban, routes, outcome)
        outcome.note_unreadable(count)
        outcome.note_vectorless()

    async def _delete(self, ban: Ban, routes: Mapping[str, str], outcome: PurgeResult) -> None:
        names = list(routes)
        await self._spaces.forget(names)  # the index before the store, as in `Evictor`
        outcome.removed += await self._store.delete(names)
        for fingerprint, route in routes.items():
            # it may have been read again, or date from before a clock was set back
            self._front.forget(fingerprint)
            self._telemetry.purged.add(route)
        near = ban.conditions.near
        if near is not None:
            outcome.late_matches |= routes.keys() - near.matching

    # Removals by other gateways

    def wake(self) -> None:
        """Signal that the log of changes has a new ban."""
        self._wake_event.set()

    async def follow(self) -> None:
        """Follow other gateways' removals.

        The log of changes announces them; polling the version covers a lagging log.
        """
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._wake_event.wait()
            self._wake_event.clear()
            try:
                await self.refresh()
                await self._sweep_unswept()
            except StoreUnavailable:
                continue  # they are swept with the next look
            except Exception:  # any other error: the next removal must not be missed
                LOG.exception("reading the removals of other gateways failed")

    async def refresh(self) -> None:
        """Read the removals of other gateways. At the start this runs before anything from the store is served."""
        self._bans.expire(self._clock.wall())
        try:
            version = await self._store.version()
            if version != self._version or not self._bans.loaded:
                await self._load(version)
            if self._running == 0 and any(ban.id not in self._stored_ids for ban in self._bans.in_force):
                await self._record()  # the store was unavailable when the ban was made
        except StoreUnavailable:
            return

    async def load(self) -> None:
        """Read the bans unless they are loaded. Raise `StoreUnavailable`."""
        if not self._bans.loaded:
            await self._load(await self._store.version())

    async def _load(self, version: bytes) -> None:
        now = self._clock.wall()
        bans = [decode(data, now) for data in await self._store.bans()]
        was_loaded, new = self._bans.loaded, self._bans.stored(bans, now)
        self._stored_ids = frozenset(ban.id for ban in bans)
        self._version = version
        if new:
            self._on_bans_changed()
        for ban in new:
            await self._catch_up(ban)
        former = [ban for ban in new if ban.records < self._store.record_version]
        self._unswept += [ban for ban in former if was_loaded or ban.erasure]
        if erasures := [ban for ban in new if ban.erasure]:
            self.on_erasures(erasures)

    async def _sweep_unswept(self) -> None:
        """Delete the entries that removals of gateways of a former version cover. Raise `StoreUnavailable`."""
        bans = self._unswept[:]
        for ban in bans:
            await self._sweep(ban, PurgeResult())
        self._unswept = self._unswept[len(bans) :]

    async def _catch_up(self, ban: Ban) -> None:
        """Apply another gateway's ban to memory and index. This index may know answers that the other's does not."""
        near = ban.conditions.near
        await self._front.sweep(None if near is None else self._checked_predicate(near))
        if near is None:
            return
        await self._spaces.forget(sorted(near.matching))
        space = self._spaces.of(near.embedder)
        # A ban names the entries found when it was made, and a shared index had found all of them.
        if space is None or space.index.shared:
            return
        close = await space.index.near(near.vector, near.similarity)
        for name in set(close) - near.matching:
            entry = await self._front.get(name)
            if entry is not None and ban.covers(entry, EmbeddedVector(near.vector, near.embedder)):
                await self._spaces.forget([name])
                await self._front.delete([name])

    # Stored entries

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
        """Return samples of entries that may be served and meet all conditions, in any order.

        Raise `StoreUnavailable`.
        """
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
        """Yield every entry that meets the conditions and is not banned. Raise `StoreUnavailable`."""
        async for page in self._records(conditions):
            for entry, own_vector in page:
                if conditions.matches(entry, own_vector) and not self._bans.covers(entry, own_vector):
                    yield entry, own_vector

    async def _compared_records(
        self, conditions: BanConditions, outcome: PurgeResult, unreadable: Callable[[str], None]
    ) -> AsyncIterator[Sequence[tuple[Entry, EmbeddedVector | None]]]:
        """Yield pages of entries, also of former versions. Entries without a vector are compared by their text."""
        async for page in self._records(conditions, unreadable):
            texts = outcome.texts
            yield page if texts is None else [(entry, texts.vector_of(entry, own_vector)) for entry, own_vector in page]

    def _records(
        self, conditions: BanConditions, unreadable: Callable[[str], None] | None = None
    ) -> AsyncIterator[Sequence[tuple[Entry, EmbeddedVector | None]]]:
        """Yield pages of entries with the vectors that the conditions compare. `unreadable` is that of
        `RemovalStore`."""
        own = self._spaces.serving.embedder.fingerprint if self._spaces.is_open else ""
        embedder = own if conditions.near is None else conditions.near.embedder
        return self._store.records(embedder, unreadable=unreadable)


def _ignore(_: object) -> None:
    """Do nothing: the default of `on_erasures`."""


def _never(_: str) -> bool:
    return False
