"""Save learned state in the store, so that a restart does not begin at the calibration again.

Two kinds are saved: which semantic hits may be served, and which requests need the large model.
"""

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
POSITION_MARKER = "placed"  # first element of a snapshot with a position


class LearnedState(Protocol):
    """The learned state of one route."""

    version: int  # counts changes of the learned state

    @property
    def state(self) -> tuple[int, int]:
        """A value that differs whenever there is something new to save."""

    def snapshot(self) -> bytes: ...

    def restore(self, data: bytes) -> None:
        """Load a snapshot. Raise `SnapshotInvalid`."""


class Learners(Protocol):
    """The learned states of all routes."""

    def of(self, route: str) -> LearnedState: ...

    def all(self) -> Iterator[tuple[str, LearnedState]]: ...


class SnapshotStore:
    """A store for the snapshots of another kind of learned state, with its own key prefix."""

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
    """`StateKeeper` saves and restores the learned state of every route.

    A route is not saved before its last snapshot was read: an empty one must not replace it. Gateways on one store
    exchange what they learn. So every snapshot is that of all gateways, whichever saved it last. `position` tells
    how far the others' messages were read; it is saved with the snapshot, and a start continues there.
    """

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
        self.restored = asyncio.Event()  # set once all routes are restored
        self.positions: dict[str, str] = {}  # of the snapshots that were read
        self._saved: dict[str, tuple[int, int]] = {}  # by restored route: the state in the store

    async def restore(self) -> None:
        """Restore every route that was not restored yet. Raise `StoreUnavailable`."""
        for route, control in self._controls.all():
            if route not in self._saved:
                await self._restore(route, control)
        self.restored.set()

    @property
    def routes(self) -> tuple[str, ...]:
        """The routes whose last snapshot was read."""
        return tuple(self._saved)

    def retire(self) -> None:
        """Stop saving: another embedding model serves lookups, and its snapshots replace these."""
        self._retired = True

    async def save(self) -> None:
        """Save what changed since the last time. If the store fails, the next call tries again."""
        try:
            if self.restored.is_set() and not self._retired:  # after the start; a new policy may have added routes
                await self.restore()
            for route, control in self._controls.all():
                if route in self._saved and self._saved[route] != control.state:
                    await self.save_one(route)
        except StoreUnavailable as error:
            LOG.warning("the learned state could not be saved", extra={"fields": {"error": str(error)}})

    async def save_one(self, route: str) -> None:
        """Save one route. Raise `StoreUnavailable`."""
        if self._retired:
            return
        position = await self._position()
        control = self._controls.of(route)
        state = control.state
        await self._store.put_learning(route, _pack_with_position(position, control.snapshot()))
        self._saved[route] = state

    async def start(self) -> None:
        """Restore, however long the store takes to answer, then run."""
        while True:
            try:
                await self.restore()
                break
            except StoreUnavailable as error:
                LOG.warning("the learned state could not be read yet", extra={"fields": {"error": str(error)}})
            await asyncio.sleep(self._every_s)
        await self.run()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self.save()

    async def _restore(self, route: str, control: LearnedState) -> None:
        saved = await self._store.learning(route)
        try:
            if saved is not None and control.version == 0:  # its own state, learned meanwhile, is newer
                position, snapshot = _unpack_position(saved)
                control.restore(snapshot)
                if position is not None:
                    self.positions[route] = position
        except SnapshotInvalid as error:
            LOG.warning("the saved learned state does not fit", extra={"fields": {"route": route, "error": str(error)}})
        self._saved[route] = control.state


def _pack_with_position(position: str | None, snapshot: bytes) -> bytes:
    """Return the snapshot as it is without a position, the format of older gateways."""
    if position is None:
        return snapshot
    packed: bytes = msgpack.packb((POSITION_MARKER, position, snapshot))
    return packed


def _unpack_position(saved: bytes) -> tuple[str | None, bytes]:
    """Return position and snapshot. `restore` rejects any other data."""
    try:
        match msgpack.unpackb(saved, use_list=False):
            case (name, str(position), bytes(snapshot)) if name == POSITION_MARKER:
                return position, snapshot
    except (ValueError, msgpack.UnpackException):
        pass
    return None, saved
