"""Calls whose answers lie in memory, exactly or by similarity, answered by the connection that they came on: nothing is
waited for, so nothing of what waiting costs (a task, a coroutine a stage) is needed, and no request is made of them.

What is looked at is the stages' own (`gateway.stages.beforehand`), and so is what is read of a call; what follows from
its head, its model and the policy in force is found out once. Where the stages are to go on they are handed the call as
it stands, with all that was found out.

Measured, and why: docs/decisions/0046-lookups.md, 0047-semantic-hits.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from aiohttp.helpers import rfc822_formatted_time

from gateway.bodies import AtHand
from gateway.cache.keys import Frame, frame_of, owner_of
from gateway.cache.looked import Hit, Missed
from gateway.data_port.front import Front
from gateway.data_port.heads import Head
from gateway.data_port.hit_heads import exact_form, hidden_form, semantic_form
from gateway.data_port.plans import LOOKED_AT, MAX_NAME, Plan, Plans
from gateway.data_port.service import Service
from gateway.errors import BadRequest
from gateway.messages import Asked, Call, Request, Verdict
from gateway.observing.found import Found
from gateway.observing.observer import Observer
from gateway.observing.repeated import repeated_of
from gateway.observing.request_ids import RequestIds
from gateway.observing.telemetry import Telemetry
from gateway.observing.trace import Trace
from gateway.policy.model import Route
from gateway.ports import Clock
from gateway.stages.beforehand import Beforehand
from gateway.stages.from_memory import note
from gateway.stages.policy import Terms, terms_of

MAX_FORMS = 64
NOT_LOOKED = Missed({})


@dataclass(frozen=True, slots=True)
class Known:
    """How calls with one head, for one model, are looked up, and what of their hits is always the same. `frame` None:
    who may share their answers is said in each."""

    terms: Terms
    beforehand: Beforehand
    frame: Frame | None
    exact: Found
    semantic: Found
    forms: dict[tuple[str, bool], bytes]  # of heads, by content type and whether the hit is a semantic one

    def form(self, content_type: str, *, semantic: bool) -> bytes:
        """Raises `ValueError` on a header that would end its line."""
        headers, route = [("Content-Type", content_type)], self.terms.route
        if not route.expose_headers:
            form = hidden_form(headers)
        elif semantic:
            form = semantic_form(headers, route.name, self.beforehand.steps)
        else:
            form = exact_form(headers, route.name)
        if len(self.forms) >= MAX_FORMS:  # backends choose the types
            self.forms.clear()
        self.forms[content_type, semantic] = form
        return form

    def answer(self, request_id: bytes, hit: Hit, steps_ms: Sequence[float], near: bytes, body: bytes) -> bytes:
        """A request's id has no line break. `near`: as `Found.line`. Raises as `form`."""
        alike, kind = hit.alike, hit.entry.content_type
        semantic = alike is not None
        form = self.forms.get((kind, semantic)) or self.form(kind, semantic=semantic)
        date = rfc822_formatted_time().encode()
        if not self.terms.route.expose_headers:
            return form % (request_id, len(body), date, body)
        freshness = hit.freshness
        if alike is None:
            return form % (request_id, freshness.ttl_s, freshness.age_s, steps_ms[0], len(body), date, body)
        *before, verified_ms = steps_ms
        return form % (
            request_id, freshness.age_s, near, *before, alike.similarity, verified_ms, len(body), date, body,
        )  # fmt: skip


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

    def find(self, plan: Plan, hint: bytes, head: Head, body: bytes, peer: str) -> bytes | Request | None:
        """The whole answer to a request on a connection that goes on; it is counted and logged. Or the request, with
        what was found out: the stages are to go on with it. None: they are to begin. `hint`: of its model, empty where
        there is none."""
        if head.length > LOOKED_AT or not (self._on and self._plans.lookups) or self._service.full:
            return None
        if plan.dialect is None or plan.bypasses:
            return None
        if hint and plan.known.get(hint, plan) is None:
            return None
        received = self._clock.monotonic()
        try:
            call = plan.dialect.parse(head.path, body, head.headers)
        except BadRequest:  # the stages say so
            return None
        name = call.model.encode("utf-8", "surrogatepass")
        known = plan.known[name] if name in plan.known else self._found(head, plan, name, call)
        if known is None:
            return None
        scope = fingerprint = ""
        if call.uncached is None:
            route = known.terms.route
            frame = known.frame or _frame(route, plan.tenant, call)
            scope, fingerprint = frame.keys_of(call)
        asked = Asked(self._ids.of(head.headers), plan.tenant, call, known.terms.directives, scope, fingerprint)
        found: Hit | Missed = NOT_LOOKED
        if fingerprint and not call.stream and call.batch is None:
            found = known.beforehand.find(asked)
        if isinstance(found, Hit):
            if not found.entry.streamed:
                return self._answered(known, plan, head, body, received, asked, found)
            found = NOT_LOOKED  # the stages put it together
        return self._left(known.terms, plan, head, body, peer, received, asked, found)

    def _answered(
        self, known: Known, plan: Plan, head: Head, body: bytes, received: float, asked: Asked, hit: Hit
    ) -> bytes:
        alike, data = hit.alike, hit.entry.payload[0]
        steps_ms = [1e3 * seconds for seconds in hit.spans.values()]
        request_id, near = asked.id.encode(), b"" if alike is None else b"%.4f" % alike.similarity
        answer = known.answer(request_id, hit, steps_ms, near, data)
        self.answered += 1
        seconds = self._clock.monotonic() - received
        if alike is None:
            self._observer.found(known.exact, hit, request_id, seconds, steps_ms, near)
            self._learn(known, plan, head, body, asked, hit)
        else:
            known.beforehand.served(asked, alike)
            self._observer.found(known.semantic, hit, request_id, seconds, steps_ms, near)
        return answer

    def _learn(self, known: Known, plan: Plan, head: Head, body: bytes, asked: Asked, hit: Hit) -> None:
        """So that the very same bytes need not be read again."""
        lifetime, route, entry = known.beforehand.lifetime, known.terms.route, hit.entry
        if lifetime is None or plan.dialect is None or head.headers.get("cache-control") is not None:
            return
        told = repeated_of(
            plan.dialect, entry, lifetime, route=route.name, tenant=asked.tenant, path=head.path,
            permit=plan.permit, expose_headers=route.expose_headers,
        )  # fmt: skip
        self._front.remember(head, body, plan.table, told, [("Content-Type", entry.content_type)], entry.payload[0])

    def _left(
        self,
        terms: Terms,
        plan: Plan,
        head: Head,
        body: bytes,
        peer: str,
        received: float,
        asked: Asked,
        found: Missed,
    ) -> Request:
        """As `routed`, with what was found out."""
        route, trace = terms.route, Trace(self._clock)
        trace.dialect, trace.tenant, trace.permit = plan.dialect, plan.tenant, plan.permit
        trace.route, trace.expose_headers = route.name, route.expose_headers
        trace.spans.update(found.spans)
        note(trace, found)
        deadline, ttft_deadline = terms.budget.due(received)
        return Request(
            id=asked.id,
            method=head.method,
            path=head.path,
            query=head.query,
            headers=head.headers,
            source=AtHand(body),
            received=received,
            trace=trace,
            body=body,
            call=asked.call,
            route=route.name,
            directives=asked.directives,
            scope=asked.scope,
            fingerprint=asked.fingerprint,
            embedding=found.embedding,
            unlike=found.unlike,
            deadline=deadline,
            ttft_deadline=ttft_deadline,
            tpot_s=terms.budget.tpot_s,
            priority=terms.priority,
            table=plan.table,
            peer=peer,
        )

    def _found(self, head: Head, plan: Plan, name: bytes, call: Call) -> Known | None:
        if len(name) > MAX_NAME:
            return None
        route = plan.table.policy.match(head.path, call.model, plan.tenant, head.headers)
        beforehand: Beforehand | None = plan.table.chains[route.name].beforehand
        known = None if beforehand is None else self._known(head, plan, route, beforehand, call)
        plan.known[name] = known
        self._plans.noted()
        return known

    def _known(self, head: Head, plan: Plan, route: Route, beforehand: Beforehand, call: Call) -> Known:
        found = partial(
            Found,
            self._telemetry,
            route=route.name,
            dialect=call.dialect.name,
            tenant=plan.tenant,
            path=head.path,
        )
        threshold = None if route.semantic is None else route.semantic.acceptance.min_similarity
        return Known(
            terms_of(head.headers, route, patient=False),
            beforehand,
            None if route.share == "user" else _frame(route, plan.tenant, call),
            found(Verdict.EXACT, ["exact"]),
            found(Verdict.SEMANTIC, beforehand.steps, threshold),
            {},
        )


def _frame(route: Route, tenant: str, call: Call) -> Frame:
    return frame_of(owner_of(route.share, tenant, call.user), route.name, call.dialect.name, call.operation)
