"""The innermost step: has a backend chosen and called, and records where the answer came from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.config.policy.model import Route
from gateway.context import RequestContext
from gateway.errors import BudgetExceeded, GatewayError, OnlyIfCached, ServeStale
from gateway.messages import Provenance, Response
from gateway.observability.telemetry import Telemetry
from gateway.outcomes import Bypass, Choice, Verdict
from gateway.request_fields import Estimates
from gateway.routing.backend_choice import BackendChoice
from gateway.routing.fallback import BackendAnswer
from gateway.routing.latency_promises import Promise, Promises
from gateway.routing.selection import Decision, bound_to
from gateway.routing.tier_learning import TierLearning
from gateway.steps.base_url_hint import BaseUrlHint
from gateway.steps.token_counts import TokenCounts, counts_tokens
from gateway.upstream.backend import UpstreamPool

NAME = "Dispatch"  # in `nearhit_step_failures_total`

Call = Callable[[RequestContext, Decision], Awaitable[BackendAnswer]]
"""Sends a request to the backends of a decision. Raises `GatewayError`."""
Mirror = Callable[[RequestContext, Response], Response]
"""Sees every response, and may observe its body on the way to the client."""


class Dispatch:
    """Calls the backends of one route. `mirror` is a port (see `gateway.steps.route_ports`). `sole` is
    set if the route has exactly one backend; only a latency budget needs a decision then."""

    def __init__(
        self,
        route: Route,
        backend_choice: BackendChoice,
        call: Call,
        promises: Promises,
        escalations: TierLearning,
        telemetry: Telemetry,
        base_url_hint: BaseUrlHint,
        token_counts: TokenCounts,
        mirror: Mirror | None = None,
        sole: UpstreamPool | None = None,
    ) -> None:
        self._route = route
        self._backend_choice = backend_choice
        self._call = call
        self._promises = promises
        self._escalations = escalations
        self._telemetry = telemetry
        self._base_url_hint = base_url_hint
        self._token_counts = token_counts
        self._mirror = mirror
        self._sole = sole
        # Answers with the same bypass reason share one object.
        self._from_sole: dict[Bypass | None, Provenance] = {}
        self._routed_to_sole = (route.name, "none", Choice.ONLY)

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        """Answer from a backend. Raise `GatewayError`, such as `OnlyIfCached`, at the call or when it is awaited."""
        if request.directives.only_if_cached:
            raise OnlyIfCached("there is no stored answer, and the request allows no other (only-if-cached)")
        request.require_capacity()
        if request.call is None and counts_tokens(request):
            return self._count_tokens(request)
        return self._answer(request)

    def _answer(self, request: RequestContext) -> Awaitable[Response]:
        if (
            self._sole is not None
            and request.constraints.affinity is None
            and (request.call is None or not request.has_budget)
        ):
            return self._call_sole(request, self._sole)
        return self._choose_and_call(request)

    async def _count_tokens(self, request: RequestContext) -> Response:
        await self._token_counts.keep_body(request)
        return await self._token_counts.complete(request, await self._answer(request))

    async def _call_sole(self, request: RequestContext, sole: UpstreamPool) -> Response:
        response = await sole.call(request)
        bypass = request.bypass
        provenance = self._from_sole.get(bypass)
        if provenance is None:
            provenance = Provenance(_verdict(request), bypass or Choice.ONLY, backend=sole.name)
            self._from_sole[bypass] = provenance
        try:
            self._telemetry.routed.add_to(self._routed_to_sole)
            return self._finish(request, response, provenance)
        except Exception as error:  # the backend has answered, and nothing that follows may cost its answer
            self._telemetry.failures.record(NAME, error)
            return _with_provenance(response, provenance)

    async def _choose_and_call(self, request: RequestContext) -> Response:
        decision = await self._choose(request)
        if request.constraints.affinity is not None:
            decision = bound_to(decision, self._route.target, request.constraints.affinity.backend)
        if decision.late:
            self._refuse_if_late(request)
        slo = self._begin(request, decision)
        answered = await self._call_backends(request, decision, slo)
        try:
            return self._record_answer(request, decision, answered, slo)
        except Exception as error:
            self._telemetry.failures.record(NAME, error)
            provenance = Provenance(_verdict(request), backend=answered.backend, other_usage=answered.other_usage)
            return _with_provenance(answered.response, provenance)

    async def _choose(self, request: RequestContext) -> Decision:
        """Choose the backends. A choice that fails unexpectedly leaves the order of the policy."""
        try:
            return await self._backend_choice.choose(request)
        except GatewayError:
            raise
        except Exception as error:
            self._telemetry.failures.record(NAME, error)
            request.estimates = Estimates(outlook=request.estimates.outlook)
            return self._backend_choice.decide_unscored(request)

    def _begin(self, request: RequestContext, decision: Decision) -> Promise | None:
        """Record the decision before the call, because the next request's choice depends on it."""
        try:
            if request.estimates.tier_decision is not None and decision.tier is not None:
                large = self._large(decision.tier)
                self._escalations.record_dispatch(request, request.estimates.tier_decision, large=large)
            return self._promises.promise_for(request, self._route, promised=decision.promised)
        except Exception as error:
            self._telemetry.failures.record(NAME, error)
            return None

    def _record_answer(
        self, request: RequestContext, decision: Decision, answered: BackendAnswer, slo: Promise | None
    ) -> Response:
        conversations = self._backend_choice.conversations
        response = answered.response if conversations is None else conversations.record_answer(request, answered)
        if slo is not None:
            response = slo.observe_response(response, as_chosen=answered.instead is None)
        return self._finish(request, response, self._provenance(request, decision, answered))

    async def _call_backends(self, request: RequestContext, decision: Decision, slo: Promise | None) -> BackendAnswer:
        try:
            return await self._call(request, decision)
        except BaseException as error:
            if slo is not None:
                slo.failed(error)
            raise

    def _finish(self, request: RequestContext, response: Response, provenance: Provenance) -> Response:
        if request.call is None:
            self._base_url_hint.check(request, response)
        response = _with_provenance(response, provenance)
        return response if self._mirror is None else self._mirror(request, response)

    def _provenance(self, request: RequestContext, decision: Decision, answered: BackendAnswer) -> Provenance:
        reason: str = answered.instead or decision.reason
        tier = self._route.target.tier_with_backend(answered.backend) if decision.tier is not None else None
        self._telemetry.routed.add(self._route.name, tier or "none", reason)
        if tier is not None:
            large, meant = self._large(tier), self._large(decision.tier)
            self._escalations.record_answer(request, large=large, instead=large != meant)
        return Provenance(
            _verdict(request),
            reason=request.bypass or reason,
            backend=answered.backend,
            tier=tier,
            complexity=request.estimates.complexity,
            other_usage=answered.other_usage,
        )

    def _large(self, tier: str | None) -> bool:
        return tier != self._route.target.tiers[0].name

    def _refuse_if_late(self, request: RequestContext) -> None:
        """Raise if the policy prefers no call when no backend is predicted to be in time."""
        late, outlook = self._route.slo.late, request.estimates.outlook
        forecast = "" if outlook is None else f" ({outlook.describe()})"
        message = f"no backend is predicted to answer within the latency budget{forecast}"
        if late == "refuse":
            self._promises.not_asked(self._route, "refused")
            raise BudgetExceeded(message)
        if late == "stale" and request.constraints.stale_available:
            self._promises.not_asked(self._route, "stale")
            raise ServeStale(message)


def _with_provenance(response: Response, provenance: Provenance) -> Response:
    return Response(response.status, response.headers, response.body, provenance)


def _verdict(request: RequestContext) -> Verdict:
    return Verdict.MISS if request.bypass is None else Verdict.BYPASS
