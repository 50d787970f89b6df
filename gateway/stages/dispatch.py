"""Innermost: has a backend chosen and asked, and says of the answer where it came from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from gateway.calling.asking import Answered
from gateway.calling.deciding import Deciding
from gateway.calling.promises import Promises
from gateway.errors import OnlyIfCached, OutOfTime, StaleWanted
from gateway.messages import Bypass, Choice, Provenance, Request, Response, Verdict
from gateway.observing.telemetry import Telemetry
from gateway.policy.model import Route
from gateway.quality.escalations import Escalations
from gateway.routing.choice import Decision

Ask = Callable[[Request, Decision], Awaitable[Answered]]
"""Puts a request to the backends of a decision. Raises `Refused`."""
Seen = Callable[[Request, Response], Response]
"""Sees every answer, and may watch it go by."""


class Sole(Protocol):
    """The only backend that there is to ask: a `Pool`, or a `DirectCall`."""

    @property
    def name(self) -> str: ...

    def call(self, request: Request) -> Awaitable[Response]:
        """See `Pool.call`."""


class Dispatch:
    """`bypass` says why the caches of this chain are not asked, None where they were; `seen`: see `calling.shadows`.
    `sole`: the backend that is asked whatever is asked, where there is no other: then only a budget, which is promised
    to be kept or not, has to be decided on."""

    def __init__(
        self,
        route: Route,
        deciding: Deciding,
        ask: Ask,
        promises: Promises,
        escalations: Escalations,
        telemetry: Telemetry,
        bypass: Bypass | None = None,
        seen: Seen | None = None,
        sole: Sole | None = None,
    ) -> None:
        self._route = route
        self._deciding = deciding
        self._ask = ask
        self._promises = promises
        self._escalations = escalations
        self._telemetry = telemetry
        self._bypass = bypass
        self._seen = seen
        self._sole = sole
        self._verdict = Verdict.MISS if bypass is None else Verdict.BYPASS
        self._from_sole = Provenance(self._verdict, bypass or Choice.ONLY, backend=sole.name if sole else None)

    async def __call__(self, request: Request) -> Response:
        if request.directives.only_if_cached:
            raise OnlyIfCached("there is no stored answer, and the request allows no other (only-if-cached)")
        if self._sole is not None and not (request.call is not None and request.bounded):
            response = await self._sole.call(request)
            self._telemetry.routed.add(self._route.name, "none", Choice.ONLY)
            return self._answer(request, response, self._from_sole)
        decision = self._deciding.decide(request)
        if decision.late:
            self._say_if_late(request)
        if request.trace.wish is not None and decision.tier is not None:  # at once: who is next is decided by it
            self._escalations.sent(request, request.trace.wish, large=self._large(decision.tier))
        promise = self._promises.of(request, self._route, promised=decision.promised)
        try:
            answered = await self._ask(request, decision)
        except BaseException as error:
            if promise is not None:
                promise.failed(error)
            raise
        response = answered.response
        if promise is not None:
            response = promise.watched(response, as_chosen=answered.instead is None)
        return self._answer(request, response, self._provenance(request, decision, answered))

    def _answer(self, request: Request, response: Response, provenance: Provenance) -> Response:
        if self._seen is not None:
            response = self._seen(request, response)
        return Response(response.status, response.headers, response.body, provenance)

    def _provenance(self, request: Request, decision: Decision, answered: Answered) -> Provenance:
        reason: str = answered.instead or decision.reason
        tier = self._route.target.tier_of(answered.backend) if decision.tier is not None else None
        self._telemetry.routed.add(self._route.name, tier or "none", reason)
        if tier is not None:
            large, meant = self._large(tier), self._large(decision.tier)
            self._escalations.answered(request, large=large, instead=large != meant)
        return Provenance(
            self._verdict,
            reason=self._bypass or reason,
            backend=answered.backend,
            tier=tier,
            complexity=request.trace.complexity,
            beside=answered.beside,
        )

    def _large(self, tier: str | None) -> bool:
        return tier != self._route.target.tiers[0].name

    def _say_if_late(self, request: Request) -> None:
        """No backend is predicted to be in time. Raises where the policy would rather not ask any."""
        late, outlook = self._route.promise.late, request.trace.outlook
        told = "" if outlook is None else f" ({outlook.sentence()})"
        message = f"no backend is predicted to answer within the latency budget{told}"
        if late == "refuse":
            self._promises.not_asked(self._route, "refused")
            raise OutOfTime(message)
        if late == "stale" and request.stale_at_hand:
            self._promises.not_asked(self._route, "stale")
            raise StaleWanted(message)
