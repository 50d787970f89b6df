"""Compares two policies on the same recorded traffic."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.cache.stored_parts import StoredCommand, not_reached
from gateway.cache.threshold.ledger import BANDS, band_of
from gateway.config.policy.model import Policy, Route
from gateway.feature import features_of
from gateway.features.simulation.dataset import TrafficDay, build_day
from gateway.features.simulation.latency_model import LatencyModel
from gateway.features.simulation.plans import RoutePlan, semantic_floor
from gateway.features.simulation.replay import ReplayOutcome, ReplaySetting, TrafficReplay
from gateway.outcomes import Verdict
from gateway.steps.traffic_log.format import RecordedRequest
from gateway.steps.traffic_log.reader import TrafficLog

HITS = frozenset({Verdict.EXACT, Verdict.SEMANTIC, Verdict.STALE, Verdict.COALESCED})

QUANTILES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}

Z = 1.96  # 95 %


@dataclass(frozen=True, slots=True)
class WrongHitForecast:
    """The expected number of wrong semantic hits, with its 95 % interval."""

    expected: float
    low: float
    high: float
    requests: int  # requests on routes with a promise

    def as_json(self) -> dict[str, Any]:
        return {
            "expected": self.expected,
            "low": self.low,
            "high": self.high,
            "of_requests": self.expected / self.requests if self.requests else None,
        }


@dataclass(frozen=True, slots=True)
class Side:
    """The figures of one policy. None means unknown."""

    requests: int
    verdicts: Mapping[str, int]
    unjudged: int  # misses with a neighbour that was never verified
    wrong: WrongHitForecast | None
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
        """The share of large models among the calls that had a choice. Every tier except `light` counts as large."""
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


def summarise(outcomes: Sequence[ReplayOutcome], plans: Iterable[RoutePlan]) -> Side:
    """Return the figures of `outcomes`. `plans` are those of their routes."""
    seconds = [each.seconds for each in outcomes if each.seconds is not None]
    return Side(
        len(outcomes),
        Counter(each.verdict for each in outcomes),
        sum(each.unjudged for each in outcomes),
        _wrong_hits(outcomes, plans),
        sum(each.dollars for each in outcomes if each.dollars is not None),
        sum(each.saved for each in outcomes),
        quantiles(seconds),
        Counter(each.tier for each in outcomes if each.tier is not None),
        len(outcomes) - len(seconds),
        sum(each.dollars is None for each in outcomes),
    )


def summarise_routes(outcomes: Sequence[ReplayOutcome], plans: Mapping[str, RoutePlan]) -> dict[str, Side]:
    """Return the figures of each route with at least one request."""
    apart: dict[str, list[ReplayOutcome]] = {}
    for each in outcomes:
        apart.setdefault(each.route, []).append(each)
    return {route: summarise(its, [plans[route]]) for route, its in sorted(apart.items())}


def quantiles(seconds: Sequence[float]) -> dict[str, float | None]:
    if not seconds:
        return dict.fromkeys(QUANTILES)
    values = np.quantile(np.array(seconds), list(QUANTILES.values()))
    return {name: float(value) for name, value in zip(QUANTILES, values, strict=True)}


def recorded_side(requests: Sequence[RecordedRequest]) -> dict[str, float | None]:
    """Return the recorded figures. They show how well the replay under the present policy matches reality."""
    hits = sum(row.verdict in HITS for row in requests)
    p95 = quantiles([row.seconds for row in requests])["p95_ms"]
    return {"hit_rate": hits / len(requests), "p95_ms": None if p95 is None else 1e3 * p95}


def _wrong_hits(outcomes: Sequence[ReplayOutcome], plans: Iterable[RoutePlan]) -> WrongHitForecast | None:
    """Return the forecast from the learnt state of each route at the end. None means that no route has a promise."""
    promising = {plan.route.name: plan for plan in plans if _has_error_target(plan)}
    if not promising:
        return None
    served = {name: [0.0] * BANDS for name in promising}
    requests = 0
    for each in outcomes:
        if each.route in promising:
            requests += 1
            if each.verdict == Verdict.SEMANTIC and each.score is not None:
                served[each.route][band_of(each.score)] += 1
    wrong = [promising[name].control.wrong_among(bands) for name, bands in served.items()]
    mean, variance = sum(m for m, _ in wrong), sum(v for _, v in wrong)
    spread, hits = Z * math.sqrt(variance), sum(map(sum, served.values()))
    return WrongHitForecast(mean, max(0.0, mean - spread), min(hits, mean + spread), requests)


def _has_error_target(plan: RoutePlan) -> bool:
    return plan.semantic is not None and plan.semantic.acceptance.max_wrong_hits is not None


# One sentence for each part that a replay does not cover.
NOT_REPLAYED: tuple[tuple[str, Callable[[Route], bool]], ...] = (
    (
        "the split of a tier is drawn by question here, and by conversation in the gateway",
        lambda r: any(tier.parts for tier in r.target.tiers),
    ),
    (
        "questions that would share a similar call in flight (coalesce: on) count as misses",
        lambda r: r.semantic is not None and r.semantic.coalesce,
    ),
    (
        "questions are looked up after their own history here, and in the gateway also in the conversation of the "
        "entry that was served (conversations: on)",
        lambda r: r.semantic is not None and r.semantic.conversations,
    ),
)

ALWAYS = (
    "load at backends, retries, hedges, removals and evictions are not replayed; entries from before the traffic are "
    "known only if a request met them"
)


def build_notes(
    day: TrafficDay, present: Policy, new: Policy, replays: Sequence[TrafficReplay], setting: ReplaySetting
) -> Iterator[str]:
    """Yield the notes of a simulation. `replays` are the two finished replays."""
    routes = [*present.routes, *new.routes]
    yield from (note for note, applies in NOT_REPLAYED if any(map(applies, routes)))
    used = dict.fromkeys(feature for route in routes for feature in features_of(route))
    yield from (answer.reason for feature in used if (answer := feature.simulate()) is not None)
    yield from _policy_notes(day, present)
    yield from _name_notes(day, routes, setting)
    yield from _unknown_notes(replays)
    parts = sum(row.request.inputs for row in day.requests)
    if parts:
        yield f"{parts} calls of several inputs keep their recorded outcome"
    yield ALWAYS


def _policy_notes(day: TrafficDay, present: Policy) -> Iterator[str]:
    others = Counter(row.policy for row in day.requests if row.policy != present.hash)
    if others:
        names = ", ".join(sorted(others))
        yield f"{others.total()} requests came under other policies ({names}): the recorded figures mix them"


def _name_notes(day: TrafficDay, routes: Sequence[Route], setting: ReplaySetting) -> Iterator[str]:
    if any(route.match.tenant is not None for route in routes):
        unknown = sum(row.request.tenant not in setting.tenants for row in day.requests)
        if unknown:
            yield (
                f"{unknown} requests come from tenants without a known name in auth.keys: "
                "no rule for a tenant matches them"
            )
    missing = {name for route in routes for name, _ in route.match.headers} - set(day.heading.headers)
    if missing:
        yield f"the headers {', '.join(sorted(missing))} were not recorded: rules for them match nothing"


def _unknown_notes(replays: Sequence[TrafficReplay]) -> Iterator[str]:
    unknown: dict[str, int] = {}
    for replay in replays:
        for what, count in replay.calls.unknown.items():
            unknown[what] = max(count, unknown.get(what, 0))
    for what, count in sorted(unknown.items()):
        kind, _, of = what.partition(" ")
        if kind == "latency":
            yield f"no answer of {of} was recorded: {count} calls to it are left out of the latencies"
        elif kind == "tokens":
            yield f"the tokens of {count} answers of {of} are not known: their cost is not counted"
        elif kind == "complexity":
            yield f"the complexity of {count} requests is not known: they keep their recorded backend"
        else:
            yield f"{count} answers were not inspected for the cache: they count as not stored"


EXAMPLES = 10

ID_BYTES = 8  # bytes of a digest that identifies a question


@dataclass(frozen=True, slots=True)
class HalfForecast:
    """The outcomes of the traffic under one policy."""

    policy: str  # hash
    side: Side
    routes: dict[str, Side]
    outcomes: Sequence[ReplayOutcome]

    def as_json(self) -> dict[str, Any]:
        routes = {name: side.as_json() for name, side in self.routes.items()}
        return {"policy": self.policy, **self.side.as_json(), "routes": routes}


@dataclass(frozen=True, slots=True)
class Simulation:
    """The result of a simulation. `seconds` is the duration of the replays, without reading the traffic."""

    requests: Sequence[RecordedRequest]
    present: HalfForecast
    new: HalfForecast
    notes: tuple[str, ...]
    seconds: float

    def changed(self) -> Iterator[int]:
        """Yield the numbers of the requests whose verdict or backend differs."""
        for at, (old, new) in enumerate(zip(self.present.outcomes, self.new.outcomes, strict=True)):
            if (old.verdict, old.backend) != (new.verdict, new.backend):
                yield at

    def as_json(self) -> dict[str, Any]:
        changed = list(self.changed())
        return {
            "ok": True,
            "traffic": {
                "requests": len(self.requests),
                "from": self.requests[0].at,
                "to": self.requests[-1].at,
                "seconds": self.seconds,
                "notes": list(self.notes),
                "not_reached": not_reached(StoredCommand.SIMULATE),
            },
            "present": self.present.as_json(),
            "new": self.new.as_json(),
            "recorded": recorded_side(self.requests),
            "changed": {"requests": len(changed), "examples": [self._example(at) for at in _sample_evenly(changed)]},
        }

    def _example(self, at: int) -> dict[str, Any]:
        row = self.requests[at]
        return {
            "id": row.id,
            "at": row.at,
            "route": self.new.outcomes[at].route,
            "present": _outcome_json(self.present.outcomes[at]),
            "new": _outcome_json(self.new.outcomes[at]),
            "question": (row.request.question or row.request.canonical)[:ID_BYTES].hex(),
            "prompt": row.prompt,
        }


def simulate(traffic: TrafficLog, present: Policy, new: Policy, setting: ReplaySetting) -> Simulation:
    """Replay the traffic under both policies and return the comparison."""
    started = time.perf_counter()
    day = build_day(traffic, semantic_floor([present, new], traffic.heading.floor))
    latencies = LatencyModel(day.requests)
    replays = [(policy, TrafficReplay(policy, day, latencies, setting)) for policy in (present, new)]
    halves = [_forecast(policy, replay, replay.run()) for policy, replay in replays]
    notes = (*traffic.notes, *build_notes(day, present, new, [each for _, each in replays], setting))
    return Simulation(day.requests, halves[0], halves[1], notes, time.perf_counter() - started)


def _forecast(policy: Policy, replay: TrafficReplay, outcomes: Sequence[ReplayOutcome]) -> HalfForecast:
    return HalfForecast(
        policy.hash, summarise(outcomes, replay.plans.values()), summarise_routes(outcomes, replay.plans), outcomes
    )


def _outcome_json(outcome: ReplayOutcome) -> dict[str, Any]:
    return {
        "verdict": outcome.verdict,
        "reason": outcome.reason,
        "backend": outcome.backend,
        "similarity": outcome.similarity,
    }


def _sample_evenly(changed: Sequence[int]) -> Sequence[int]:
    """Return at most `EXAMPLES` numbers, spread evenly from beginning to end."""
    step = max(1, len(changed) // EXAMPLES)
    return changed[::step][:EXAMPLES]
