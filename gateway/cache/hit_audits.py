"""Asks a backend what a semantic hit should have been, after the client has its answer: how often hits are wrong is
measured, not assumed. The fresh answer is stored under the request's own fingerprint, so that whoever asks the same
again gets it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from gateway.body_streams import drain
from gateway.cache.answer_comparer import Comparisons
from gateway.cache.answer_judge import Judge
from gateway.cache.audit_calls import AuditCalls
from gateway.cache.judgement import relation_between
from gateway.cache.labels import Labels
from gateway.cache.threshold.controls import Controls
from gateway.cache.threshold.wrong_hits import Label
from gateway.config.policy.model import Audit
from gateway.context import Handler, RequestContext, resolved
from gateway.errors import Refused, StreamBroken
from gateway.messages import NO_CACHE, Bypass, Entry
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock, Judged

LOG = logging.getLogger("nearhit.quality")


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A served hit that is audited."""

    request: RequestContext
    judged: Judged
    rule: Audit
    chance: float  # with which it was chosen, in (0, 1]
    forward: Handler  # the steps below the caches' lookups


class Audits:
    """`draw` gives numbers in [0, 1)."""

    def __init__(
        self,
        comparisons: Comparisons,
        labels: Labels,
        controls: Controls,
        judge: Judge,
        telemetry: Telemetry,
        clock: Clock,
        draw: Callable[[], float],
    ) -> None:
        self._comparisons = comparisons
        self._labels = labels
        self._controls = controls
        self._telemetry = telemetry
        self._draw = draw
        self._calls = AuditCalls(judge, telemetry, clock)

    def __len__(self) -> int:
        """How many wait or are under way."""
        return len(self._calls)

    def consider(self, request: RequestContext, judged: Judged, rule: Audit, forward: Handler) -> None:
        """Audits this hit, by chance. Nothing is sent on behalf of a client that wants nothing stored, or no call."""
        if request.directives.no_store or request.directives.only_if_cached:
            return
        chance = self._controls.of(request.route).audit_chance(judged.score, rule.share)
        if self._draw() >= chance:
            return
        chosen = _Chosen(request, judged, rule, chance, forward)
        skipped = self._calls.begin(
            request.fingerprint, request.route, rule, judged.entry.cost_dollars, lambda: self._audit(chosen)
        )
        if skipped is not None:
            self._telemetry.audits.add(request.route, skipped)

    async def close(self) -> None:
        """Ends what is under way; what it would have told is lost, and nothing else."""
        await self._calls.close()

    async def _audit(self, chosen: _Chosen) -> None:
        request, judged, expected = chosen.request, chosen.judged, chosen.judged.entry.cost_dollars
        async with self._calls.places:
            fresh = await self._fresh(chosen)
            if fresh is None:  # what was set aside for it stays spent: a call that failed may have cost as much
                self._telemetry.audits.add(request.route, "failed")
                return
            self._calls.spent(request.route, expected, fresh.cost_dollars)
            answers = judged.entry, fresh
            label = await self._calls.label(self._comparisons, request, chosen.rule, answers, expected)
        self._controls.of(request.route).audited(label, chosen.chance)
        self._labels.tell(request.route, judged, label, "audit")
        if label is Label.WRONG:
            await self._labels.refute(relation_between(judged))
        self._telemetry.audits.add(request.route, label)  # last: who counts it finds all of the above done

    async def _fresh(self, chosen: _Chosen) -> Entry | None:
        """The answer of a backend, as it was stored; None where none could be had or none that may be stored."""
        again = chosen.request.own_call("audit")
        again.directives, again.bypass = NO_CACHE, Bypass.NO_CACHE
        try:
            await drain((await resolved(chosen.forward(again))).body)
        except (Refused, StreamBroken) as error:
            LOG.warning("an audit failed", extra={"fields": {**again.log_fields, "error": str(error)}})
            return None
        return again.stored
