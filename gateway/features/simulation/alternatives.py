"""The cost and the quality of other models and thresholds on the recorded traffic, as plain values. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.admin.operations import TypedDict
from gateway.config.policy.model import Policy
from gateway.prices import Tariff
from gateway.steps.traffic_log.alternatives import (
    Alternative,
    Alternatives,
    Estimate,
    cheapest_as_good,
    single_as_good,
)
from gateway.steps.traffic_log.reader import TrafficLog


class ShownEstimate(TypedDict):
    value: float | None
    """Null: nothing is known."""
    low: float | None
    """The lower end of its 95 % interval."""
    high: float | None


class AlternativeFigures(TypedDict):
    light: str
    """The backend that answers up to the threshold. The best one of the route answers above it."""
    threshold: float | None
    """A complexity. Null: as the traffic was answered."""
    requests: int
    light_requests: int
    cost: ShownEstimate
    """US dollars of all these requests. A value of null: a model has no price. Ends of null: nothing tells how long the
    answers of a model are."""
    kept: ShownEstimate
    """The share of all requests that got the best model's answer, or one as good."""
    light_kept: ShownEstimate
    """The same of the light model's requests."""
    as_good: int
    """Comparisons that found the light answer as good."""
    worse: int
    undecided: int
    failed: int
    """Requests to which a shadow gave no answer."""
    covered: float
    """The share of the light model's requests of a complexity at which something was compared."""


class RouteAlternatives(TypedDict):
    route: str
    present: AlternativeFigures
    others: list[AlternativeFigures]
    """Each light model at thresholds that give it more and more requests."""
    best: AlternativeFigures | None
    """The cheapest of the others that is known to keep as much as the traffic did. Null: none is."""
    single: AlternativeFigures | None
    """The one model that is known to keep as much as the traffic did, at no higher cost. Null: none is."""
    left_out: int
    """Calls of unknown tokens or complexity, and those to backends that the policy no longer names."""


class RecordedTraffic(TypedDict):
    requests: int
    since: float
    """The time of the first request, in seconds since 1970."""
    until: float
    notes: list[str]
    """The parts that could not be read."""


class AlternativesReport(TypedDict):
    traffic: RecordedTraffic
    routes: list[RouteAlternatives]
    """Routes with several models or a shadow, and with recorded calls."""


def alternatives_report(traffic: TrafficLog, policy: Policy, prices: Mapping[str, Tariff]) -> AlternativesReport:
    """Return the report of all routes of a policy."""
    routes: list[RouteAlternatives] = []
    for route in policy.routes:
        found = Alternatives(route, traffic, prices)
        recorded, lights = found.recorded(), found.lights()
        if not recorded.requests or not lights:
            continue
        others = [each for light in lights for each in found.curve(light)]
        best, single = cheapest_as_good(recorded, others), single_as_good(recorded, found.singles())
        routes.append(
            {
                "route": route.name,
                "present": _figures(recorded),
                "others": [_figures(each) for each in others],
                "best": None if best is None else _figures(best),
                "single": None if single is None else _figures(single),
                "left_out": found.left_out,
            }
        )
    requests = traffic.requests
    return {
        "traffic": {
            "requests": len(requests),
            "since": requests[0].at,
            "until": requests[-1].at,
            "notes": [*traffic.notes],
        },
        "routes": routes,
    }


def _figures(each: Alternative) -> AlternativeFigures:
    return {
        "light": each.light,
        "threshold": each.threshold,
        "requests": each.requests,
        "light_requests": each.light_requests,
        "cost": _shown(each.cost),
        "kept": _shown(each.kept),
        "light_kept": _shown(each.light_kept),
        "as_good": each.evidence.as_good,
        "worse": each.evidence.worse,
        "undecided": each.evidence.undecided,
        "failed": each.evidence.failed,
        "covered": each.covered,
    }


def _shown(estimate: Estimate) -> ShownEstimate:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}
