"""Asks the large model what the light one has answered, after the client has its answer, and compares both: whether the
light model's answers are worse is measured, not assumed. The large model's answer is the measure: what says something
else is taken to be worse."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.backends.pool import Pool
from gateway.background import Background
from gateway.bodies import close_body, close_stream
from gateway.cache.admission import judged
from gateway.cache.caps import Caps
from gateway.cache.control.wrong_hits import Label
from gateway.errors import Refused, StreamBroken
from gateway.messages import Admission, CacheDirectives, Entry, EventStream, Request, Whole
from gateway.observing.telemetry import Telemetry
from gateway.policy.model import AdmissionRules, Target
from gateway.ports import Clock
from gateway.quality.comparisons import Comparisons
from gateway.quality.escalations import Escalations
from gateway.quality.judge import Judge

if TYPE_CHECKING:
    from gateway.stages.admit import Price

LOG = logging.getLogger("nearhit.quality")
MAX_AT_ONCE, MAX_WAITING = 4, 16  # as `gateway.quality.audits`
MAX_BYTES = 1024 * 1024  # of the large model's answer; what is longer is not compared


class LightAudits:
    """`draw` gives numbers in [0, 1). What is spent is kept by route: a reload of the policy forgets nothing."""

    def __init__(
        self,
        pools: Mapping[str, Pool],
        prices: Mapping[str, Price],
        judge: Judge,
        escalations: Escalations,
        telemetry: Telemetry,
        clock: Clock,
        draw: Callable[[], float],
    ) -> None:
        self._pools = pools
        self._prices = prices
        self._judge = judge
        self._escalations = escalations
        self._telemetry = telemetry
        self._clock = clock
        self._draw = draw
        self._background = Background(MAX_AT_ONCE + MAX_WAITING)
        self._places = asyncio.Semaphore(MAX_AT_ONCE)
        self._caps: dict[str, Caps] = {}

    def consider(self, request: Request, light: Entry, target: Target, comparisons: Comparisons) -> None:
        """Audits this answer, by chance, where it is the lightest model's. `light`: as it was stored, so complete; what
        may not be stored is not asked twice either."""
        rule, route, now = target.audit, request.route, self._clock.monotonic()
        if rule.share <= 0 or request.unasked or request.trace.complexity is None:
            return
        if len(target.tiers) == 1 or target.tier_of(light.backend) != target.tiers[0].name:
            return
        if self._draw() >= rule.share:
            return
        expected = self._prices[target.tiers[-1].backend].of(light.input_tokens, light.output_tokens)
        caps = self._caps.setdefault(route, Caps())
        if not caps.take(rule, expected, now):
            self._telemetry.light_audits.add(route, "skipped-cost")
        elif not self._background.start(request.fingerprint, self._audit(request, light, target, comparisons)):
            caps.give_back(expected)
            self._telemetry.light_audits.add(route, "skipped-busy")

    async def close(self) -> None:
        """Ends what is under way; what it would have told is lost, and nothing else."""
        await self._background.close()

    async def _audit(self, request: Request, light: Entry, target: Target, comparisons: Comparisons) -> None:
        score, call = request.trace.complexity, request.call
        assert score is not None and call is not None  # `consider` asked for both
        async with self._places:
            large = await self._answer(request, light, target.tiers[-1].backend)
            if large is None:  # what was set aside stays spent: a call that failed may have cost as much
                self._telemetry.light_audits.add(request.route, "failed")
                return
            label = await comparisons.label(call, light, large) or Label.UNDECIDED
            if label is Label.UNDECIDED:
                label = await self._second_look(request, light, large, target)
        if label is not Label.UNDECIDED:
            worse = label is Label.WRONG
            self._escalations.observe(request.route, score, light_was_worse=worse, source="audit")
        outcome = {Label.WRONG: "worse", Label.RIGHT: "as-good"}.get(label, "undecided")
        self._telemetry.light_audits.add(request.route, outcome)  # last: who counts it finds all of the above done

    async def _answer(self, request: Request, light: Entry, name: str) -> Entry | None:
        """The large model's; None where none could be had, or none that is whole."""
        again = replace(
            request,
            directives=CacheDirectives(no_cache=True),
            trace=request.trace.apart(),
            deadline=None,  # nobody waits
            ttft_deadline=None,
            tpot_s=None,
            lease=0,
            unasked=True,
        )
        try:
            response = await self._pools[name].call(again)
            if response.status != 200 or not isinstance(response.body, Whole | EventStream):
                await close_body(response.body)
                return None
            payload, streamed = await _collected(response.body), isinstance(response.body, EventStream)
        except (Refused, StreamBroken) as error:
            LOG.warning("an audit failed", extra={"fields": {"id": request.id, "error": str(error)}})
            return None
        if payload is None:
            return None
        assert request.call is not None
        seen = request.call.dialect.inspect(request.call, payload, streamed)
        cost = self._prices[name].of(seen.input_tokens, seen.output_tokens)
        self._spent(request.route, self._prices[name].of(light.input_tokens, light.output_tokens), cost)
        if judged(AdmissionRules(tools=True), seen, cost) is not Admission.STORED:
            return None
        return replace(light, payload=payload, streamed=streamed, backend=name, cost_dollars=cost)

    async def _second_look(self, request: Request, light: Entry, large: Entry, target: Target) -> Label:
        """The judge's, where the policy names one and its bounds leave room for one more call."""
        rule = target.audit
        expected = large.cost_dollars
        if rule.judge is None or not self._caps[request.route].take(rule, expected, self._clock.monotonic()):
            return Label.UNDECIDED
        label, cost = await self._judge.ask(rule.judge, request, light, large)
        self._spent(request.route, expected, cost)
        return label

    def _spent(self, route: str, expected: float, actual: float) -> None:
        self._caps[route].settle(expected, actual)
        self._telemetry.audit_cost.add(route, amount=actual)


async def _collected(body: Whole | EventStream) -> tuple[bytes, ...] | None:
    """As entries hold it; None where it is too long."""
    if isinstance(body, Whole):
        return (body.data,) if len(body.data) <= MAX_BYTES else None
    payload: list[bytes] = []
    size = 0
    try:
        async for event in body.events:
            size += len(event.data)
            if size > MAX_BYTES:
                return None
            payload.append(event.data)
    finally:
        await close_stream(body.events)
    return tuple(payload)
