"""Calls whose answers lie in memory, exactly or by similarity, answered by the connection that they came on: nothing is
waited for, so nothing of what waiting costs (a task, a coroutine a stage) is needed, and no request is made of them.

What is looked at is the stages' own (`gateway.stages.beforehand`), and so is what is read of a call; what follows from
its head, its model and the policy in force is found out once. Where the stages are to go on they are handed the call as
it stands, with all that was found out.

Measured, and why: docs/decisions/0046-lookups.md, 0047-semantic-hits.md, 0051-turns.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from gateway.bodies import AtHand
from gateway.cache.keys import Frame, frame_of, owner_of
from gateway.data_port.front import Front
from gateway.data_port.heads import Head
from gateway.data_port.plans import LOOKED_AT, MAX_NAME, Plan, Plans
from gateway.data_port.service import Service
from gateway.data_port.sought import Asking, Came, Known, Outcome
from gateway.errors import BadRequest
from gateway.messages import Asked, Call, Request, Verdict
from gateway.observing.decimals import IN_MS
from gateway.observing.found import Found
from gateway.observing.observer import Observer
from gateway.observing.repeated import repeated_of
from gateway.observing.request_ids import RequestIds
from gateway.observing.telemetry import Telemetry
from gateway.observing.trace import Trace
from gateway.policy.model import Route
from gateway.ports import Clock
from gateway.stages.beforehand import Beforehand
from gateway.stages.policy import terms_of


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

    def came(self, plan: Plan, hint: bytes, head: Head, body: bytes, peer: str, to: Asking) -> Came | None:
        """A call that is worth a look. None: the stages are to begin. `hint`: of its model, empty where there is
        none."""
        if head.length > LOOKED_AT or not (self._on and self._plans.lookups) or self._service.full:
            return None
        if plan.dialect is None or plan.bypasses:
            return None
        if hint and plan.known.get(hint, plan) is None:
            return None
        return Came(plan, head, body, peer, to, self._clock.monotonic())

    def find(self, came: Came) -> Outcome:
        """What comes of one that is looked up alone."""
        at = self._read(came)
        for look in came.looks:
            at = look(came, at)
            if came.over:
                break
        return self._outcome(came)

    def find_together(self, came: Iterable[Came]) -> None:
        """Tells each what comes of it. Of those with the same fingerprint one is looked up, and once it is answered or
        in flight the next: it has to see that."""
        rest = []
        for one in came:
            self._read(one)
            if one.looks:
                rest.append(one)
            else:
                one.tell(self._outcome(one))
        while rest:
            some: dict[str, Came] = {}
            for one in rest:
                some.setdefault(one.asked.fingerprint, one)
            rest = [one for one in rest if some[one.asked.fingerprint] is not one]
            self._find([*some.values()])

    def _find(self, some: Sequence[Came]) -> None:
        """One step for all, and then the next: what a step is made of is in the processor's caches from the second
        call on. Nothing is waited for, so each step begins when the one before has ended."""
        at, longest = self._clock.monotonic(), max(len(one.looks) for one in some)
        for place in range(longest):
            for one in some:
                if not one.over:
                    at = one.looks[place](one, at)
        for one in some:
            one.tell(self._outcome(one))

    def _read(self, came: Came) -> float:
        """When it was. What it cannot make out the stages begin with."""
        plan, head = came.plan, came.head
        assert plan.dialect is not None
        try:
            call = plan.dialect.parse(head.path, came.body, head.headers)
        except BadRequest:  # the stages say so
            return came.received
        name = call.model.encode("utf-8", "surrogatepass")
        known = came.known = plan.known[name] if name in plan.known else self._found(head, plan, name, call)
        if known is None:
            return came.received
        scope = fingerprint = ""
        if call.uncached is None:
            frame = known.frame or _frame(known.terms.route, plan.tenant, call)
            scope, fingerprint = frame.keys_of(call)
        came.asked = Asked(self._ids.of(head.headers), plan.tenant, call, known.terms.directives, scope, fingerprint)
        if fingerprint and not call.stream and call.batch is None:
            came.looks = known.beforehand.looks
        return self._clock.monotonic()

    def _outcome(self, came: Came) -> Outcome:
        known, alike = came.known, came.alike
        if known is None:
            return None
        if not came.hit or came.entry.streamed:
            return self._left(came, known)
        steps_ms = [*map(IN_MS, came.spans.values())]
        request_id, near = came.asked.id.encode(), b"" if alike is None else b"%.4f" % alike.similarity
        answer = known.answer(request_id, came, steps_ms, near, came.entry.payload[0])
        self.answered += 1
        seconds = self._clock.monotonic() - came.received
        if alike is None:
            self._observer.found(known.exact, came, request_id, seconds, steps_ms, near)
            self._learn(came, known)
        else:
            known.beforehand.served(came.asked, alike)
            self._observer.found(known.semantic, came, request_id, seconds, steps_ms, near)
        return answer

    def _learn(self, came: Came, known: Known) -> None:
        """So that the very same bytes need not be read again."""
        plan, head, route = came.plan, came.head, known.terms.route
        lifetime, entry = known.beforehand.lifetime, came.entry
        if lifetime is None or plan.dialect is None or head.headers.get("cache-control") is not None:
            return
        told = repeated_of(
            plan.dialect, entry, lifetime, route=route.name, tenant=plan.tenant, path=head.path,
            permit=plan.permit, expose_headers=route.expose_headers,
        )  # fmt: skip
        content = [("Content-Type", entry.content_type)]
        self._front.remember(head, came.body, plan.table, told, content, entry.payload[0])

    def _left(self, came: Came, known: Known) -> Request:
        """As `routed`, with what was found out, but for a hit that the stages put together."""
        plan, head, asked, terms, trace = came.plan, came.head, came.asked, known.terms, Trace(self._clock)
        trace.dialect, trace.tenant, trace.permit = plan.dialect, plan.tenant, plan.permit
        trace.route, trace.expose_headers = terms.route.name, terms.route.expose_headers
        embedding = None
        if not came.hit:
            trace.spans.update(came.spans)
            embedding = trace.embedding = came.embedding
        if came.note is not None:
            trace.note = came.note
        deadline, ttft_deadline = terms.budget.due(came.received)
        return Request(  # by position, see `gateway.messages.values`
            asked.id,
            head.method,
            head.path,
            head.query,
            head.headers,
            AtHand(came.body),
            came.received,
            trace,
            came.body,
            asked.call,
            terms.route.name,
            asked.directives,
            asked.scope,
            asked.fingerprint,
            embedding,
            came.unlike,
            deadline,
            ttft_deadline,
            terms.budget.tpot_s,
            terms.priority,
            plan.table,
            came.peer,
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
