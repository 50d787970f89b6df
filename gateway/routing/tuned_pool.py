"""Call a backend with the parameters of a tier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gateway.config.policy.model import Target
from gateway.config.policy.parameters import Parameters
from gateway.context import RequestContext
from gateway.dialects.tuning import lower, tuned_call
from gateway.latency_forecast import Prediction
from gateway.messages import Response
from gateway.prices import Tariff
from gateway.routing.selection import BackendTraits
from gateway.upstream.backend import UpstreamPool
from gateway.upstream.latency import CallFeatures
from gateway.upstream.upstream import route_of_features


class CallableBackend(BackendTraits, Protocol):
    """A backend as a route calls it: an `UpstreamPool`, with or without parameters."""

    def allow(self, now: float, request: RequestContext | None = None) -> bool: ...

    def wait_s(self, request: RequestContext) -> float: ...

    def predict(self, features: CallFeatures, now: float, confidence: float) -> Prediction | None: ...

    async def call(self, request: RequestContext) -> Response: ...


class TunedPool:
    """`TunedPool` is a backend whose calls get parameters. It shares permits and breakers with the plain backend.

    Latencies are learnt apart, because another effort takes another time.
    """

    def __init__(self, pool: UpstreamPool, parameters: Parameters) -> None:
        self._pool = pool
        self._parameters = parameters

    @property
    def http(self) -> bool:
        return self._pool.http

    @property
    def speaks(self) -> str:
        return self._pool.speaks

    def allow(self, now: float, request: RequestContext | None = None) -> bool:
        return self._pool.allow(now, request)

    def wait_s(self, request: RequestContext) -> float:
        return self._pool.wait_s(request)

    def predict(self, features: CallFeatures, now: float, confidence: float) -> Prediction | None:
        parameters = self._parameters
        max_tokens = lower(features.max_tokens, parameters.max_tokens)
        route = route_of_features(features.route, str(parameters))
        return self._pool.predict(features._replace(route=route, max_tokens=max_tokens), now, confidence)

    async def call(self, request: RequestContext) -> Response:
        if request.call is None or request.call.passes:
            return await self._pool.call(request)
        tuned = request.with_call(tuned_call(request.call, self._parameters, self._pool.speaks))
        return await self._pool.call(tuned)


def pools_of(target: Target, pools: Mapping[str, UpstreamPool]) -> Mapping[str, CallableBackend]:
    """Return the backends that a target may call, by the names of its decisions."""
    return {**pools, **{each.name: TunedPool(pools[each.backend], each.parameters) for each in target.tuned}}


def prices_of(target: Target, prices: Mapping[str, Tariff]) -> Mapping[str, Tariff]:
    """Return the prices of backends, by the names of the decisions of a target as well."""
    return {**prices, **{each.name: prices[each.backend] for each in target.tuned if each.backend in prices}}
