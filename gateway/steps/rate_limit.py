"""Holds a route's limits: what a tenant, key or user may have of its backends."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace

from gateway.config.policy.model import Route
from gateway.context import Handler, RequestContext, resolved
from gateway.errors import BudgetExceeded, ServeStale
from gateway.limits import MICROS, Limits
from gateway.messages import Call, Event, EventStream, FullBody, Price, Response, Usage
from gateway.observability.telemetry import Telemetry
from gateway.routing.limit_evaluation import (
    BYTES_A_TOKEN,
    EVERYWHERE,
    Estimate,
    LimitRequest,
    Typical,
    asked_of,
    headers_of,
    input_tokens,
    light_only,
    not_asked,
    not_large,
    requests_of,
    returns_of,
    with_headers,
)
from gateway.routing.rate_limiter import Grant, RateLimiter, own_of, take_limits, whose
from gateway.streams import StreamObserver, tapped, with_end


# Holds limits of requests that count what the caches answer, too: a route's, or an API key's.
class CountRequests:
    def __init__(self, inner: Handler, route: Route, quotas: RateLimiter, telemetry: Telemetry) -> None:
        self._inner = inner
        self._route = route
        self._quotas = quotas
        self._telemetry = telemetry

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        own, key = own_of(request)
        asked = requests_of(self._route.name, self._route.limits, whose(request)) + requests_of(EVERYWHERE, own, key)
        if not asked:
            return self._inner(request)
        request.require_capacity()
        return self._counted(request, asked)

    async def _counted(self, request: RequestContext, asked: Sequence[LimitRequest]) -> Response:
        grant = await take_limits(request, self._route.name, asked, self._quotas, self._telemetry)
        response = await resolved(self._inner(request))
        request.served = None  # the exact fast path would answer the next one without counting it
        headers = with_headers(response.headers, headers_of(asked, grant.taken))
        return Response(response.status, headers, response.body, response.provenance)


# Holds a route's limits: what a tenant, key or user may have of its backends.
LOG = logging.getLogger("nearhit.limits")

MAX_READ = 2**20  # bytes of a stream that are kept to find its usage; beyond it its events are counted


class RateLimit:
    """Right before `Dispatch`: what the caches answer takes nothing of it, and of a crowd only its leader does.

    What a call costs is estimated before, and put right when its answer has ended, also where it fails or its client
    leaves. `light` in the policy's caps and `large_share` take the larger models away rather than the answer."""

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
            said = "a cap on costs holds nothing back: no backend of the route has a price"
            LOG.warning(said, extra={"fields": {"route": route.name}})
        self._telemetry = telemetry
        self._typical = Typical()

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        if request.directives.only_if_cached:
            return self._inner(request)  # no call will be made
        asked = self._asked(request)
        if not asked:
            return self._inner(request)
        request.require_capacity()
        return self._limited(request, asked)

    async def _limited(self, request: RequestContext, asked: Sequence[LimitRequest]) -> Response:
        grant = await take_limits(request, self._route.name, asked, self._quotas, self._telemetry)
        held = light_only(asked, grant.taken)
        if held is not None:
            self._telemetry.limited.add(self._route.name, held)
        account = _Account(self, asked, grant)
        try:
            request.light_only, request.metered = held is not None, True
            response = await resolved(self._inner(request))
        except (BudgetExceeded, ServeStale):
            self._quotas.give_back(grant, not_asked(asked, grant.taken))
            account.close(Estimate())
            raise
        except Exception:
            account.close(Estimate())
            raise
        except BaseException:  # the client has left: what the backend has read by then is paid for
            account.close(self._cost(None, input_tokens(request.call) if request.call else 0, 0))
            raise
        if response.provenance.backend not in self._largest.members:
            self._quotas.give_back(grant, not_large(asked, grant.taken))
        response = replace(response, headers=with_headers(response.headers, headers_of(asked, grant.taken)))
        return self._counted(request.call, response, account)

    def _asked(self, request: RequestContext) -> list[LimitRequest]:
        of_route = [rule for rule in self._route.limits if rule.per == "route" or not request.internal]
        own, key = own_of(request)
        if not of_route and not own:
            return []
        if request.call is None or request.call.operation == "embeddings":  # nothing is chosen by how large it is
            of_route, own = _without_shares(of_route), tuple(_without_shares(own))
        estimate, member = self._estimate(request.call), self._quotas.member()
        return [
            *asked_of(self._route.name, of_route, whose(request), estimate, member),
            *asked_of(EVERYWHERE, own, key, estimate, member),
        ]

    def _estimate(self, call: Call | None) -> Estimate:
        """By the dearest model that may answer."""
        if call is None:
            return Estimate()
        read, written = input_tokens(call), self._typical.output_tokens(call)
        dollars = max(price.of(read, written) for price in self._dearest)
        return Estimate(read + written, round(dollars * MICROS))

    def _cost(self, backend: str | None, read: int, written: int) -> Estimate:
        price = self._prices.get(backend or self._largest.backend, Price())
        return Estimate(read + written, round(price.of(read, written) * MICROS))

    def _counted(self, call: Call | None, response: Response, account: _Account) -> Response:
        """Closes the account when the answer is over."""
        body, backend = response.body, response.provenance.backend
        account.beside = self._summed(response.provenance.beside)
        if call is None or response.status != 200 or not isinstance(body, FullBody | EventStream):
            return with_end(response, lambda: account.close(Estimate()))
        if isinstance(body, FullBody):
            account.close(self._real(call, backend, [body.data], len(body.data) // BYTES_A_TOKEN, streamed=False))
            return response
        kept: list[bytes] = []
        seen = [0, 0]  # events, bytes

        def saw(events: Sequence[Event]) -> Sequence[Event]:
            for event in events:
                seen[0], seen[1] = seen[0] + 1, seen[1] + len(event.data)
                if seen[1] <= MAX_READ:
                    kept.append(event.data)
            return events

        def over() -> None:
            whole = kept if seen[1] <= MAX_READ else []
            account.close(self._real(call, backend, whole, seen[0], streamed=True))

        return replace(response, body=EventStream(tapped(body.events, StreamObserver(saw, closed=over))))

    def _summed(self, usages: Sequence[Usage]) -> Estimate:
        costs = [self._cost(usage.backend, usage.input_tokens, usage.output_tokens) for usage in usages]
        return Estimate(sum(cost.tokens for cost in costs), sum(cost.micros for cost in costs))

    def _real(
        self, call: Call, backend: str | None, payload: Sequence[bytes], pieces: int, *, streamed: bool
    ) -> Estimate:
        """`pieces`: about how many tokens there are, where the answer does not tell; models send one an event."""
        inspection = call.dialect.inspect(call, payload, streamed)
        read, written = inspection.input_tokens, inspection.output_tokens
        if read == written == 0:
            read, written = input_tokens(call), 0 if call.operation == "embeddings" else pieces
        if call.operation != "embeddings":
            self._typical.saw(written)
        return self._cost(backend, read, written)


def _without_shares(limits: Sequence[Limits]) -> list[Limits]:
    return [replace(rule, large_share=None) for rule in limits]


class _Account:
    """What one call has taken, until it is put right, once."""

    def __init__(self, step: RateLimit, asked: Sequence[LimitRequest], grant: Grant) -> None:
        self._step = step
        self._asked = asked
        self._grant = grant
        self._open = True
        self.demands = [a.demand for a in asked]
        self.beside = Estimate()  # of calls that were made for the answer and are not the answer

    def close(self, real: Estimate) -> None:
        if not self._open:
            return
        self._open = False
        step, route = self._step, self._step._route.name
        real = Estimate(real.tokens + self.beside.tokens, real.micros + self.beside.micros)
        step._quotas.settle(self._grant, self.demands, returns_of(self._asked, self._grant.taken, real))
        step._telemetry.limits_tokens.add(route, amount=real.tokens)
        step._telemetry.limits_cost.add(route, amount=real.micros / MICROS)
