"""Settles the reserved cost of a call when its answer is over: by the usage of the answer, or by an estimate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from gateway.calls import Inspection
from gateway.context import RequestContext
from gateway.dialects.prompt_tokens import BYTES_A_TOKEN
from gateway.dialects.usage import AnswerUsage, UsageReader
from gateway.errors import UpstreamStreamError
from gateway.features.limits.demands import MICROS, Demand, TakeResult
from gateway.features.limits.evaluation import CostEstimate, LimitRequest, is_amount, is_near, returns_of
from gateway.features.limits.metering import MeteredCall, RouteMeter, Spent
from gateway.features.limits.rate_limiter import Grant, RateLimiter, take_limits
from gateway.features.limits.socket_meter import MeteredSocket
from gateway.messages import ByteStream, Event, EventStream, FullBody, Response, Tunnel
from gateway.observability.telemetry import Telemetry
from gateway.outcomes import Admission
from gateway.ports import Clock
from gateway.prices import Tokens
from gateway.request_fields import InspectedAnswer
from gateway.steps.route_ports import OnSpent
from gateway.streams import StreamObserver, with_completion, with_observer
from gateway.upstream.content_decoding import CODINGS, ContentDecoder, coding_of

NAME = "RateLimit"  # in `nearhit_step_failures_total`
MAX_READ = 2**20  # bytes of a stream that are kept to read its usage; of a longer one the events are counted
NO_GRANT = Grant(TakeResult(True, (), 0), local=True)
NOTHING_SPENT = Spent()
UNSTORED = Inspection(Admission.NO_STORE, 0, 0)  # of an answer that passes through


@dataclass(frozen=True, slots=True)
class ReservedCall:
    """A call and its account. `ask` returns what the limits would reserve for it now."""

    request: RequestContext
    metered: MeteredCall
    account: Account
    ask: Callable[[], Sequence[LimitRequest]]


class Settlement:
    """`Settlement` settles the calls of one route. `largest` is the backend that counts if no backend has answered."""

    def __init__(
        self,
        route: str,
        largest: str,
        meter: RouteMeter,
        quotas: RateLimiter,
        telemetry: Telemetry,
        clock: Clock,
        on_spent: OnSpent | None = None,
    ) -> None:
        self._route = route
        self._largest = largest
        self._meter = meter
        self._quotas = quotas
        self._telemetry = telemetry
        self._clock = clock
        self._on_spent = on_spent

    def open(
        self, request: RequestContext, requested_limits: Sequence[LimitRequest] = (), grant: Grant = NO_GRANT
    ) -> Account:
        """Return the account of what was reserved. Without limits it only counts in the metrics."""
        on_spent = None if self._on_spent is None else partial(self._on_spent, request)
        return Account(self._route, self._largest, self._quotas, self._telemetry, requested_limits, grant, on_spent)

    async def settle(self, call: ReservedCall, response: Response) -> Response:
        """Return the response, whose end settles the account."""
        body, account, request = response.body, call.account, call.request
        account.backend = response.provenance.backend or account.backend
        account.others = self._meter.spent_by_others(call.metered, response.provenance.other_usage)
        if isinstance(body, Tunnel) and response.status == 101:
            return self._settle_socket(call, response, body)
        if response.status != 200 if request.call is not None else not 200 <= response.status < 300:
            return with_completion(response, account.release)
        if request.call is None or request.call.passes or isinstance(body, ByteStream):
            return await self._settle_unparsed(call, response)
        if isinstance(body, FullBody):
            account.close(self._spent(call, [body.data], len(body.data) // BYTES_A_TOKEN, streamed=False))
            await account.deliver()
            return response
        if not isinstance(body, EventStream):
            return with_completion(response, account.release)
        return replace(response, body=EventStream(with_observer(body.events, self._events_observer(call))))

    def _events_observer(self, call: ReservedCall) -> StreamObserver[Event]:
        payload: list[bytes] = []
        events = size = 0

        def observe(batch: Sequence[Event]) -> Sequence[Event]:
            nonlocal events, size
            for event in batch:
                events, size = events + 1, size + len(event.data)
                if size <= MAX_READ:
                    payload.append(event.data)
            return batch

        def on_end() -> None:
            call.account.close(self._spent(call, payload if size <= MAX_READ else [], events, streamed=True))

        async def on_complete() -> None:
            on_end()
            await call.account.deliver()

        return StreamObserver(observe, on_complete, on_close=on_end)

    async def _settle_unparsed(self, call: ReservedCall, response: Response) -> Response:
        """Settle the account of an answer whose bytes pass through, by the usage that they report."""
        body, account = response.body, call.account
        reader = UsageReader(response.content_type)
        coding = coding_of({name.lower(): value for name, value in response.headers})
        decode: Callable[[bytes], bytes] | None = ContentDecoder(coding).decode if coding in CODINGS else None

        def feed(piece: bytes) -> None:
            nonlocal decode
            try:
                reader.feed(piece if decode is None else decode(piece))
            except UpstreamStreamError:  # the client may be able to read it
                decode = _nothing
            except Exception as error:  # an answer that cannot be read must not cost its client the answer
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
            spent = self._meter.spent(call.metered, response.provenance.backend, usage, output, complete=complete)
            self._note(call.request, UNSTORED, spent, reader.size)
            account.close(spent)

        if isinstance(body, FullBody):
            feed(body.data)
            on_end(complete=True)
            await account.deliver()
            return response
        if not isinstance(body, ByteStream):
            return with_completion(response, on_end)

        def observe(chunks: Sequence[bytes]) -> Sequence[bytes]:
            for chunk in chunks:
                feed(chunk)
            return chunks

        async def on_complete() -> None:
            on_end(complete=True)
            await account.deliver()

        observer = StreamObserver(observe, on_complete, on_close=on_end)
        return replace(response, body=ByteStream(with_observer(body.chunks, observer)))

    def _settle_socket(self, call: ReservedCall, response: Response, tunnel: Tunnel) -> Response:
        """Settle what a WebSocket uses as it goes on. Its place and the like are given back at its end."""
        places, amounts = call.account.split()
        if not amounts.demands:
            return with_completion(response, call.account.release)
        backend = response.provenance.backend

        def ask_amounts() -> list[LimitRequest]:
            return [each for each in call.ask() if is_amount(each)]

        async def renew(spent: Spent) -> None:
            nonlocal amounts
            amounts.close(spent)
            limits, grant = await take_limits(call.request, self._route, ask_amounts, self._quotas, self._telemetry)
            amounts = replace(amounts, requested_limits=limits, grant=grant)

        def end(spent: Spent) -> None:
            amounts.close(spent + self._meter.opened(call.metered, backend))
            places.close(Spent(), counts=False)

        spent_by = partial(self._meter.spent_by_socket, call.metered, backend)
        return replace(response, body=replace(tunnel, upstream=MeteredSocket(tunnel.upstream, spent_by, renew, end)))

    def _spent(self, call: ReservedCall, payload: Sequence[bytes], output_estimate: int, *, streamed: bool) -> Spent:
        """Return the cost by the usage in the answer. `output_estimate` stands for the output tokens if it reports none
        (`evaluation`); models send about one token an event."""
        parsed = call.request.call
        assert parsed is not None  # other answers pass through unparsed
        inspection = parsed.dialect.inspect(parsed, payload, streamed)
        usage = AnswerUsage(inspection.tokens if inspection.input_tokens or inspection.output_tokens else None)
        spent = self._meter.spent(call.metered, call.account.backend, usage, output_estimate)
        self._note(call.request, inspection, spent, sum(map(len, payload)))
        return spent

    def _note(self, request: RequestContext, inspection: Inspection, spent: Spent, size: int) -> None:
        """Keep the usage for the traffic log."""
        traffic = request.traffic
        if traffic is not None and traffic.inspected is None:
            seconds = self._clock.monotonic() - (request.calls.since or request.received)
            counted = replace(inspection, input_tokens=spent.input_tokens, output_tokens=spent.output_tokens)
            traffic.inspected = InspectedAnswer(counted, spent.dollars, size, seconds)


def _nothing(_: bytes) -> bytes:
    return b""


@dataclass(slots=True)
class Account:
    """The amounts that one call has reserved. `close` settles them, once. `backend` counts in the metrics. `others` are
    other calls for the answer, by their backend. `on_spent` is told what each call has used."""

    route: str
    backend: str
    quotas: RateLimiter
    telemetry: Telemetry
    requested_limits: Sequence[LimitRequest]
    grant: Grant
    on_spent: Callable[[str, Tokens, float, bool], None] | None = None
    others: Sequence[tuple[str, Spent]] = ()
    is_open: bool = field(default=True, init=False)
    _is_near: bool = field(default=False, init=False)  # a limit has room for few more such calls

    @property
    def demands(self) -> list[Demand]:
        return [each.demand for each in self.requested_limits]

    def split(self) -> tuple[Account, Account]:
        """Return two accounts in place of this one: of what is given back, such as a place, and of what is used up."""
        observed = self.grant.taken.observed
        numbers: tuple[list[int], list[int]] = ([], [])
        for number, each in enumerate(self.requested_limits):
            numbers[is_amount(each)].append(number)
        places, amounts = (
            replace(
                self,
                requested_limits=[self.requested_limits[number] for number in part],
                grant=replace(self.grant, taken=replace(self.grant.taken, observed=tuple(observed[n] for n in part))),
                others=(),
            )
            for part in numbers
        )
        return places, amounts

    def release(self) -> None:
        """Settle a call that cost nothing."""
        self.close(Spent())

    def close(self, spent: Spent, *, counts: bool = True) -> None:
        """Settle. With `counts` the metrics count the spent amounts."""
        if not self.is_open:
            return
        self.is_open = False
        taken, actual = self.grant.taken, sum((other.cost for _, other in self.others), spent.cost)
        self.quotas.settle(self.grant, self.demands, returns_of(self.requested_limits, taken, actual))
        self._is_near = self.quotas.gateways > 1 and is_near(self.requested_limits, taken, actual)
        if counts:
            self._count(spent, actual)
            self._tell(spent)

    def _tell(self, spent: Spent) -> None:
        """Report what each call has used."""
        if self.on_spent is None:
            return
        for backend, each in ((self.backend, spent), *self.others):
            if each != NOTHING_SPENT:
                self.on_spent(backend, each.tokens, each.dollars, each.is_priced)

    def _count(self, spent: Spent, actual: CostEstimate) -> None:
        telemetry, route, backend = self.telemetry, self.route, self.backend
        if self.requested_limits:
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
            await self.quotas.flush()
