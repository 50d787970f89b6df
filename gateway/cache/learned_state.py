"""Keeps what routes have learnt in the store, so that a restart does not begin at the calibration again: which semantic
hits may be served, and which requests need the large model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

import msgpack

from gateway.errors import SnapshotInvalid, StoreUnavailable
from gateway.ports import LearningStore

LOG = logging.getLogger("nearhit.quality")
SAVE_EVERY_S = 60.0
POSITION_MARKER = "placed"  # what a snapshot with a position begins with


class LearnedState(Protocol):
    """What one route has learnt."""

    version: int  # counts what was learnt

    @property
    def state(self) -> tuple[int, int]:
        """Differs whenever there is something new to be kept."""

    def snapshot(self) -> bytes: ...

    def restore(self, data: bytes) -> None:
        """Raises `SnapshotInvalid`."""


class Learners(Protocol):
    """By route."""

    def of(self, route: str) -> LearnedState: ...

    def all(self) -> Iterator[tuple[str, LearnedState]]: ...


class SnapshotStore:
    """Keeps what is learnt of something else under names of its own."""

    def __init__(self, store: LearningStore, kind: str) -> None:
        self._store = store
        self._kind = kind

    async def put_learning(self, route: str, snapshot: bytes) -> None:
        await self._store.put_learning(f"{self._kind}/{route}", snapshot)

    async def learning(self, route: str) -> bytes | None:
        return await self._store.learning(f"{self._kind}/{route}")


async def _no_position() -> str | None:
    return None


class StateKeeper:
    """Nothing is saved of a route before its last snapshot has been read: an empty one must not replace it.

    Gateways on one store tell each other what they learn (`gateway.cache.gossip`), so that each one's snapshot is
    that of all: which of them saves a route last does not matter. `position` says up to where the others have been
    heard; it is kept with the snapshot, and a start goes on from there."""

    def __init__(
        self,
        controls: Learners,
        store: LearningStore,
        every_s: float = SAVE_EVERY_S,
        position: Callable[[], Awaitable[str | None]] = _no_position,
    ) -> None:
        self._controls = controls
        self._store = store
        self._every_s = every_s
        self._position = position
        self._retired = False
        self.restored = asyncio.Event()  # all routes have been, once
        self.positions: dict[str, str] = {}  # of the snapshots that were read
        self._saved: dict[str, tuple[int, int]] = {}  # by route that has been restored: the state that the store has

    async def restore(self) -> None:
        """Every route that has not been, as it was saved last. Raises `StoreUnavailable`."""
        for route, control in self._controls.all():
            if route not in self._saved:
                await self._restore(route, control)
        self.restored.set()

    @property
    def routes(self) -> tuple[str, ...]:
        """Those whose last snapshot has been read."""
        return tuple(self._saved)

    def retire(self) -> None:
        """Nothing is saved from now on: lookups are by another embedding model, whose snapshots take the place."""
        self._retired = True

    async def save(self) -> None:
        """What has changed since the last time. A store that does not answer is asked again the next time."""
        try:
            if (
                self._saved and not self._retired
            ):  # the start is over; a policy that was read since then may have brought new routes
                await self.restore()
            for route, control in self._controls.all():
                if route in self._saved and self._saved[route] != control.state:
                    await self.save_one(route)
        except StoreUnavailable as error:
            LOG.warning("what was learnt was not saved", extra={"fields": {"error": str(error)}})

    async def save_one(self, route: str) -> None:
        """Raises `StoreUnavailable`."""
        if self._retired:
            return
        position = await self._position()
        control = self._controls.of(route)
        state = control.state
        await self._store.put_learning(route, _pack_with_position(position, control.snapshot()))
        self._saved[route] = state

    async def start(self) -> None:
        """`restore`, however long the store takes to answer, then `run`."""
        while True:
            try:
                await self.restore()
                break
            except StoreUnavailable as error:
                LOG.warning("what was learnt is not read yet", extra={"fields": {"error": str(error)}})
            await asyncio.sleep(self._every_s)
        await self.run()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self.save()

    async def _restore(self, route: str, control: LearnedState) -> None:
        saved = await self._store.learning(route)
        try:
            if saved is not None and control.version == 0:  # what it has learnt itself meanwhile is newer
                position, snapshot = _unpack_position(saved)
                control.restore(snapshot)
                if position is not None:
                    self.positions[route] = position
        except SnapshotInvalid as error:
            LOG.warning("what was learnt does not fit", extra={"fields": {"route": route, "error": str(error)}})
        self._saved[route] = control.state


def _pack_with_position(position: str | None, snapshot: bytes) -> bytes:
    """Without a position as it is, as gateways before those that share wrote it."""
    if position is None:
        return snapshot
    packed: bytes = msgpack.packb((POSITION_MARKER, position, snapshot))
    return packed


def _unpack_position(saved: bytes) -> tuple[str | None, bytes]:
    """The opposite. What is neither is for `restore` to refuse."""
    try:
        match msgpack.unpackb(saved, use_list=False):
            case (name, str(position), bytes(snapshot)) if name == POSITION_MARKER:
                return position, snapshot
    except (ValueError, msgpack.UnpackException):
        pass
    return None, saved
