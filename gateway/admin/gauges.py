"""The gauges that nobody updates as things happen: read before a scrape and for the dashboard's history, or set when a
policy comes into force."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gateway.cache.embedding_spaces import Spaces
from gateway.cache.memory_cache import FrontStore
from gateway.config.policy.model import Policy
from gateway.errors import StoreUnavailable
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.upstream.backend import Pool


def show_policy(telemetry: Telemetry, policy: Policy) -> None:
    """What `policy`, now in force, promises; alerts hold what is measured against it. Of routes that it lacks nothing
    is left."""
    for gauge in (telemetry.policy_info, telemetry.max_wrong_hits, telemetry.promised_confidence):
        gauge.values.clear()
    telemetry.policy_info.set(policy.hash, value=1.0)
    for route in policy.routes:
        telemetry.promised_confidence.set(route.name, value=route.promise.confidence)
        if route.semantic is not None and route.semantic.acceptance.max_wrong_hits is not None:
            telemetry.max_wrong_hits.set(route.name, value=route.semantic.acceptance.max_wrong_hits)


def sizes(telemetry: Telemetry) -> dict[str, Any]:
    """How full the caches are. `store_answers` False: what is said of the store is of before, where anything is."""
    return {
        "entries": {kind: value for (kind,), value in telemetry.cache_entries.values.items()},
        "bytes": {kind: value for (kind,), value in telemetry.cache_bytes.values.items()},
        "store_answers": telemetry.store_up.values.get((), 0.0) > 0,
    }


class Gauges:
    def __init__(
        self,
        telemetry: Telemetry,
        pools: Mapping[str, Pool],
        store: FrontStore,
        spaces: Spaces,
        clock: Clock,
        routing: Callable[[], None],
    ) -> None:
        """`routing` sets those of `gateway.admin.routing`."""
        self._telemetry = telemetry
        self._pools = pools
        self._store = store
        self._spaces = spaces
        self._clock = clock
        self._routing = routing

    async def sample(self) -> None:
        """All of them."""
        self.look()
        await self._ask()

    def look(self) -> None:
        """Those of this process, without asking the store."""
        telemetry, now = self._telemetry, self._clock.monotonic()
        for name, pool in self._pools.items():
            crowd = pool.crowd
            telemetry.backend_inflight.set(name, value=crowd.inflight)
            telemetry.backend_limit.set(name, value=crowd.limit)
            telemetry.backend_queued.set(name, value=crowd.queued)
            telemetry.breaker_state.set(name, value=pool.state(now))
            self._sample_upstreams(pool, now)
        self._sample_quality()
        self._routing()
        telemetry.cache_entries.set("front", value=len(self._store))
        telemetry.cache_bytes.set("front", value=self._store.bytes)
        telemetry.cache_entries.set("index", value=self._spaces.serving.index.size)
        telemetry.cache_bytes.set("index", value=sum(space.index.bytes for space in self._spaces.all))
        if (placed := self._spaces.serving.index.placed) is not None:
            telemetry.cache_entries.set("device", value=placed)

    async def _ask(self) -> None:
        telemetry = self._telemetry
        try:
            stored = await self._store.stats()
        except StoreUnavailable:
            telemetry.store_up.set(value=0.0)
            return  # the last figures stand
        telemetry.store_up.set(value=1.0)
        telemetry.cache_entries.set("store", value=stored.entries)
        telemetry.cache_bytes.set("store", value=stored.bytes)

    def _sample_upstreams(self, pool: Pool, now: float) -> None:
        telemetry = self._telemetry
        for lane in pool.lanes:
            labels = pool.name, lane.upstream.address
            telemetry.upstream_state.set(*labels, value=lane.state(now))
            telemetry.upstream_inflight.set(*labels, value=lane.backend.crowd.inflight)
            slowest_s = lane.slowest_s()
            if slowest_s is not None:
                telemetry.upstream_latency.set(*labels, value=slowest_s)

    def _sample_quality(self) -> None:
        telemetry = self._telemetry
        for route, control in self._spaces.serving.controls.all():
            estimate = control.estimate()
            telemetry.wrong_hit_ratio.set(route, value=estimate.of_all)
            telemetry.wrong_hit_ratio_low.set(route, value=estimate.of_all_low)
            telemetry.wrong_hit_ratio_high.set(route, value=estimate.of_all_high)
            telemetry.wrong_of_served_ratio.set(route, value=estimate.of_served)
            telemetry.wrong_of_served_ratio_low.set(route, value=estimate.of_served_low)
            telemetry.wrong_of_served_ratio_high.set(route, value=estimate.of_served_high)
            if control.in_force is not None:
                telemetry.acceptance_threshold.set(route, value=control.in_force)
