"""Builds what operators act on stored answers with. Used by `app` alone."""

from __future__ import annotations

from collections.abc import Callable

from gateway.admin.cache import CacheAdmin
from gateway.cache.lifetimes import longest_lifetime_s
from gateway.chains import Parts
from gateway.config import Config
from gateway.dialects.known import DIALECTS
from gateway.parts import Stores
from gateway.policy.model import Policy
from gateway.portability import Portability
from gateway.removal import Removal


def removal_of(config: Config, parts: Parts, stores: Stores, policy: Callable[[], Policy]) -> Removal:
    """`policy` returns the one in force."""
    slowest_s = max(backend.timeouts.total for backend in config.backends.values())

    def horizon_s() -> float:
        return slowest_s + max(map(longest_lifetime_s, policy().routes), default=0.0)

    return Removal(
        front=parts.store,
        store=stores.removals,
        index=parts.index,
        embedder=parts.embedder,
        flights=parts.flights,
        clock=parts.clock,
        telemetry=parts.telemetry,
        horizon_s=horizon_s,
    )


def cache_admin_of(config: Config, parts: Parts, stores: Stores, removal: Removal) -> CacheAdmin:
    portability = Portability(
        front=parts.store,
        store=stores.redis,
        removal=removal,
        index=parts.index,
        embedder=parts.embedder,
        dialects=DIALECTS,
        clock=parts.clock,
        max_entry=config.store.max_entry,
    )
    return CacheAdmin(removal, portability, with_token=config.auth.admin_token_env is not None)
