"""Asks a backend what a semantic hit should have been, after the client has its answer: how often hits are wrong is
measured, not assumed. The fresh answer is stored under the request's own fingerprint, so that whoever asks the same
again gets it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from gateway.background import Background
from gateway.bodies import drain
from gateway.cache.caps import Caps
from gateway.cache.control.controls import Controls
from gateway.cache.control.wrong_hits import Label
from gateway.cache.judged import Judged
from gateway.errors import Refused, StreamBroken
from gateway.messages import CacheDirectives, Entry, Request
from gateway.observing.telemetry import Telemetry
from gateway.pipeline import Handler
from gateway.policy.model import Audit
from gateway.ports import Clock
from gateway.quality.comparisons import Comparisons
from gateway.quality.judge import Judge
from gateway.quality.labels import Labels

LOG = logging.getLogger("nearhit.quality")
MAX_AT_ONCE = 4  # a backend that is slow for audits must stay quick for clients
MAX_WAITING = 16  # behind them


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A served hit that is audited."""

    request: Request
    judged: Judged
    rule: Audit
    chance: float  # with which it was chosen, in (0, 1]
    forward: Handler  # the stages below the caches' lookups


class Audits:
    """`draw` gives numbers in [0, 1). What is spent is kept by route: a reload of the policy forgets nothing."""

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
        self._judge = judge
        self._telemetry = telemetry
        self._clock = clock
        self._draw = draw
        self._background = Background(MAX_AT_ONCE + MAX_WAITING)
        self._places = asyncio.Semaphore(MAX_AT_ONCE)
        self._caps: dict[str, Caps] = {}

    def __len__(self) -> int:
        """How many wait or are under way."""
        return len(self._background)

    def consider(self, request: Request, judged: Judged, rule: Audit, forward: Handler) -> None:
        """Audits this hit, by chance. Nothing is sent on behalf of a client that wants nothing stored, or no call."""
        if request.directives.no_store or request.directives.only_if_cached:
            return
        chance = self._controls.of(request.route).audit_chance(judged.score, rule.share)
        if self._draw() >= chance:
            return
        expected = judged.entry.cost_dollars
        caps = self._caps.setdefault(request.route, Caps())
        if not caps.take(rule, expected, self._clock.monotonic()):
            self._telemetry.audits.add(request.route, "skipped-cost")
            return
        work = self._audit(_Chosen(request, judged, rule, chance, forward))
        if not self._background.start(request.fingerprint, work):
            caps.give_back(expected)
            self._telemetry.audits.add(request.route, "skipped-busy")

    async def close(self) -> None:
        """Ends what is under way; what it would have told is lost, and nothing else."""
        await self._background.close()

    async def _audit(self, chosen: _Chosen) -> None:
        request, judged = chosen.request, chosen.judged
        async with self._places:
            fresh = await self._fresh(chosen)
            if fresh is None:  # what was set aside for it stays spent: a call that failed may have cost as much
                self._telemetry.audits.add(request.route, "failed")
                return
            self._spent(request.route, judged.entry.cost_dollars, fresh.cost_dollars)
            assert request.call is not None  # what was asked by similarity has a question
            label = await self._comparisons.label(request.call, judged.entry, fresh) or Label.UNDECIDED
            if label is Label.UNDECIDED:
                label = await self._second_look(chosen, fresh)
        self._controls.of(request.route).audited(label, chosen.chance)
        self._labels.tell(request.route, judged, label, "audit")
        if label is Label.WRONG:
            await self._labels.refute(judged.relation)
        self._telemetry.audits.add(request.route, label)  # last: who counts it finds all of the above done

    async def _fresh(self, chosen: _Chosen) -> Entry | None:
        """The answer of a backend, as it was stored; None where none could be had or none that may be stored."""
        request, trace = chosen.request, chosen.request.trace.apart()
        again = replace(
            request,
            directives=CacheDirectives(no_cache=True),
            trace=trace,
            deadline=None,  # nobody waits: the client's budget is not to choose the model
            ttft_deadline=None,
            tpot_s=None,
            unasked=True,
        )
        try:
            await drain((await chosen.forward(again)).body)
        except (Refused, StreamBroken) as error:
            LOG.warning("an audit failed", extra={"fields": {"id": request.id, "error": str(error)}})
            return None
        return trace.stored

    async def _second_look(self, chosen: _Chosen, fresh: Entry) -> Label:
        """The judge's, where the policy names one and its bounds leave room for one more call."""
        request, rule, expected = chosen.request, chosen.rule, chosen.judged.entry.cost_dollars
        if rule.judge is None or not self._caps[request.route].take(rule, expected, self._clock.monotonic()):
            return Label.UNDECIDED
        label, cost = await self._judge.ask(rule.judge, request, chosen.judged.entry, fresh)
        self._spent(request.route, expected, cost)
        return label

    def _spent(self, route: str, expected: float, actual: float) -> None:
        self._caps[route].settle(expected, actual)
        self._telemetry.audit_cost.add(route, amount=actual)
