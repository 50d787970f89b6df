"""Erasures: open the feature that erases a subject when the first erasure needs it.

Most gateways never erase anybody. So `gateway.features.erasure` is imported at an operator's erasure, or once another
gateway has made one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from gateway.cache.bans import Ban
from gateway.cache.purge import Purge
from gateway.cache.stored_parts import StoredPart
from gateway.cache.stores import Stores
from gateway.config import Config
from gateway.steps.parts import Parts

MODULE = "gateway.features.erasure.eraser"
RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class ErasureCore:
    """The parts of the gateway that erasures build on."""

    config: Config
    stores: Stores
    parts: Callable[[], Parts]  # returns those in force: a reference would keep a former index in memory
    removal: Purge
    feature_parts: Callable[[], Sequence[StoredPart]]  # returns what the features of routes store


class Follower(Protocol):
    """The eraser, as far as erasures of other gateways need it."""

    async def follow(self, ban: Ban) -> bool:
        """Erase the files and the memory of this process. Return whether all is erased."""

    def apply_event(self, names: Sequence[str], questions: Sequence[str], vectors: bytes, dimension: int) -> None:
        """Forget what another gateway has erased. Raise `ValueError` or `TypeError` where it cannot be read."""


class Erasures:
    """`Erasures` opens the eraser, and lets it follow the erasures of other gateways."""

    def __init__(self, core: ErasureCore) -> None:
        self._core = core
        self._eraser: Any = None
        self._followed: list[Ban] = []
        self._is_due = asyncio.Event()
        core.removal.on_erasures = self._follow_later
        core.parts().fleet.on("erase", lambda *event: self._open().apply_event(*event))

    async def open(self) -> Any:
        """Return the `gateway.features.erasure.eraser.Eraser`. The event loop goes on during the import."""
        await asyncio.to_thread(import_module, MODULE)
        return self._open()

    def _open(self) -> Any:
        if self._eraser is None:
            self._eraser = import_module(MODULE).eraser_of(self._core)
        return self._eraser

    def _follow_later(self, bans: Sequence[Ban]) -> None:
        self._followed += bans
        self._is_due.set()

    async def run(self) -> None:
        """Follow the erasures of other gateways until cancelled."""
        if self._core.stores.shared is not None:
            await self.open()
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            eraser: Follower = await self.open()
            bans, self._followed = self._followed, []
            failed = [ban for ban in bans if not await eraser.follow(ban)]
            if failed:
                self._follow_later(failed)
                await asyncio.sleep(RETRY_S)
