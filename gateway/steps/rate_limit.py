"""Enforces the limits of a route: how much of its backends a tenant, key or user may use."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from gateway.config.policy.model import Route
from gateway.context import Handler, InspectedAnswer, RequestContext, resolve_response
from gateway.dialects.operations import SAFE_METHODS
from gateway.dialects.usage import AnswerUsage, UsageReader
from gateway.errors import BudgetExceeded, Forbidden, ServeStale, UpstreamStreamError
from gateway.limits import MICROS, Limits, Per, TakeResult
from gateway.messages import (
    Admission,
    ByteStream,
    Event,
    EventStream,
    FullBody,
    Inspection,
    Price,
    Response,
    Tunnel,
    Usage,
)
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.routing.limit_evaluation import (
    ALL_ROUTES,
    BYTES_A_TOKEN,
    CostEstimate,
    LimitRequest,
    is_amount,
    is_near,
    light_only,
    limit_requests,
    limits_calls,
    rate_limit_headers,
    requests_of,
    returns_of,
    returns_without_call,
    returns_without_large,
    with_headers,
)
from gateway.routing.rate_limiter import Grant, RateLimiter, key_limits, limit_subjects, take_limits
from gateway.steps.metering import MeteredCall, RouteMeter, Spent, metered_call
from gateway.steps.socket_meter import MeteredSocket
from gateway.streams import StreamObserver, with_completion, with_observer
from gateway.upstream.content_decoding import CODINGS, ContentDecoder, coding_of


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
        _, grant = await take_limits(request, self._route.name, lambda: requested_limits, self._quotas, self._telemetry)
        response = await resolve_response(self._inner(request))
        request.served = None  # the exact fast path would answer the next one without counting it
        headers = with_headers(response.headers, rate_limit_headers(requested_limits, grant.taken))
        return Response(response.status, headers, response.body, response.provenance)


LOG = logging.getLogger("nearhit.limits")

NAME = "RateLimit"  # in `nearhit_step_failures_total`

MAX_READ = 2**20  # bytes of a stream that are kept to read its usage; of a longer one the events are counted


class RateLimit:
    """Meters calls and enforces limits on them, right before `Dispatch`. Answers from the caches take nothing from
    them, and of identical requests only the leader does.

    The cost of a call is reserved first. It is settled when the answer has ended, even if it fails or its client
    leaves. A call that nothing meters is refused if a limit counts tokens or costs. `light` in the policy's caps and
    `large_share` take away the larger models, not the answer. `passable`: the backends that take requests which no
    dialect reads."""

    def __init__(
        self,
        inner: Handler,
        route: Route,
        quotas: RateLimiter,
        prices: Mapping[str, Price],
        telemetry: Telemetry,
        clock: Clock,
        passable: Collection[str],
    ) -> None:
        self._inner = inner
        self._route = route
        self._of_calls = [*filter(limits_calls, route.limits)]
        self._quotas = quotas
        self._prices = prices
        members = {name: prices.get(name, Price()) for name in route.target.members}
        self._largest = route.target.tiers[-1]
        self._meter = RouteMeter(members, passable, prices, self._largest.backend, clock)
        if any(rule.caps for rule in route.limits) and all(price == Price() for price in members.values()):
            message = "a cap on costs has no effect: no backend of the route has a price"
            LOG.warning(message, extra={"fields": {"route": route.name}})
        self._counts = route.record is not None or any(price != Price() for price in members.values())
        self._telemetry = telemetry
        self._clock = clock

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        if request.directives.only_if_cached:
            return self._inner(request)  # no call will be made
        route_limits = [rule for rule in self._of_calls if rule.per == "route" or not request.internal]
        own, key = key_limits(request)
        own = tuple(filter(limits_calls, own))
        if not route_limits and not own:
            return self._forward_metered(request) if self._is_metered(request) else self._inner(request)
        request.require_capacity()
        return self._forward_limited(request, route_limits, own, key)

    def _is_metered(self, request: RequestContext) -> bool:
        """Return whether a call without limits is counted in metrics or in the traffic log."""
        spends = request.call is not None or request.method not in SAFE_METHODS
        return self._counts and spends and not request.internal

    async def _forward_metered(self, request: RequestContext) -> Response:
        metered = await metered_call(request)
        response = await resolve_response(self._inner(request))
        if metered.operation.is_free:
            return response
        return await self._forward_counted(request, metered, response, _Account(self, (), NO_GRANT), list)

    async def _forward_limited(
        self, request: RequestContext, route_limits: list[Limits], own: Sequence[Limits], key: Mapping[Per, str]
    ) -> Response:
        metered = await metered_call(request)
        self._check_meter(metered, [*route_limits, *own])
        if request.call is None or request.call.operation == "embeddings":  # they choose no tier
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

        asked, grant = await take_limits(request, self._route.name, ask, self._quotas, self._telemetry)
        light_limit = light_only(asked, grant.taken)
        if light_limit is not None:
            self._telemetry.limited.add(self._route.name, light_limit)
        account = _Account(self, asked, grant)
        try:
            request.light_only, request.metered = light_limit is not None, True
            request.reads_answer = request.reads_answer or (request.call is None and not metered.operation.is_free)
            response = await resolve_response(self._inner(request))
        except (BudgetExceeded, ServeStale):
            self._quotas.refund(grant, returns_without_call(asked, grant.taken))
            account.close(Spent())
            raise
        except Exception:
            account.close(Spent())
            raise
        except BaseException:  # the client has left, and the backend may have read the input
            account.close(self._meter.read_alone(metered))
            raise
        if response.provenance.backend not in self._largest.members:
            self._quotas.refund(grant, returns_without_large(asked, grant.taken))
        response = replace(response, headers=with_headers(response.headers, rate_limit_headers(asked, grant.taken)))
        return await self._forward_counted(request, metered, response, account, ask)

    def _check_meter(self, metered: MeteredCall, limits: Sequence[Limits]) -> None:
        """Raise `Forbidden` if nothing meters the call, and a limit needs it."""
        counted = ["tokens"] * any(rule.tokens for rule in limits) + ["cost"] * any(rule.caps for rule in limits)
        try:
            self._meter.check(metered, counted)
        except Forbidden:
            self._telemetry.limited.add(self._route.name, "unmetered")
            raise

    async def _forward_counted(
        self,
        request: RequestContext,
        metered: MeteredCall,
        response: Response,
        account: _Account,
        ask: Callable[[], Sequence[LimitRequest]],
    ) -> Response:
        """Settle the account when the answer is over."""
        body, backend, call = response.body, response.provenance.backend, request.call
        account.backend, account.other_cost = backend, self._sum_costs(response.provenance.other_usage)
        if isinstance(body, Tunnel) and response.status == 101:
            return self._forward_tunnel(request, metered, response, account, ask)
        if response.status != 200 if call is not None else not 200 <= response.status < 300:
            return with_completion(response, lambda: account.close(Spent()))
        if call is None or isinstance(body, ByteStream):
            return await self._forward_unparsed(request, metered, response, account)
        if isinstance(body, FullBody):
            size = len(body.data) // BYTES_A_TOKEN
            account.close(self._spent(request, metered, backend, [body.data], size, streamed=False))
            await account.deliver()
            return response
        if not isinstance(body, EventStream):
            return with_completion(response, lambda: account.close(Spent()))
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
            account.close(self._spent(request, metered, backend, whole, seen[0], streamed=True))

        async def on_complete() -> None:
            on_end()
            await account.deliver()

        observer = StreamObserver(saw, on_complete, on_close=on_end)
        return replace(response, body=EventStream(with_observer(body.events, observer)))

    async def _forward_unparsed(
        self, request: RequestContext, metered: MeteredCall, response: Response, account: _Account
    ) -> Response:
        """Settle the account of an answer whose bytes pass through, by the usage that they report."""
        body, backend = response.body, response.provenance.backend
        reader = UsageReader(response.content_type)
        coding = coding_of({name.lower(): value for name, value in response.headers})
        decode: Callable[[bytes], bytes] | None = ContentDecoder(coding).decode if coding in CODINGS else None

        def feed(piece: bytes) -> None:
            nonlocal decode
            try:
                reader.feed(piece if decode is None else decode(piece))
            except UpstreamStreamError:  # the client may be able to read it
                decode = _nothing
            except Exception as error:  # what cannot be read of an answer must not cost its client the answer
                decode = _nothing
                self._telemetry.failures.record(NAME, error)

        def on_end(*, complete: bool = False) -> None:
            if not account.is_open:
                return
            try:
                usage = reader.result()
            except Exception as error:
                usage = AnswerUsage()
                self._telemetry.failures.record(NAME, error)
            output = reader.size // BYTES_A_TOKEN if reader.is_readable else 0
            spent = self._meter.spent(metered, backend, usage, output, complete=complete)
            self._note(request, UNSTORED, spent, reader.size)
            account.close(spent)

        if isinstance(body, FullBody):
            feed(body.data)
            on_end(complete=True)
            await account.deliver()
            return response
        if not isinstance(body, ByteStream):
            return with_completion(response, on_end)

        def saw(chunks: Sequence[bytes]) -> Sequence[bytes]:
            for chunk in chunks:
                feed(chunk)
            return chunks

        async def on_complete() -> None:
            on_end(complete=True)
            await account.deliver()

        observer = StreamObserver(saw, on_complete, on_close=on_end)
        return replace(response, body=ByteStream(with_observer(body.chunks, observer)))

    def _forward_tunnel(
        self,
        request: RequestContext,
        metered: MeteredCall,
        response: Response,
        account: _Account,
        ask: Callable[[], Sequence[LimitRequest]],
    ) -> Response:
        """Settle what a WebSocket uses as it goes on. Its other limits, such as its place, are held to its end."""
        tunnel, backend = response.body, response.provenance.backend
        assert isinstance(tunnel, Tunnel)
        held, current = account.split()
        if not current.demands:
            return with_completion(response, lambda: account.close(Spent()))

        def ask_amounts() -> list[LimitRequest]:
            return [each for each in ask() if is_amount(each)]

        async def renew(spent: Spent) -> None:
            nonlocal current
            current.close(spent)
            asked, grant = await take_limits(request, self._route.name, ask_amounts, self._quotas, self._telemetry)
            current = _Account(self, asked, grant)

        def end(spent: Spent) -> None:
            current.close(spent + self._meter.opened(metered, backend))
            held.close(Spent(), counts=False)

        spent_by = partial(self._meter.spent_by_socket, metered, backend)
        socket = MeteredSocket(tunnel.upstream, spent_by, renew, end)
        return replace(response, body=replace(tunnel, upstream=socket))

    def _sum_costs(self, usages: Sequence[Usage]) -> CostEstimate:
        total = CostEstimate()
        for usage in usages:
            price = self._prices.get(usage.backend, Price())
            dollars = price.of(usage.input_tokens, usage.output_tokens, usage.cached_tokens)
            total += CostEstimate(usage.input_tokens + usage.output_tokens, round(dollars * MICROS))
        return total

    def _spent(
        self,
        request: RequestContext,
        metered: MeteredCall,
        backend: str | None,
        payload: Sequence[bytes],
        output_estimate: int,
        *,
        streamed: bool,
    ) -> Spent:
        """Return the cost by the usage in the answer. `output_estimate` stands for the output tokens if it reports none
        (`routing.limit_evaluation`); models send about one token an event."""
        call = request.call
        assert call is not None  # other answers pass through unparsed
        found = call.dialect.inspect(call, payload, streamed)
        counts = found.input_tokens, found.output_tokens, found.cached_tokens
        usage = AnswerUsage(counts if found.input_tokens or found.output_tokens else None)
        spent = self._meter.spent(metered, backend, usage, output_estimate)
        self._note(request, found, spent, sum(map(len, payload)))
        return spent

    def _note(self, request: RequestContext, found: Inspection, spent: Spent, size: int) -> None:
        """Keep the usage for the traffic log."""
        if request.facts is not None and request.inspected is None:
            seconds = self._clock.monotonic() - (request.upstream_since or request.received)
            told = replace(found, input_tokens=spent.input_tokens, output_tokens=spent.output_tokens)
            request.inspected = InspectedAnswer(told, spent.dollars, size, seconds)


UNSTORED = Inspection(Admission.NO_STORE, 0, 0)  # of an answer that passes through


def _nothing(_: bytes) -> bytes:
    return b""


def _without_shares(limits: Sequence[Limits]) -> list[Limits]:
    return [replace(rule, large_share=None) for rule in limits]


def _without_amounts(limits: Sequence[Limits]) -> list[Limits]:
    return [replace(rule, tokens=(), caps=()) for rule in limits]


NO_GRANT = Grant(TakeResult(True, (), 0), local=True)


class _Account:
    """The amounts that one call has reserved. `close` settles them, once."""

    def __init__(self, step: RateLimit, requested_limits: Sequence[LimitRequest], grant: Grant) -> None:
        self._step = step
        self._requested_limits = requested_limits
        self._grant = grant
        self.is_open = True
        self._is_near = False  # a limit has room for few more such calls
        self.demands = [a.demand for a in requested_limits]
        self.backend: str | None = None
        self.other_cost = CostEstimate()  # cost of other calls that were made for the answer

    def split(self) -> tuple[_Account, _Account]:
        """Return two accounts in place of this one: of what is held, such as a place, and of what is used up."""
        observed = self._grant.taken.observed
        parts: tuple[list[int], list[int]] = ([], [])
        for number, each in enumerate(self._requested_limits):
            parts[is_amount(each)].append(number)
        found = []
        for numbers in parts:
            taken = replace(self._grant.taken, observed=tuple(observed[number] for number in numbers))
            limits = [self._requested_limits[number] for number in numbers]
            found.append(_Account(self._step, limits, replace(self._grant, taken=taken)))
        return found[0], found[1]

    def close(self, spent: Spent, *, counts: bool = True) -> None:
        """Settle. `counts`: the metrics count what was spent."""
        if not self.is_open:
            return
        self.is_open = False
        step, route, taken = self._step, self._step._route.name, self._grant.taken
        actual = spent.cost + self.other_cost
        step._quotas.settle(self._grant, self.demands, returns_of(self._requested_limits, taken, actual))
        self._is_near = step._quotas.gateways > 1 and is_near(self._requested_limits, taken, actual)
        if not counts:
            return
        telemetry, backend = step._telemetry, self.backend or step._largest.backend
        if self._requested_limits:
            telemetry.limits_tokens.add(route, amount=actual.tokens)
            telemetry.limits_cost.add(route, amount=actual.micros / MICROS)
        telemetry.tokens.add(route, backend, "input", amount=spent.input_tokens)
        telemetry.tokens.add(route, backend, "output", amount=spent.output_tokens)
        if spent.cached_tokens:
            telemetry.tokens.add(route, backend, "cached", amount=spent.cached_tokens)
        telemetry.cost.add(route, backend, amount=actual.micros / MICROS)

    async def deliver(self) -> None:
        """Tell the store at once if a limit is nearly reached: a client may go on at another gateway."""
        if self._is_near:
            await self._step._quotas.flush()
