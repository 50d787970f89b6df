"""Audit answers of the light model: fetch the large model's answer after the client is served, and compare both.

Equal answers are a label by themselves. If they differ, either may be right, so the judge of the policy says which is
better. Without a judge, or a verdict of it, the label is only that they differ.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from gateway.cache.admission import admit_response
from gateway.cache.answer_comparer import AnswerComparer, OnCompared
from gateway.cache.answer_judge import AnswerJudge, Preference
from gateway.cache.audits import AuditCalls
from gateway.cache.threshold.wrong_hits import Label
from gateway.config.policy.model import Target
from gateway.config.policy.parameters import untuned
from gateway.config.policy.schema import ADMIT_ALL, AuditRule
from gateway.context import RequestContext
from gateway.entries import NO_CACHE, Entry
from gateway.errors import GatewayError, UpstreamStreamError
from gateway.observability.telemetry import Telemetry
from gateway.outcomes import Admission
from gateway.ports import Clock
from gateway.prices import Tariff, Tokens
from gateway.routing.tier_learning import TierLearning
from gateway.routing.tuned_pool import pools_of
from gateway.scores import ComparedAnswer, TierLabel
from gateway.streams import buffer_response
from gateway.upstream.backend import UpstreamPool

LOG = logging.getLogger("nearhit.quality")
MAX_BYTES = 1024 * 1024  # of the large model's answer; longer ones are not compared
EVEN = tuple("02468ace")  # last digits of a fingerprint

# The label of the traffic log: whether the light answer is as good. A difference that nobody judged counts against it.
RECORDED = {
    TierLabel.EQUAL: Label.RIGHT,
    TierLabel.BETTER: Label.RIGHT,
    TierLabel.WORSE: Label.WRONG,
    TierLabel.DIFFERENT: Label.WRONG,
    None: Label.UNDECIDED,
}


class TierAudits:
    """`TierAudits` audits a random sample of the light model's answers. `rng` returns numbers in [0, 1)."""

    def __init__(
        self,
        pools: Mapping[str, UpstreamPool],
        prices: Mapping[str, Tariff],
        judge: AnswerJudge,
        escalations: TierLearning,
        telemetry: Telemetry,
        clock: Clock,
        rng: Callable[[], float],
        on_compared: OnCompared,
    ) -> None:
        self._on_compared = on_compared
        self._pools = pools
        self._prices = prices
        self._escalations = escalations
        self._telemetry = telemetry
        self._rng = rng
        self._calls = AuditCalls(judge, telemetry, clock)

    def consider(self, request: RequestContext, light: Entry, target: Target, comparisons: AnswerComparer) -> None:
        """Audit a random sample of the lightest model's answers. `light` is the stored answer, so it is complete.

        Answers that may not be stored are not audited.
        """
        rule = target.audit
        if rule.share <= 0 or request.work.internal or request.estimates.scored_prompt is None:
            return
        if len(target.tiers) == 1 or target.tier_with_backend(light.backend) != target.tiers[0].name:
            return
        if self._rng() >= rule.share:
            return
        price = self._prices[untuned(target.tiers[-1].backend)].price(request.model)
        expected = price.of(light.input_tokens, light.output_tokens)
        skipped = self._calls.start(
            request.keys.fingerprint,
            request.route,
            rule,
            expected,
            lambda: self._audit(request, light, target, comparisons),
        )
        if skipped is not None:
            self._telemetry.light_audits.add(request.route, skipped)

    async def close(self) -> None:
        """Cancel the running audits. Only their labels are lost."""
        await self._calls.close()

    async def _audit(self, request: RequestContext, light: Entry, target: Target, comparisons: AnswerComparer) -> None:
        prompt = request.estimates.scored_prompt
        assert prompt is not None  # set, as `consider` checks it
        async with self._calls.limiter:
            large = await self._answer(request, light, target)
            if large is None:  # the reservation stays spent: the failed call may have cost as much
                self._telemetry.light_audits.add(request.route, "failed")
                return
            label = await self._label(request, light, large, target.audit, comparisons)
        if label is not None:
            # Without a judge only equal answers have a label, which would teach that all prompts are easy.
            fits = target.audit.judge is not None
            self._escalations.observe(request.route, prompt, label, source="audit", fits=fits)
        compared = [
            ComparedAnswer(each.backend, Tokens(each.input_tokens, each.output_tokens)) for each in (light, large)
        ]
        self._on_compared(request, "audit", compared[1], compared[0], RECORDED[label])
        # last, so that a reader of the counter finds all of the above done
        self._telemetry.light_audits.add(request.route, "undecided" if label is None else str(label))

    async def _label(
        self, request: RequestContext, light: Entry, large: Entry, rule: AuditRule, comparisons: AnswerComparer
    ) -> TierLabel | None:
        """Return what both answers say of the light one, or None if nothing can be told."""
        assert request.call is not None  # only questions are audited
        same = await comparisons.label(request.call, light, large)
        if same is Label.RIGHT:
            return TierLabel.EQUAL
        # Judges prefer the first of two answers, so the light one is first for half of the requests.
        swapped = request.keys.fingerprint[-1:] in EVEN
        first, second = (large, light) if swapped else (light, large)
        better = await self._calls.preference(request, rule, first, second, large.cost_dollars)
        if better is Preference.UNDECIDED:
            return TierLabel.DIFFERENT if same is Label.WRONG else None
        if better is Preference.EQUAL:
            return TierLabel.EQUAL
        return TierLabel.BETTER if (better is Preference.FIRST) is not swapped else TierLabel.WORSE

    async def _answer(self, request: RequestContext, light: Entry, target: Target) -> Entry | None:
        """Return the large model's answer; None where the call failed or the answer is incomplete."""
        name = target.tiers[-1].backend
        audit_request = request.internal_child("audit")
        audit_request.directives = NO_CACHE
        try:
            answer = await buffer_response(await pools_of(target, self._pools)[name].call(audit_request), MAX_BYTES)
        except (GatewayError, UpstreamStreamError) as error:
            LOG.warning("an audit failed", extra={"fields": {**request.log_fields, "error": str(error)}})
            return None
        if answer is None:
            return None
        assert request.call is not None
        seen = request.call.dialect.inspect(request.call, answer.payload, answer.streamed)
        price = self._prices[untuned(name)].price(request.call.model)
        cost = price.of(*seen.tokens)
        self._calls.record_cost(request.route, price.of(light.input_tokens, light.output_tokens), cost)
        if admit_response(ADMIT_ALL, seen, cost, tools=True) is not Admission.STORED:
            return None
        return replace(
            light,
            payload=answer.payload,
            streamed=answer.streamed,
            backend=name,
            cost_dollars=cost,
            input_tokens=seen.input_tokens,
            output_tokens=seen.output_tokens,
        )


def open_audits(
    pools: Mapping[str, UpstreamPool],
    prices: Mapping[str, Tariff],
    escalations: TierLearning,
    telemetry: Telemetry,
    clock: Clock,
    draw: Callable[[], float],
    on_compared: OnCompared,
) -> TierAudits:
    """Build the audits with the judge of answers."""
    return TierAudits(pools, prices, AnswerJudge(pools, prices), escalations, telemetry, clock, draw, on_compared)
