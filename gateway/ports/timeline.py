"""Where the dashboard's history outlives a restart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

Slot = tuple[int, int]
"""The length of its resolution's slots in seconds, and its number."""


class TimelineStore(Protocol):
    """All gateways on a store write into it, each its own part of a slot. Every method may raise `StoreUnavailable`."""

    @property
    def name(self) -> str:
        """Of this gateway, in this run of it."""

    async def write(self, parts: Mapping[Slot, Mapping[str, float]], keep: Mapping[int, int]) -> None:
        """Replaces this gateway's parts. `keep`: seconds that slots of each length are kept."""

    async def read(self, slots: Iterable[Slot]) -> Mapping[Slot, Mapping[str, Mapping[str, float]]]:
        """The parts of all gateways by their names; a slot that nobody has written is left out."""
