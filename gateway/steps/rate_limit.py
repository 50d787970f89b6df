"""Enforces the limits of a route: how much of its backends a tenant, key or user may use."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace

from gateway.config.policy.model import Route
from gateway.context import Handler, RequestContext, resolve_response
from gateway.errors import BudgetExceeded, ServeStale
from gateway.limits import MICROS, Limits
from gateway.messages import Call, Event, EventStream, FullBody, Price, Response, Usage
from gateway.observability.telemetry import Telemetry
from gateway.routing.limit_evaluation import (
    ALL_ROUTES,
    BYTES_A_TOKEN,
    CostEstimate,
    LimitRequest,
    TypicalLength,
    input_tokens,
    light_only,
    limit_requests,
    rate_limit_headers,
    requests_of,
    returns_of,
    returns_without_call,
    returns_without_large,
    with_headers,
)
from gateway.routing.rate_limiter import Grant, RateLimiter, key_limits, limit_subjects, take_limits
from gateway.streams import StreamObserver, with_completion, with_observer


class CountRequests:
    """Enforces limits on requests that also count the answers of the caches: a route's, or an API key's."""

    def __init__(self, inner: Handler, route: Route, quotas: RateLimiter, telemetry: Telemetry) -> None:
        self._inner = inner
        self._route = route
        self._quotas = quotas
        self._telemetry = telemetry

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        own, key = key_limits(request)
        requested_limits = requests_of(self._route.name, self._route.limits, limit_subjects(request)) + requests_of(
            ALL_ROUTES, own, key
        )
        if not requested_limits:
            return self._inner(request)
        request.require_capacity()
        return self._forward_counted(request, requested_limits)

    async def _forward_counted(self, request: RequestContext, requested_limits: Sequence[LimitRequest]) -> Response:
        grant = await take_limits(request, self._route.name, requested_limits, self._quotas, self._telemetry)
        response = await resolve_response(self._inner(request))
        request.served = None  # the exact fast path would answer the next one without counting it
        headers = with_headers(response.headers, rate_limit_headers(requested_limits, grant.taken))
        return Response(response.status, headers, response.body, response.provenance)


LOG = logging.getLogger("nearhit.limits")

MAX_READ = 2**20  # bytes of a stream that are kept to read its usage; of a longer one the events are counted


class RateLimit:
    """Enforces limits on calls, right before `Dispatch`. Answers from the caches take nothing from them, and of
    identical requests only the leader does.

    The cost of a call is estimated first. It is corrected when the answer has ended, even if it fails or its client
    leaves. `light` in the policy's caps and `large_share` take away the larger models, not the answer."""

    def __init__(
        self, inner: Handler, route: Route, quotas: RateLimiter, prices: Mapping[str, Price], telemetry: Telemetry
    ) -> None:
        self._inner = inner
        self._route = route
        self._quotas = quotas
        self._prices = prices
        self._dearest = [prices.get(name, Price()) for name in route.target.members]
        self._largest = route.target.tiers[-1]
        if any(rule.caps for rule in route.limits) and all(price == Price() for price in self._dearest):
            message = "a cap on costs has no effect: no backend of the route has a price"
            LOG.warning(message, extra={"fields": {"route": route.name}})
        self._telemetry = telemetry
        self._typical = TypicalLength()

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        if request.directives.only_if_cached:
            return self._inner(request)  # no call will be made
        requested_limits = self._requested_limits(request)
        if not requested_limits:
            return self._inner(request)
        request.require_capacity()
        return self._forward_limited(request, requested_limits)

    async def _forward_limited(self, request: RequestContext, requested_limits: Sequence[LimitRequest]) -> Response:
        grant = await take_limits(request, self._route.name, requested_limits, self._quotas, self._telemetry)
        light_limit = light_only(requested_limits, grant.taken)
        if light_limit is not None:
            self._telemetry.limited.add(self._route.name, light_limit)
        account = _Account(self, requested_limits, grant)
        try:
            request.light_only, request.metered = light_limit is not None, True
            response = await resolve_response(self._inner(request))
        except (BudgetExceeded, ServeStale):
            self._quotas.refund(grant, returns_without_call(requested_limits, grant.taken))
            account.close(CostEstimate())
            raise
        except Exception:
            account.close(CostEstimate())
            raise
        except BaseException:  # the client has left, and the backend may have read the input
            account.close(self._cost(None, input_tokens(request.call) if request.call else 0, 0))
            raise
        if response.provenance.backend not in self._largest.members:
            self._quotas.refund(grant, returns_without_large(requested_limits, grant.taken))
        response = replace(
            response, headers=with_headers(response.headers, rate_limit_headers(requested_limits, grant.taken))
        )
        return self._forward_counted(request.call, response, account)

    def _requested_limits(self, request: RequestContext) -> list[LimitRequest]:
        route_limits = [rule for rule in self._route.limits if rule.per == "route" or not request.internal]
        own, key = key_limits(request)
        if not route_limits and not own:
            return []
        if request.call is None or request.call.operation == "embeddings":  # they choose no tier
            route_limits, own = _without_shares(route_limits), tuple(_without_shares(own))
        estimate, member = self._estimate(request.call), self._quotas.member()
        return [
            *limit_requests(self._route.name, route_limits, limit_subjects(request), estimate, member),
            *limit_requests(ALL_ROUTES, own, key, estimate, member),
        ]

    def _estimate(self, call: Call | None) -> CostEstimate:
        """Estimate the cost, at the price of the most expensive model that may answer."""
        if call is None:
            return CostEstimate()
        input_count, output_count = input_tokens(call), self._typical.output_tokens(call)
        dollars = max(price.of(input_count, output_count) for price in self._dearest)
        return CostEstimate(input_count + output_count, round(dollars * MICROS))

    def _cost(self, backend: str | None, input_count: int, output_count: int, cached_count: int = 0) -> CostEstimate:
        price = self._prices.get(backend or self._largest.backend, Price())
        dollars = price.of(input_count, output_count, cached_count)
        return CostEstimate(input_count + output_count, round(dollars * MICROS))

    def _forward_counted(self, call: Call | None, response: Response, account: _Account) -> Response:
        """Close the account when the answer is over."""
        body, backend = response.body, response.provenance.backend
        account.other_cost = self._sum_costs(response.provenance.other_usage)
        if call is None or response.status != 200 or not isinstance(body, FullBody | EventStream):
            return with_completion(response, lambda: account.close(CostEstimate()))
        if isinstance(body, FullBody):
            account.close(
                self._actual_cost(call, backend, [body.data], len(body.data) // BYTES_A_TOKEN, streamed=False)
            )
            return response
        payload_events: list[bytes] = []
        seen = [0, 0]  # events, bytes

        def saw(events: Sequence[Event]) -> Sequence[Event]:
            for event in events:
                seen[0], seen[1] = seen[0] + 1, seen[1] + len(event.data)
                if seen[1] <= MAX_READ:
                    payload_events.append(event.data)
            return events

        def on_end() -> None:
            whole = payload_events if seen[1] <= MAX_READ else []
            account.close(self._actual_cost(call, backend, whole, seen[0], streamed=True))

        return replace(response, body=EventStream(with_observer(body.events, StreamObserver(saw, on_close=on_end))))

    def _sum_costs(self, usages: Sequence[Usage]) -> CostEstimate:
        costs = [
            self._cost(usage.backend, usage.input_tokens, usage.output_tokens, usage.cached_tokens) for usage in usages
        ]
        return CostEstimate(sum(cost.tokens for cost in costs), sum(cost.micros for cost in costs))

    def _actual_cost(
        self, call: Call, backend: str | None, payload: Sequence[bytes], token_estimate: int, *, streamed: bool
    ) -> CostEstimate:
        """Return the cost by the usage in the answer. `token_estimate` stands for the output tokens if it reports none
        (`routing.limit_evaluation`); models send about one token an event."""
        inspection = call.dialect.inspect(call, payload, streamed)
        input_count, output_count = inspection.input_tokens, inspection.output_tokens
        if input_count == output_count == 0:
            input_count, output_count = input_tokens(call), 0 if call.operation == "embeddings" else token_estimate
        if call.operation != "embeddings":
            self._typical.saw(output_count)
        return self._cost(backend, input_count, output_count, inspection.cached_tokens)


def _without_shares(limits: Sequence[Limits]) -> list[Limits]:
    return [replace(rule, large_share=None) for rule in limits]


class _Account:
    """The amounts that one call has taken from the limits. `close` corrects them, once."""

    def __init__(self, step: RateLimit, requested_limits: Sequence[LimitRequest], grant: Grant) -> None:
        self._step = step
        self._requested_limits = requested_limits
        self._grant = grant
        self._open = True
        self.demands = [a.demand for a in requested_limits]
        self.other_cost = CostEstimate()  # cost of other calls that were made for the answer

    def close(self, actual: CostEstimate) -> None:
        if not self._open:
            return
        self._open = False
        step, route = self._step, self._step._route.name
        actual = CostEstimate(actual.tokens + self.other_cost.tokens, actual.micros + self.other_cost.micros)
        step._quotas.settle(self._grant, self.demands, returns_of(self._requested_limits, self._grant.taken, actual))
        step._telemetry.limits_tokens.add(route, amount=actual.tokens)
        step._telemetry.limits_cost.add(route, amount=actual.micros / MICROS)
