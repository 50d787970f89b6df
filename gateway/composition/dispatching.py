"""Builds what the misses of a route end in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from gateway.backends.direct import Direct, direct_to
from gateway.backends.direct_call import DirectCall
from gateway.backends.pool import Pool
from gateway.calling.asking import Answered, Asking
from gateway.calling.cascade import Cascade
from gateway.calling.checks import Checks
from gateway.calling.deciding import Deciding
from gateway.calling.grader import Grader
from gateway.calling.trials import Trials
from gateway.composition.parts import Parts
from gateway.messages import Bypass, Choice, Provenance, Request, Verdict
from gateway.policy.model import Route
from gateway.routing.choice import Decision
from gateway.stages.admit import Admit
from gateway.stages.dispatch import Ask, Dispatch, Seen, Sole
from gateway.stages.fetch import Fetch


def dispatch_of(route: Route, parts: Parts, bypass: Bypass | None = None) -> Dispatch:
    deciding = deciding_of(route, parts)
    ask, seen = _ask(route, parts, deciding), _seen(route, parts)
    sole = None if deciding.sole is None else _sole(route, parts.pools[deciding.sole], parts)
    return Dispatch(route, deciding, ask, parts.promises, parts.escalations, parts.telemetry, bypass, seen, sole)


def _sole(route: Route, pool: Pool, parts: Parts) -> Sole:
    direct = direct_to(pool, calls=True, exposes=route.expose_headers)
    return pool if direct is None else DirectCall(direct, parts.clock, parts.telemetry)


def direct_of(route: Route, parts: Parts) -> Direct | None:
    """Where no stage of the route has anything to do with most requests: see `gateway.data_port.straight`."""
    return _direct(route, parts, calls=not route.caches and route.record is None)


def fetch_of(route: Route, parts: Parts, admit: Admit) -> Fetch | None:
    """Where no stage has anything to do with most misses but to ask its backend and to store what that says."""
    direct, semantic = _direct(route, parts, calls=True), route.semantic
    if direct is None or parts.leasing is not None or (semantic is not None and semantic.coalesce):
        return None
    origin = Provenance(Verdict.MISS, Choice.ONLY, backend=direct.pool.name)
    return Fetch(direct, admit, parts.flights, origin)


def _direct(route: Route, parts: Parts, *, calls: bool) -> Direct | None:
    sole = deciding_of(route, parts).sole
    if sole is None or route.limits or route.target.shadow is not None or route.latency_budget_s is not None:
        return None
    return direct_to(parts.pools[sole], calls=calls, exposes=route.expose_headers)


def deciding_of(route: Route, parts: Parts) -> Deciding:
    return Deciding(route, parts.pools, parts.promises, parts.escalations, parts.clock, parts.space.complexity)


def _ask(route: Route, parts: Parts, deciding: Deciding) -> Ask:
    rule, asking = route.target.cascade, Asking(parts.pools, parts.clock, parts.telemetry)
    if rule is not None:
        checks = Checks(rule, asking, Grader(parts.pools), parts.space.embedder)
        trials = Trials(rule, asking, checks)
        return Cascade(rule.accept_above, trials, asking, parts.telemetry, deciding.in_time, _told(parts)).answer

    def ask(request: Request, decision: Decision) -> Awaitable[Answered]:
        return asking.first_answer(request, decision.backends)

    return ask


def _told(parts: Parts) -> Callable[[Request, bool], None]:
    def told(request: Request, passed: bool) -> None:
        """Counted, and no more: a check is no comparison of two answers, and one that is too strict, which hears of
        every hard request, would soon have the route take all of them for hard."""
        score = request.trace.complexity
        if score is not None and not request.unasked:
            parts.escalations.observe(request.route, score, light_was_worse=not passed, source="cascade", weight=0.0)

    return told


def _seen(route: Route, parts: Parts) -> Seen | None:
    rule = route.target.shadow
    if rule is None:
        return None
    return partial(parts.shadows.watched, rule=rule, comparisons=parts.space.comparisons)
