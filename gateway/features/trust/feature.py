"""The declaration of the feature `cache.admit.trust`."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from gateway.cache.explanation import ExplainedPair
from gateway.calls import Call
from gateway.config.policy.model import Route
from gateway.config.validation import Problem
from gateway.context import Handler, RequestContext
from gateway.feature import Core, Feature, FeatureStep, HasEntry, Place, Runtime, Unsupported
from gateway.features.trust.askers import asker_of
from gateway.features.trust.confirmations import Confirmations, TrustMetrics
from gateway.features.trust.rule import FURTHER, SUMMARY, TrustForm, TrustRule, trust_problems
from gateway.messages import Response
from gateway.outcomes import Refusal
from gateway.steps.guard import leave_caches
from gateway.steps.route_ports import RoutePorts


class TrustRuntime(Runtime):
    """The shared parts of the feature."""

    __slots__ = ("_confirmations",)

    def __init__(self, confirmations: Confirmations) -> None:
        self._confirmations = confirmations

    def apply(self, request: RequestContext, call: Call, route: Route) -> Call:
        return apply_trust(request, call, TrustRule.of(route))

    def ports(self, route: Route) -> RoutePorts:
        return RoutePorts(on_stored=None if TrustRule.of(route).confirm is None else self._confirmations.consider)

    def own_keys(self, route: Route, inner: Handler) -> Handler:
        """Return the step that gives each request the exact key of its client."""
        rule = TrustRule.of(route)

        def apply(request: RequestContext) -> Response | Awaitable[Response]:
            if request.call is not None:
                apply_trust(request, request.call, rule)
            return inner(request)

        return apply


def apply_trust(request: RequestContext, call: Call, rule: TrustRule) -> Call:
    """Give a request that may be looked up the exact key of its client."""
    if request.keys.fingerprint:
        key = "" if request.client.permit is None else request.client.permit.id
        request.asker = asker = asker_of(rule, request.client.tenant, key, call.user)
        request.keys = request.keys._replace(fingerprint=asker.own_key(request.keys.fingerprint))
    return call


class Trust(Feature):
    """Answers that serve a part of their scope until independent clients have confirmed them."""

    key = "cache.admit.trust"
    after = "after"
    summary = SUMMARY
    embeds = True
    form = TrustForm
    further = FURTHER
    metrics = TrustMetrics
    steps = (
        FeatureStep(
            "OwnKeys", Place.KEYS, "an unconfirmed answer serves its writer only", TrustRuntime.own_keys, leave_caches
        ),
    )
    stores = Unsupported("the digests of clients are a part of each entry")

    def applies(self, route: Route) -> bool:
        return TrustRule.of(route).withholds(route)

    def problems(self, route: Mapping[str, Any]) -> Iterator[Problem]:
        return trust_problems(route)

    def open(self, core: Core) -> TrustRuntime:
        confirmations = Confirmations(core.telemetry)
        core.stack.push_async_callback(confirmations.close)
        return TrustRuntime(confirmations)

    def explain(self, request: RequestContext, route: Route) -> Unsupported:
        return Unsupported("the fingerprint is that of the client")

    async def explain_pair(self, pair: ExplainedPair, route: Route, has_entry: HasEntry) -> ExplainedPair:
        """Return the explanation for a client that has not asked before. Other refusals come first."""
        rule = TrustRule.of(route)
        if not pair.served or await has_entry(asker_of(rule, "", "", None).may_have):
            return pair
        confirm = rule.confirm
        until = "permanently" if confirm is None else f"until the answers of {confirm} independent clients agree"
        why = f"unconfirmed: not confirmed yet, so only its writer has the answer, {until}; otherwise {pair.why}"
        return replace(pair, served=False, reason=Refusal.UNCONFIRMED, why=why)

    def doctor(self, route: Route) -> Unsupported:
        return Unsupported("nearhit check finds the faults of its keys")

    def simulate(self) -> Unsupported | None:
        return Unsupported("trust is not replayed: each answer serves its whole scope")


TRUST = Trust()
