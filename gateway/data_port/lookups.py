"""Calls whose answers lie in memory, exactly or by similarity, answered by the connection that they came on: nothing is
waited for, so nothing of what waiting costs (a task, a coroutine a stage) is needed.

What is looked at is the stages' own (`gateway.stages.beforehand`), and so is what is read of a call; what follows from
its head, its model and the policy in force is found out once. Where the stages are to go on they are handed the call as
it stands, with all that was found out.

Measured, and why: docs/decisions/0046-lookups.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.bodies import AtHand
from gateway.data_port.front import Front
from gateway.data_port.heads import Head
from gateway.data_port.plans import MAX_NAME, MODEL, Plan, Plans
from gateway.data_port.service import Service
from gateway.data_port.wire import STATUS_LINES, fields_of, http_date
from gateway.errors import BadRequest
from gateway.messages import Call, Provenance, Request, Response, Verdict, Whole
from gateway.observing.found import Found, Kind
from gateway.observing.observer import Observer
from gateway.observing.request_ids import RequestIds
from gateway.observing.telemetry import Telemetry
from gateway.observing.trace import Trace
from gateway.ports import Clock
from gateway.stages.beforehand import Beforehand
from gateway.stages.policy import Terms, bound, terms_of

MAX_BODY = 64 * 1024  # of a request, bytes: a longer one takes its time anyway
MAX_STARTS = 64


@dataclass(frozen=True, slots=True)
class Known:
    """How calls with one head, for one model, are looked up, and what of their hits is always the same."""

    terms: Terms
    beforehand: Beforehand
    found: Found
    route_line: bytes
    starts: dict[str, bytes]  # of heads, by content type

    def start(self, response: Response) -> bytes:
        """Raises `ValueError` on a header that would end its line."""
        kind = response.content_type
        start = self.starts.get(kind)
        if start is None:
            if len(self.starts) >= MAX_STARTS:  # backends choose them
                self.starts.clear()
            start = self.starts[kind] = STATUS_LINES[200] + fields_of(response.headers)
        return start

    def answer(self, request: Request, response: Response, kind: Kind, steps_ms: Sequence[float], body: bytes) -> bytes:
        """What `answer_headers` and `head_of` make of it. A request's id has no line break. Raises as `start`."""
        explained = b""
        if self.terms.route.expose_headers:
            explained = self._explained(response.provenance, kind.timing_of(steps_ms, request.trace.judged))
        return b"%bx-request-id: %b\r\nServer: nearhit\r\n%bContent-Length: %d\r\nDate: %b\r\n\r\n%b" % (
            self.start(response), request.id.encode(), explained, len(body), http_date(), body,
        )  # fmt: skip

    def _explained(self, hit: Provenance, timing: bytes) -> bytes:
        """As `response_headers.explaining` does."""
        age_s, left_s = hit.age_s or 0.0, hit.ttl_s or 0.0
        if hit.similarity is None:
            return b"Cache-Status: nearhit; hit; detail=exact; ttl=%d\r\nAge: %d\r\n%bServer-Timing: %b\r\n" % (
                left_s, age_s, self.route_line, timing,
            )  # fmt: skip
        return (
            b"Cache-Status: nearhit; hit; detail=semantic\r\nAge: %d\r\nx-nearhit-similarity: %.4f\r\n"
            b"%bServer-Timing: %b\r\n"
        ) % (age_s, hit.similarity, self.route_line, timing)


class Lookups:
    """`service` is set before the first request."""

    def __init__(self, plans: Plans, front: Front, observer: Observer, telemetry: Telemetry, clock: Clock) -> None:
        self._plans = plans
        self._front = front
        self._observer = observer
        self._telemetry = telemetry
        self._clock = clock
        self._ids = RequestIds()
        self._on = not observer.traces
        self.answered = 0

    def serve(self, service: Service) -> None:
        """Whose requests they are."""
        self._service = service
        self._on = self._on and not service.fits

    def find(self, head: Head, body: bytes, peer: str) -> bytes | Request | None:
        """The whole answer to a request on a connection that goes on; it is counted and logged. Or the request, with
        what was found out: the stages are to go on with it. None: they are to begin."""
        if head.length > MAX_BODY or not self._on or not self._plans.lookups or self._service.full:
            return None
        plan = self._plans.of(head)
        if plan is None or plan.dialect is None or plan.bypasses:
            return None
        hint = MODEL.search(body)
        if hint is not None and plan.known.get(hint[1], plan) is None:
            return None
        received = self._clock.monotonic()
        try:
            call = plan.dialect.parse(head.path, body, head.headers)
        except BadRequest:  # the stages say so
            return None
        name = call.model.encode("utf-8", "surrogatepass")
        known = plan.known[name] if name in plan.known else self._found(head, plan, name, call.model)
        if known is None:
            return None
        request = self._request(head, body, peer, received, plan, known.terms, call)
        if call.stream or not request.fingerprint or call.batch is not None:
            return request
        found = known.beforehand(request)
        return self._answered(known, head, request, found) if isinstance(found, Response) else found

    def _request(
        self, head: Head, body: bytes, peer: str, received: float, plan: Plan, terms: Terms, call: Call
    ) -> Request:
        trace = Trace(self._clock)
        trace.dialect, trace.tenant, trace.permit = plan.dialect, plan.tenant, plan.permit
        trace.route, trace.expose_headers = terms.route.name, terms.route.expose_headers
        headers = head.headers
        came = Request(
            self._ids.of(headers), head.method, head.path, head.query, headers, AtHand(body), received, trace, peer=peer
        )
        return bound(came, body, call, terms, plan.table)

    def _answered(self, known: Known, head: Head, request: Request, response: Response) -> bytes | Request:
        if not isinstance(response.body, Whole):  # it was stored as a stream: the stages put it together
            return request
        hit, trace, data = response.provenance, request.trace, response.body.data
        kind = known.found.kind(hit.verdict, trace.spans)
        steps_ms = [1e3 * seconds for seconds in trace.spans.values()]
        answer = known.answer(request, response, kind, steps_ms, data)
        seconds = self._clock.monotonic() - request.received
        self.answered += 1
        self._observer.found(kind, hit, trace, request.id, seconds, steps_ms)
        if hit.verdict is Verdict.EXACT:
            self._front.learn(head, request.body, request.table, request, response, data)
        return answer

    def _found(self, head: Head, plan: Plan, name: bytes, model: str) -> Known | None:
        if len(name) > MAX_NAME or plan.dialect is None:
            return None
        route = plan.table.policy.match(head.path, model, plan.tenant, head.headers)
        beforehand: Beforehand | None = plan.table.chains[route.name].beforehand
        known = None
        if beforehand is not None:
            terms = terms_of(head.headers, route, patient=False)
            told = Found(
                self._telemetry, route=route.name, dialect=plan.dialect.name, tenant=plan.tenant, path=head.path
            )
            known = Known(terms, beforehand, told, f"x-nearhit-route: {route.name}\r\n".encode(), {})
        plan.known[name] = known
        self._plans.noted()
        return known
