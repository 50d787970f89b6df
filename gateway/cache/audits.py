"""Audit semantic hits: fetch a fresh answer after the client is served, and compare it with the served one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from gateway.cache.answer_comparer import AnswerComparer
from gateway.cache.answer_judge import AnswerJudge, Preference
from gateway.cache.background_calls import BackgroundCalls
from gateway.cache.feedback import relation_between
from gateway.cache.labels import Labels
from gateway.cache.threshold.route_control import Controls
from gateway.cache.threshold.wrong_hits import Label
from gateway.config.policy.schema import AuditRule
from gateway.context import Handler, RequestContext, resolve_response
from gateway.entries import NO_CACHE, Entry
from gateway.errors import GatewayError, UpstreamStreamError
from gateway.observability.telemetry import Telemetry
from gateway.outcomes import Bypass
from gateway.ports import Clock, Judgement
from gateway.streams import drain


class AuditCalls(BackgroundCalls):
    """The background calls of audits and of the judge, within the same bounds."""

    def __init__(self, judge: AnswerJudge, telemetry: Telemetry, clock: Clock) -> None:
        super().__init__(clock)
        self._judge = judge
        self._telemetry = telemetry

    async def label(
        self,
        comparisons: AnswerComparer,
        request: RequestContext,
        rule: AuditRule,
        answers: tuple[Entry, Entry],
        expected: float,
    ) -> Label:
        """Compare the second answer with the first. One more call would cost `expected` US dollars.

        An undecided comparison goes to the judge where the policy names one and its bounds leave room.
        """
        assert request.call is not None  # only questions are audited
        first, second = answers
        label = await comparisons.label(request.call, first, second) or Label.UNDECIDED
        if label is not Label.UNDECIDED or rule.judge is None or not self.reserve(request.route, rule, expected):
            return label
        label, cost = await self._judge.request_verdict(rule.judge, request, first, second)
        self.record_cost(request.route, expected, cost)
        return label

    async def preference(
        self, request: RequestContext, rule: AuditRule, first: Entry, second: Entry, expected: float
    ) -> Preference:
        """Return the better answer by the judge of the policy. One more call would cost `expected` US dollars.

        It is undecided without a judge, and where the bounds leave no room for a call.
        """
        if rule.judge is None or not self.reserve(request.route, rule, expected):
            return Preference.UNDECIDED
        found, cost = await self._judge.request_preference(rule.judge, request, first, second)
        self.record_cost(request.route, expected, cost)
        return found

    def record_cost(self, route: str, expected: float, actual: float) -> None:
        """Record the actual cost of a call."""
        self.settle(route, expected, actual)
        self._telemetry.audit_cost.add(route, amount=actual)


# Audits measure how often hits are wrong. The fresh answer is stored under the request's own fingerprint, so the next
# identical request gets it.
LOG = logging.getLogger("nearhit.quality")


@dataclass(frozen=True, slots=True)
class _AuditCandidate:
    """A served hit to audit."""

    request: RequestContext
    judged: Judgement
    rule: AuditRule
    chance: float  # probability of its choice, in (0, 1]
    forward: Handler  # the stages after the cache lookups


class HitAudits:
    """`HitAudits` audits a random sample of the semantic hits. `rng` returns numbers in [0, 1)."""

    def __init__(
        self,
        comparisons: AnswerComparer,
        labels: Labels,
        controls: Controls,
        judge: AnswerJudge,
        telemetry: Telemetry,
        clock: Clock,
        rng: Callable[[], float],
    ) -> None:
        self._comparisons = comparisons
        self._labels = labels
        self._controls = controls
        self._telemetry = telemetry
        self._rng = rng
        self._calls = AuditCalls(judge, telemetry, clock)

    def __len__(self) -> int:
        """Return how many audits wait or run."""
        return len(self._calls)

    def maybe_audit(self, request: RequestContext, judged: Judgement, rule: AuditRule, forward: Handler) -> None:
        """Audit this hit with the probability of its score.

        A request with `no-store` or `only-if-cached` is never audited, as no call may be made for it. A read-only key
        changes neither the cache nor the labels.
        """
        if request.directives.no_store or request.directives.only_if_cached or request.client.read_only:
            return
        control = self._controls.of(request.route)
        chance = rule.share if judged.linked else control.audit_chance(judged.score, rule.share)
        if self._rng() >= chance:
            return
        chosen = _AuditCandidate(request, judged, rule, chance, forward)
        skipped = self._calls.start(
            request.keys.fingerprint, request.route, rule, judged.entry.cost_dollars, lambda: self._audit(chosen)
        )
        if skipped is not None:
            self._telemetry.audits.add(request.route, skipped)

    async def close(self) -> None:
        """Cancel the running audits. Only their labels are lost."""
        await self._calls.close()

    async def _audit(self, chosen: _AuditCandidate) -> None:
        request, judged, expected = chosen.request, chosen.judged, chosen.judged.entry.cost_dollars
        async with self._calls.limiter:
            await self._comparisons.budget.wait_turn()  # it waits and is not dropped, as its chance is known
            fresh = await self._fetch_fresh(chosen)
            if fresh is None:  # the reservation stays spent: the failed call may have cost as much
                self._telemetry.audits.add(request.route, "failed")
                return
            self._calls.record_cost(request.route, expected, fresh.cost_dollars)
            answers = judged.entry, fresh
            label = await self._calls.label(self._comparisons, request, chosen.rule, answers, expected)
        assert request.call is not None  # only questions are audited
        call, comparisons = request.call, self._comparisons
        # The stored answer tells how often that to another question would have been found equal.
        equal_chance = await comparisons.chance(request.route, call, judged.entry)
        self._controls.of(request.route).audited(label, chosen.chance, equal_chance)
        lesson, chance = await comparisons.evidence(request.route, call, label, judged.entry, fresh)
        self._labels.report(request.route, judged, lesson, "audit", chance)
        if label is Label.WRONG:
            await self._labels.refute(relation_between(judged))
        elif lesson is Label.RIGHT:
            await self._labels.link(judged, fresh)
        # last, so that a reader of the counter finds all of the above done
        self._telemetry.audits.add(request.route, label)

    async def _fetch_fresh(self, chosen: _AuditCandidate) -> Entry | None:
        """Fetch an answer from a backend and return it as stored; None where the call failed or nothing was stored."""
        audit_request = chosen.request.internal_child("audit")
        audit_request.directives, audit_request.bypass = NO_CACHE, Bypass.NO_CACHE
        try:
            await drain((await resolve_response(chosen.forward(audit_request))).body)
        except (GatewayError, UpstreamStreamError) as error:
            LOG.warning("an audit failed", extra={"fields": {**audit_request.log_fields, "error": str(error)}})
            return None
        return audit_request.stored
