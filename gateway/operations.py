"""Builds what fills the indexes from the store, and what operators act on stored answers with. Used by `app` alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from aiohttp import web

from gateway.access import Access
from gateway.adapters.redis.metrics import RedisTimeline
from gateway.adapters.redis.migration import RedisMigration
from gateway.admin.cache import CacheAdmin, PurgeValidation
from gateway.admin.entries import EntriesHandler
from gateway.admin.event_stream import LiveHandler
from gateway.admin.history import HistoryRecorder
from gateway.admin.static_files import StaticFiles
from gateway.cache.embedding_migration import EmbedderCutover, EmbeddingMigration
from gateway.cache.embedding_spaces import Space
from gateway.cache.export_import import ExportImport
from gateway.cache.freshness import longest_lifetime_s
from gateway.cache.index_checkpoints import remove_former_checkpoint
from gateway.cache.purge import Purge
from gateway.cache.recovery import Recovery
from gateway.cache.replication import Replication
from gateway.cache.stores import Stores
from gateway.config import Config
from gateway.config.policy.model import Policy
from gateway.dialects.known import DIALECTS
from gateway.observability.live_events import LiveEvents
from gateway.observability.observer import Observer
from gateway.parts import Parts
from gateway.tasks import run_in

# Builds what the dashboard is made of beside its figures: files, history, live view. Used by `app` alone.
SAMPLE_EVERY_S = 5.0

Observed = Callable[[Parts, LiveEvents], Observer]


class Dashboard:
    """`observer` sees every request, for the metrics, the logs, the traces and those who watch."""

    def __init__(self, parts: Parts, stores: Stores, make_observer: Observed, policy: Callable[[], Policy]) -> None:
        """`policy` returns the one in force."""
        spaces = parts.spaces  # the parts themselves would keep a former space in memory
        self._entries = EntriesHandler(lambda: spaces.serving.store, parts.evictions, policy, parts.clock)
        self.decisions = LiveEvents()
        self.history_recorder = HistoryRecorder(parts.telemetry, RedisTimeline(stores.redis), parts.clock)
        self.observer = make_observer(parts, self.decisions)

    def routes(self) -> list[web.RouteDef]:
        handlers = (StaticFiles(), self.history_recorder, LiveHandler(self.decisions), self._entries)
        return [route for handler in handlers for route in handler.routes()]

    def begin(self, stack: AsyncExitStack, sample: Callable[[], Awaitable[None]]) -> None:
        """Until `stack` ends it. `sample` brings the gauges up to date."""
        stack.push_async_callback(self.history_recorder.close)
        run_in(stack, self.history_recorder.run())
        run_in(stack, self._record(sample))

    async def _record(self, sample: Callable[[], Awaitable[None]]) -> None:
        while True:
            await sample()
            self.history_recorder.record()
            await asyncio.sleep(SAMPLE_EVERY_S)


# Builds what fills the indexes from the store, and what operators act on stored answers with. Used by `app` alone.
def purge_of(config: Config, parts: Parts, stores: Stores, policy: Callable[[], Policy]) -> Purge:
    """`policy` returns the one in force."""
    slowest_s = max(backend.timeouts.total for backend in config.backends.values())

    def horizon_s() -> float:
        return slowest_s + max(map(longest_lifetime_s, policy().routes), default=0.0)

    return Purge(
        front=parts.store,
        store=stores.removals,
        spaces=parts.spaces,
        flights=parts.flights,
        clock=parts.clock,
        telemetry=parts.telemetry,
        horizon_s=horizon_s,
    )


def cache_admin_of(
    config: Config, parts: Parts, removal: Purge, access: Access, policy: Callable[[], Policy]
) -> CacheAdmin:
    """`policy` returns the one in force."""
    portability = ExportImport(
        front=parts.store,
        removal=removal,
        spaces=parts.spaces,
        dialects=DIALECTS,
        stored=parts.evictions.stored,
        clock=parts.clock,
        max_entry=config.store.max_entry,
    )
    tenants = list(config.auth.keys) if config.auth.mode == "keys" else None
    return CacheAdmin(removal, portability, PurgeValidation(policy, list(config.backends), tenants, access.key_admin))


def replication_of(stores: Stores, parts: Parts, removal: Purge) -> Replication | None:
    """None: no other gateway is on this store."""
    if stores.changes is None or stores.journal is None:
        return None
    known = parts.memory.counterexamples

    async def reread() -> None:
        known.add(await stores.redis.counterexamples())
        await removal.refresh()

    replication = Replication(
        stores.changes,
        parts.spaces,
        parts.store,
        known,
        parts.telemetry,
        parts.clock,
        gateway=stores.journal.gateway,
        reread=reread,
        on_removal=removal.wake,
    )
    for space in parts.spaces.all:
        if space.checkpoints is not None:
            space.checkpoints.position = lambda: replication.position
    return replication


def recovery_of(
    stores: Stores,
    space: Space,
    parts: Parts,
    removal: Purge | None = None,
    replication: Replication | None = None,
) -> Recovery:
    """`removal` and `replication` with the space that serves: what is learnt and removed has to be known before anything
    is looked up."""
    return Recovery(
        space.store,
        stores.redis,
        space.index,
        parts.memory.counterexamples,
        parts.clock,
        space.checkpoints,
        None if removal is None else space.learning,
        removal,
        None if replication is None else replication.consumer,
    )


def migration_of(stores: Stores, parts: Parts) -> EmbeddingMigration:
    """To the model in use."""
    foreign = RedisMigration(stores.redis, embedder=parts.spaces.target.embedder.fingerprint)
    return EmbeddingMigration(foreign, parts.spaces, parts.telemetry, parts.clock)


def cutover_of(
    config: Config, stores: Stores, parts: Parts, migration: EmbeddingMigration, on_cutover: Callable[[], None]
) -> EmbedderCutover:
    """`on_cutover`: builds what requests pass on the space that then serves."""
    recovery = recovery_of(stores, parts.spaces.target, parts)
    return EmbedderCutover(
        parts.spaces, migration, recovery, on_cutover, parts.former, lambda: remove_former_checkpoint(config)
    )
