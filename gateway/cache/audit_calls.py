"""What an audit makes of two answers, whoever gave them: compared, and where that cannot tell, shown to the judge."""

from __future__ import annotations

from gateway.cache.answer_comparer import Comparisons
from gateway.cache.answer_judge import Judge
from gateway.cache.background_calls import ExtraCalls
from gateway.cache.threshold.wrong_hits import Label
from gateway.config.policy.model import Audit
from gateway.context import RequestContext
from gateway.messages import Entry
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock


class AuditCalls(ExtraCalls):
    """The calls of audits, and of the judge, out of the same bounds."""

    def __init__(self, judge: Judge, telemetry: Telemetry, clock: Clock) -> None:
        super().__init__(clock)
        self._judge = judge
        self._telemetry = telemetry

    async def label(
        self,
        comparisons: Comparisons,
        request: RequestContext,
        rule: Audit,
        answers: tuple[Entry, Entry],
        expected: float,
    ) -> Label:
        """Of the second answer beside the first. `expected`: US dollars that one more call would cost; there is one
        where the policy names a judge and its bounds leave room."""
        assert request.call is not None  # what is audited has a question
        first, second = answers
        label = await comparisons.label(request.call, first, second) or Label.UNDECIDED
        if label is not Label.UNDECIDED or rule.judge is None or not self.take(request.route, rule, expected):
            return label
        label, cost = await self._judge.ask(rule.judge, request, first, second)
        self.spent(request.route, expected, cost)
        return label

    def spent(self, route: str, expected: float, actual: float) -> None:
        """What a call really cost, once it is known."""
        self.settle(route, expected, actual)
        self._telemetry.audit_cost.add(route, amount=actual)
