"""Where limits are counted, for all gateways that share it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gateway.routing.quota import Demand, Return, Taken


class QuotaStore(Protocol):
    """By its own clock. Every method raises `StoreUnavailable`. What is counted expires by itself."""

    async def take(self, demands: Sequence[Demand]) -> Taken:
        """Meets all demands at once, or none."""

    async def settle(self, returns: Sequence[Return]) -> None:
        """Puts right what was taken."""

    async def beat(self, gateway: str, places: Sequence[tuple[str, str]]) -> int:
        """Says that this gateway is alive, and keeps its places (key, member), which are free otherwise after a while.
        Returns how many gateways are alive, this one included."""
