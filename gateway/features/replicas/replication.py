"""Follow the changes of other gateways on the store: update the indexes, the memory tier and the bans.

A change only names its entries, and their state is read from the store. So changes may be read more than once, and
those of one entry in any order. This gateway recognises its own changes by a look at the index.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from gateway.cache.embedding_spaces import Spaces
from gateway.cache.feedback import Counterexamples
from gateway.cache.links import Links
from gateway.cache.memory_cache import TieredStore
from gateway.cache.recovery import BATCH, RETRY_S, reconcile, update
from gateway.errors import StoreUnavailable
from gateway.features.replicas.stream_consumer import Lag, StreamConsumer
from gateway.observability.telemetry import Telemetry
from gateway.ports import ChangeKind, ChangeLog, Clock, StoreChange
from gateway.tasks import Background

LOG = logging.getLogger("nearhit.replication")


class Replication:
    """`Replication` applies other gateways' changes.

    `known`, `links` and `front` are those that lookups use. `reread` reads all shared state except entries again, and
    raises `StoreUnavailable`. `on_removal` is called when there are new bans.
    """

    def __init__(
        self,
        log: ChangeLog,
        spaces: Spaces,
        front: TieredStore,
        known: Counterexamples,
        links: Links,
        telemetry: Telemetry,
        clock: Clock,
        *,
        gateway: str,
        reread: Callable[[], Awaitable[None]],
        on_removal: Callable[[], None],
    ) -> None:
        self._spaces = spaces
        self._front = front
        self._known = known
        self._links = links
        self._metrics = telemetry.replication
        self._clock = clock
        self._gateway = gateway
        self._reread = reread
        self._on_removal = on_removal
        self._rebuilding = Background(1)
        self._needs_rebuild = False  # changes were missed during the last comparison
        self.consumer = StreamConsumer(log, clock, apply=self._apply, missed=self._on_gap, on_lag=self._record_lag)

    @property
    def position(self) -> str | None:
        """The position in the log up to which the indexes match the store, or None while they are compared."""
        return None if self._rebuilding else self.consumer.position

    async def run(self) -> None:
        """Run forever, once `consumer` has a start."""
        try:
            await self.consumer.run()
        finally:
            await self._rebuilding.close()

    async def _apply(self, changes: Sequence[StoreChange], now: float) -> None:
        """Apply changes. `now` is by the store's clock. Raise `StoreUnavailable`."""
        started = self._clock.monotonic()
        names: dict[str, None] = {}
        for change in changes:
            if change.kind is ChangeKind.VECTORS:
                names.update(dict.fromkeys(self._names_to_update(change)))
            if change.by != self._gateway:
                self._apply_immediate(change)
        await self._update(list(names))
        elapsed_s = self._clock.monotonic() - started
        for change in changes:
            if change.by != self._gateway:
                self._metrics.delay_seconds.observe(max(0.0, now - change.at + elapsed_s))
                self._metrics.changes.add(change.kind or "unknown")

    def _names_to_update(self, change: StoreChange) -> Sequence[str]:
        """Return the entries to update. This gateway's own are in the index, unless another gateway came in between."""
        if change.by != self._gateway:
            return change.names
        return [
            name for name in change.names if not all(space.index.holds(name) for space in self._spaces.with_local_index)
        ]

    def _apply_immediate(self, change: StoreChange) -> None:
        """Apply the parts of a change that need no store access."""
        if change.kind in (ChangeKind.VECTORS, ChangeKind.RECORDS):
            for name in change.names:
                self._front.forget(name)
        elif change.kind is ChangeKind.COUNTEREXAMPLE:
            self._known.add([change.value])
        elif change.kind is ChangeKind.LINKS:
            self._links.add(change.names)
        elif change.kind is ChangeKind.BANS:
            self._on_removal()

    async def _update(self, names: Sequence[str]) -> None:
        for i in range(0, len(names), BATCH):
            batch = names[i : i + BATCH]
            for space in self._spaces.with_local_index:
                stored = await update(space.store, space.index, self._clock, batch)
                missing = [name for name in batch if name not in stored]
                # A gateway with another embedder replaces the vectors of the same questions: this index keeps its own.
                foreign = await space.backing_store.foreign(missing)
                gone = [name for name in missing if name not in foreign]
                await space.index.remove(gone)
                space.decoys.forget(gone)

    def _on_gap(self) -> None:
        """Start a comparison in the background, which finds the missed changes."""
        LOG.warning("changes of other gateways were lost before they were read: comparing the index with the store")
        self._needs_rebuild = bool(self._rebuilding)
        if not self._needs_rebuild:
            self._rebuilding.start("rebuild", self._rebuild())

    async def _rebuild(self) -> None:
        started = self._clock.monotonic()
        while True:
            self._needs_rebuild = False
            try:
                await self._reread()
                for space in self._spaces.with_local_index:
                    await reconcile(space.store, space.index, self._clock)
            except StoreUnavailable:
                self._metrics.rebuilds.add("interrupted")
                await asyncio.sleep(RETRY_S)
                continue
            self._metrics.rebuilds.add("done")
            if not self._needs_rebuild:
                break
        elapsed_s = round(self._clock.monotonic() - started, 3)
        LOG.info("the index was compared with the store", extra={"fields": {"seconds": elapsed_s}})

    def _record_lag(self, lag: Lag) -> None:
        self._metrics.lag_entries.set(value=lag.entries)
        self._metrics.lag_seconds.set(value=lag.seconds)
