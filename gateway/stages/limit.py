"""Holds a route's limits: what a tenant, key or user may have of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gateway.cache.price import Price
from gateway.calling.quotas import Grant, Quotas
from gateway.credentials import key_of
from gateway.errors import LimitReached, OutOfTime, StaleWanted
from gateway.flow import Tap, tapped, with_end
from gateway.messages import Call, Event, EventStream, Request, Response, Usage, Whole
from gateway.observing.telemetry import Telemetry
from gateway.pipeline import Handler
from gateway.policy.limits import Limits, Per
from gateway.policy.model import Route
from gateway.routing.estimates import BYTES_A_TOKEN, Typical, input_tokens
from gateway.routing.limiting import (
    EVERYWHERE,
    LONG_S,
    Asked,
    Estimate,
    asked_of,
    headers_of,
    light_only,
    not_asked,
    not_large,
    refused,
    requests_of,
    returns_of,
    subjects,
    with_headers,
)
from gateway.routing.quota import MICROS

LOG = logging.getLogger("nearhit.limits")
MAX_READ = 2**20  # bytes of a stream that are kept to find its usage; beyond it its events are counted


def whose(request: Request) -> Mapping[Per, str]:
    permit = request.trace.permit
    key = (
        permit.id if permit is not None and permit.id else key_of(request.headers)
    )  # one key before and after a rotation
    return subjects(request.tenant, None if request.call is None else request.call.user, key)


def own_of(request: Request) -> tuple[tuple[Limits, ...], Mapping[Per, str]]:
    """The limits of its API key, and whom they count for."""
    permit = request.trace.permit
    return ((), {}) if permit is None or request.unasked else (permit.limits, {"key": permit.id})


def asker_of(request: Request) -> str:
    """For whom a limit was reached: another asker may have more left."""
    return "\n".join(whose(request).values())


class CountRequests:
    """Outermost, where limits of requests may count what the caches answer, too: a route's, or a key's."""

    def __init__(self, route: Route, quotas: Quotas, telemetry: Telemetry) -> None:
        self._route = route
        self._quotas = quotas
        self._telemetry = telemetry

    async def __call__(self, request: Request, forward: Handler) -> Response:
        own, key = own_of(request)
        asked = requests_of(self._route.name, self._route.limits, whose(request)) + requests_of(EVERYWHERE, own, key)
        if not asked:
            return await forward(request)
        grant = await _taken(request, self._route.name, asked, self._quotas, self._telemetry)
        response = await forward(request)
        request.trace.served = None  # the front would answer the next one without asking
        return replace(response, headers=with_headers(response.headers, headers_of(asked, grant.taken)))


class Limit:
    """Right before `Dispatch`: what the caches answer asks nothing of it, and of a crowd only its leader does.

    What a call costs is estimated before, and put right when its answer has ended, also where it fails or its client
    leaves. `light` in the policy's caps and `large_share` take the larger models away rather than the answer."""

    def __init__(self, route: Route, quotas: Quotas, prices: Mapping[str, Price], telemetry: Telemetry) -> None:
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

    async def __call__(self, request: Request, forward: Handler) -> Response:
        if request.directives.only_if_cached:
            return await forward(request)  # no call will be made
        asked = self._asked(request)
        if not asked:
            return await forward(request)
        grant = await _taken(request, self._route.name, asked, self._quotas, self._telemetry)
        held = light_only(asked, grant.taken)
        if held is not None:
            self._telemetry.limited.add(self._route.name, held)
        account = _Account(self, asked, grant)
        try:
            response = await forward(replace(request, light_only=held is not None, metered=True))
        except (OutOfTime, StaleWanted):
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

    def _asked(self, request: Request) -> list[Asked]:
        of_route = [rule for rule in self._route.limits if rule.per == "route" or not request.unasked]
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
        if call is None or response.status != 200 or not isinstance(body, Whole | EventStream):
            return with_end(response, lambda: account.close(Estimate()))
        if isinstance(body, Whole):
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

        return replace(response, body=EventStream(tapped(body.events, Tap(saw, closed=over))))

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

    def __init__(self, stage: Limit, asked: Sequence[Asked], grant: Grant) -> None:
        self._stage = stage
        self._asked = asked
        self._grant = grant
        self._open = True
        self.demands = [a.demand for a in asked]
        self.beside = Estimate()  # of calls that were made for the answer and are not the answer

    def close(self, real: Estimate) -> None:
        if not self._open:
            return
        self._open = False
        stage, route = self._stage, self._stage._route.name
        real = Estimate(real.tokens + self.beside.tokens, real.micros + self.beside.micros)
        stage._quotas.settle(self._grant, self.demands, returns_of(self._asked, self._grant.taken, real))
        stage._telemetry.limits_tokens.add(route, amount=real.tokens)
        stage._telemetry.limits_cost.add(route, amount=real.micros / MICROS)


async def _taken(request: Request, route: str, asked: Sequence[Asked], quotas: Quotas, telemetry: Telemetry) -> Grant:
    """Raises `LimitReached`."""
    with request.trace.span("limits"):
        grant = await quotas.take([a.demand for a in asked])
    if grant.local:
        telemetry.limits_local.add(route)
    quotas.note(route, asked, grant.taken)
    if grant.taken.granted:
        return grant
    limit, sentence, seconds = refused(route, asked, grant.taken)
    telemetry.limited.add(route, limit.limit)
    headers = headers_of(asked, grant.taken)
    if seconds > LONG_S:
        headers += (("x-should-retry", "false"),)  # OpenAI's clients heed it
    raise LimitReached(sentence, retry_after_s=seconds, asker=asker_of(request), headers=headers)
