"""What a replay comes to, in figures. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.cache.threshold.ledger import BANDS, band_of
from gateway.messages import Verdict
from gateway.steps.traffic_log.format import Recorded
from gateway.tools.simulation.plans import Plan
from gateway.tools.simulation.replay import Outcome

HITS = frozenset({Verdict.EXACT, Verdict.SEMANTIC, Verdict.STALE, Verdict.COALESCED})
QUANTILES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}
Z = 1.96  # 95 %


@dataclass(frozen=True, slots=True)
class WrongHits:
    """Of the semantic hits: how many are expected to be wrong, and the 95 % interval of what is not known."""

    expected: float
    low: float
    high: float
    requests: int  # of the routes with a promise

    def as_json(self) -> dict[str, Any]:
        return {
            "expected": self.expected,
            "low": self.low,
            "high": self.high,
            "of_requests": self.expected / self.requests if self.requests else None,
        }


@dataclass(frozen=True, slots=True)
class Side:
    """What one policy comes to; None: not known."""

    requests: int
    verdicts: Mapping[str, int]
    unjudged: int  # misses with a neighbour that nobody ever judged
    wrong: WrongHits | None
    cost_dollars: float
    saved_dollars: float
    quantiles: Mapping[str, float | None]
    tiers: Mapping[str, int]
    unknown_latency: int
    unknown_cost: int

    @property
    def hit_rate(self) -> float:
        return self._share(sum(count for verdict, count in self.verdicts.items() if verdict in HITS))

    @property
    def hit_rate_high(self) -> float:
        return self.hit_rate + self._share(self.unjudged)

    @property
    def large_share(self) -> float | None:
        """Of the calls that could go to either; of more tiers than two, all but the lightest are large."""
        total = sum(self.tiers.values())
        return 1.0 - self.tiers.get("light", 0) / total if total else None

    def as_json(self) -> dict[str, Any]:
        total = sum(self.tiers.values())
        return {
            "requests": self.requests,
            "hit_rate": self.hit_rate,
            "hit_rate_high": self.hit_rate_high,
            "verdicts": {verdict: self._share(count) for verdict, count in sorted(self.verdicts.items())},
            "wrong_hits": None if self.wrong is None else self.wrong.as_json(),
            "cost_dollars": self.cost_dollars,
            "saved_dollars": self.saved_dollars,
            **{name: None if s is None else 1e3 * s for name, s in self.quantiles.items()},
            "unknown_latency": self.unknown_latency,
            "unknown_cost": self.unknown_cost,
            "large_share": self.large_share,
            "tiers": {tier: count / total for tier, count in sorted(self.tiers.items())},
        }

    def _share(self, count: int) -> float:
        return count / self.requests if self.requests else 0.0


def side_of(outcomes: Sequence[Outcome], plans: Iterable[Plan]) -> Side:
    """`plans`: of the routes that these came by."""
    seconds = [each.seconds for each in outcomes if each.seconds is not None]
    return Side(
        len(outcomes),
        Counter(each.verdict for each in outcomes),
        sum(each.unjudged for each in outcomes),
        _wrong_of(outcomes, plans),
        sum(each.dollars for each in outcomes if each.dollars is not None),
        sum(each.saved for each in outcomes),
        quantiles_of(seconds),
        Counter(each.tier for each in outcomes if each.tier is not None),
        len(outcomes) - len(seconds),
        sum(each.dollars is None for each in outcomes),
    )


def by_route(outcomes: Sequence[Outcome], plans: Mapping[str, Plan]) -> dict[str, Side]:
    """Of the routes that any request came by."""
    apart: dict[str, list[Outcome]] = {}
    for each in outcomes:
        apart.setdefault(each.route, []).append(each)
    return {route: side_of(its, [plans[route]]) for route, its in sorted(apart.items())}


def quantiles_of(seconds: Sequence[float]) -> dict[str, float | None]:
    if not seconds:
        return dict.fromkeys(QUANTILES)
    found = np.quantile(np.array(seconds), list(QUANTILES.values()))
    return {name: float(value) for name, value in zip(QUANTILES, found, strict=True)}


def recorded_side(requests: Sequence[Recorded]) -> dict[str, float | None]:
    """What really came of the requests: what the replay under the policy in force is to be held against."""
    hits = sum(row.verdict in HITS for row in requests)
    p95 = quantiles_of([row.seconds for row in requests])["p95_ms"]
    return {"hit_rate": hits / len(requests), "p95_ms": None if p95 is None else 1e3 * p95}


def _wrong_of(outcomes: Sequence[Outcome], plans: Iterable[Plan]) -> WrongHits | None:
    """By what each route has learnt by the end. None: no route promises anything, so that nothing is known."""
    promising = {plan.route.name: plan for plan in plans if _promises(plan)}
    if not promising:
        return None
    served = {name: [0.0] * BANDS for name in promising}
    requests = 0
    for each in outcomes:
        if each.route in promising:
            requests += 1
            if each.verdict == Verdict.SEMANTIC and each.score is not None:
                served[each.route][band_of(each.score)] += 1
    told = [promising[name].control.wrong_among(bands) for name, bands in served.items()]
    mean, variance = sum(m for m, _ in told), sum(v for _, v in told)
    spread, hits = Z * math.sqrt(variance), sum(map(sum, served.values()))
    return WrongHits(mean, max(0.0, mean - spread), min(hits, mean + spread), requests)


def _promises(plan: Plan) -> bool:
    return plan.semantic is not None and plan.semantic.acceptance.max_wrong_hits is not None
