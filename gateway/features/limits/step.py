"""Enforces the limits of a route: how much of its backends a tenant, key or user may use."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gateway.config.policy.model import Route
from gateway.context import Handler, RequestContext, resolve_response
from gateway.dialects.operations import SAFE_METHODS
from gateway.errors import BudgetExceeded, Forbidden, ServeStale
from gateway.features.limits.evaluation import (
    ALL_ROUTES,
    LimitRequest,
    light_only,
    limit_requests,
    limits_calls,
    rate_limit_headers,
    requests_of,
    returns_without_call,
    returns_without_large,
    with_headers,
)
from gateway.features.limits.metering import MeteredCall, RouteMeter, metered_call
from gateway.features.limits.rate_limiter import RateLimiter, key_limits, take_limits
from gateway.features.limits.redis import RedisQuotas
from gateway.features.limits.settlement import ReservedCall, Settlement
from gateway.limits import Limits, Per, RouteLimits
from gateway.messages import Response
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.prices import UNPRICED, Tariff
from gateway.steps.metering import MeterCore, limit_subjects
from gateway.steps.route_ports import OnSpent
from gateway.tasks import run_in


class CountRequests:
    """Enforces limits on requests that also count the answers of the caches: a route's, or an API key's."""

    def __init__(self, inner: Handler, route: Route, quotas: RateLimiter, telemetry: Telemetry) -> None:
        self._inner = inner
        self._route = route
        self._limits = (route.of(RouteLimits) or RouteLimits()).rules
        self._quotas = quotas
        self._telemetry = telemetry

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        own, key = key_limits(request)
        requested_limits = requests_of(self._route.name, self._limits, limit_subjects(request)) + requests_of(
            ALL_ROUTES, own, key
        )
        if not requested_limits:
            return self._inner(request)
        request.require_capacity()
        return self._forward_counted(request, requested_limits)

    async def _forward_counted(self, request: RequestContext, requested_limits: Sequence[LimitRequest]) -> Response:
        _, grant = await take_limits(request, self._route.name, lambda: requested_limits, self._quotas, self._telemetry)
        response = await resolve_response(self._inner(request))
        request.served = None  # the exact fast path would answer the next one without counting it
        headers = with_headers(response.headers, rate_limit_headers(requested_limits, grant.taken))
        return Response(response.status, headers, response.body, response.provenance)


LOG = logging.getLogger("nearhit.limits")


class RateLimit:
    """Meters calls and enforces limits on them, right before `Dispatch`. Answers from the caches take nothing from
    them, and of identical requests only the leader does.

    The cost of a call is reserved first. It is settled when the answer has ended, even if it fails or its client
    leaves. A call that nothing meters is refused if a limit counts tokens or costs. `light` in the policy's caps and
    `large_share` take away the larger models, not the answer. `passable` are the backends that take requests which no
    dialect reads."""

    def __init__(
        self,
        inner: Handler,
        route: Route,
        quotas: RateLimiter,
        prices: Mapping[str, Tariff],
        telemetry: Telemetry,
        clock: Clock,
        passable: Collection[str],
        on_spent: OnSpent | None = None,
    ) -> None:
        self._inner = inner
        self._route = route
        limits = (route.of(RouteLimits) or RouteLimits()).rules
        self._of_calls = [*filter(limits_calls, limits)]
        self._quotas = quotas
        members = {name: prices.get(name, UNPRICED) for name in route.target.members}
        self._largest = route.target.tiers[-1]
        self._meter = RouteMeter(members, passable, prices, self._largest.backend, clock)
        if any(rule.caps for rule in limits) and not any(tariff.charges for tariff in members.values()):
            message = "a cap on costs has no effect: no backend of the route has a price"
            LOG.warning(message, extra={"fields": {"route": route.name}})
        self._counts = route.metered or any(tariff.charges for tariff in members.values())
        self._telemetry = telemetry
        self._settlement = Settlement(
            route.name, self._largest.backend, self._meter, quotas, telemetry, clock, on_spent
        )

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        if request.directives.only_if_cached:
            return self._inner(request)  # no call will be made
        route_limits = [rule for rule in self._of_calls if rule.per == "route" or not request.work.internal]
        own, key = key_limits(request)
        own = tuple(filter(limits_calls, own))
        if not route_limits and not own:
            return self._forward_metered(request) if self._is_metered(request) else self._inner(request)
        request.require_capacity()
        return self._forward_limited(request, route_limits, own, key)

    def _is_metered(self, request: RequestContext) -> bool:
        """Return whether a call without limits is counted in metrics or in the traffic log."""
        spends = request.call is not None or request.method not in SAFE_METHODS
        return self._counts and spends and not request.work.internal

    async def _forward_metered(self, request: RequestContext) -> Response:
        metered = await metered_call(request)
        response = await resolve_response(self._inner(request))
        if metered.operation.is_free:
            return response
        account = self._settlement.open(request)
        return await self._settlement.settle(ReservedCall(request, metered, account, list), response)

    async def _forward_limited(
        self, request: RequestContext, route_limits: list[Limits], own: Sequence[Limits], key: Mapping[Per, str]
    ) -> Response:
        metered = await metered_call(request)
        self._check_meter(metered, [*route_limits, *own])
        if request.call is None or request.call.embeds or request.call.passes:  # they choose no tier
            route_limits, own = _without_shares(route_limits), _without_shares(own)
        if metered.operation.is_free:
            route_limits, own = _without_amounts(route_limits), _without_amounts(own)
        whose = limit_subjects(request)

        def ask() -> list[LimitRequest]:
            reserved, member = self._meter.reserve(metered), self._quotas.member()
            return [
                *limit_requests(self._route.name, route_limits, whose, reserved, member),
                *limit_requests(ALL_ROUTES, own, key, reserved, member),
            ]

        demands, grant = await take_limits(request, self._route.name, ask, self._quotas, self._telemetry)
        light_limit = light_only(demands, grant.taken)
        if light_limit is not None:
            self._telemetry.limited.add(self._route.name, light_limit)
        account = self._settlement.open(request, demands, grant)
        try:
            request.constraints = request.constraints._replace(light_only=light_limit is not None)
            if request.call is not None or not metered.operation.is_free:
                request.reads_answer = True
            response = await resolve_response(self._inner(request))
        except (BudgetExceeded, ServeStale):
            self._quotas.refund(grant, returns_without_call(demands, grant.taken))
            account.release()
            raise
        except Exception:
            account.release()
            raise
        except BaseException:  # the client has left, and the backend may have read the input
            account.close(self._meter.read_alone(metered))
            raise
        if response.provenance.backend not in self._largest.members:
            self._quotas.refund(grant, returns_without_large(demands, grant.taken))
        response = replace(response, headers=with_headers(response.headers, rate_limit_headers(demands, grant.taken)))
        return await self._settlement.settle(ReservedCall(request, metered, account, ask), response)

    def _check_meter(self, metered: MeteredCall, limits: Sequence[Limits]) -> None:
        """Raise `Forbidden` if nothing meters the call, and a limit needs it."""
        counted = ["tokens"] * any(rule.tokens for rule in limits) + ["cost"] * any(rule.caps for rule in limits)
        try:
            self._meter.check(metered, counted)
        except Forbidden:
            self._telemetry.limited.add(self._route.name, "unmetered")
            raise


def _without_shares(limits: Sequence[Limits]) -> list[Limits]:
    return [replace(rule, large_share=None) for rule in limits]


def _without_amounts(limits: Sequence[Limits]) -> list[Limits]:
    return [replace(rule, tokens=(), caps=()) for rule in limits]


@dataclass(frozen=True, slots=True)
class CallMeter:
    """The counts of calls, which all routes share: the implementation of the port `gateway.steps.metering.Meter`."""

    quotas: RateLimiter
    clock: Clock
    telemetry: Telemetry

    def count_requests(self, route: Route, inner: Handler) -> Handler:
        return CountRequests(inner, route, self.quotas, self.telemetry).__call__

    def rate_limit(
        self,
        route: Route,
        prices: Mapping[str, Tariff],
        passable: Collection[str],
        inner: Handler,
        on_spent: OnSpent | None = None,
    ) -> Handler:
        return RateLimit(inner, route, self.quotas, prices, self.telemetry, self.clock, passable, on_spent).__call__

    def report(self, top: int) -> Mapping[str, Any]:
        usage = [asdict(one) for one in self.quotas.usage(top)]
        return {"gateways": self.quotas.gateways, "waiting": self.quotas.waiting, "limits": usage}


def open_meter(core: MeterCore) -> CallMeter:
    """Build the meter, and correct the counts in the store until the stack closes."""
    quotas = RateLimiter(RedisQuotas(core.store, timeout_s=core.timeout_s), core.clock, core.telemetry)
    core.stack.push_async_callback(quotas.close)
    run_in(core.stack, quotas.run())
    return CallMeter(quotas, core.clock, core.telemetry)
