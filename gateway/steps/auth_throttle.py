"""How often an address may show credentials that are none: bounds guesses, and what they cost the store.

GCRA, as the limits of routes (`gateway.limits`): `BURST` failures at once, then one every `INTERVAL_S`. A client
that is set up wrongly and asks every 15 s (Prometheus) stays below it; a guesser gets 28,800 guesses a day.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address

from gateway.bounded_cache import BoundedCache

BURST = 20
INTERVAL_S = 3.0
MAX_ADDRESSES = 10_000  # beyond it the one that failed longest ago is forgotten


class Failures:
    """`now`: monotonic clock, seconds. To be used from one event loop."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        # By network: when its last failure is forgotten.
        self._until: BoundedCache[str, float] = BoundedCache(MAX_ADDRESSES)

    def wait_s(self, address: str) -> int | None:
        """Whole seconds until credentials of this address are looked at again; None: they are now."""
        backlog_s = (self._until.peek(network_of(address)) or 0.0) - self._now()
        over_s = backlog_s - (BURST - 1) * INTERVAL_S
        return max(1, math.ceil(over_s)) if over_s > 0 else None

    def failed(self, address: str) -> None:
        now, network = self._now(), network_of(address)
        self._until.put(network, max(now, self._until.peek(network) or 0.0) + INTERVAL_S)


def network_of(address: str) -> str:
    """Who has one IPv6 address has the 2^64 of its network."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if not isinstance(found, IPv6Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(IPv6Address(int(found) >> 64 << 64))
