"""Tells what other light models and thresholds would have kept and cost, by recorded audits and shadows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gateway.config.policy.model import Policy
from gateway.features.evaluation.choices import table
from gateway.prices import Tariff
from gateway.steps.traffic_log.alternatives import (
    Alternative,
    Alternatives,
    Estimate,
    cheapest_as_good,
    single_as_good,
)
from gateway.steps.traffic_log.reader import TrafficLog

HEADS = ["light model", "up to", "its requests", "cost", "95 %", "kept", "95 %", "compared"]


@dataclass(frozen=True, slots=True)
class RouteFigures:
    """The traffic of a route as it was, the curves of its light models, and what would have been better."""

    route: str
    present: Alternative
    curve: tuple[Alternative, ...]
    best: Alternative | None  # the cheapest that is known to keep as much
    single: Alternative | None  # one model that is known to keep as much, at no higher cost


def read_routes(policy: Policy, traffic: TrafficLog, prices: Mapping[str, Tariff]) -> list[RouteFigures]:
    """Return the figures of each route with several models or a shadow, and with recorded calls."""
    found = []
    for route in policy.routes:
        alternatives = Alternatives(route, traffic, prices)
        present, lights = alternatives.recorded(), alternatives.lights()
        if present.requests and lights:
            curve = tuple(each for light in lights for each in alternatives.curve(light))
            best, single = cheapest_as_good(present, curve), single_as_good(present, alternatives.singles())
            found.append(RouteFigures(route.name, present, curve, best, single))
    return found


def as_json(routes: Sequence[RouteFigures], notes: Sequence[str]) -> dict[str, Any]:
    shown = [asdict(each) for each in routes]
    for route in shown:
        for each in [route["present"], *route["curve"], route["best"], route["single"]]:
            if each is not None:
                each |= {name: each[name]._asdict() for name in ("cost", "kept", "light_kept")}
    return {"ok": True, "routes": shown, "notes": [*notes]}


def as_text(routes: Sequence[RouteFigures], notes: Sequence[str]) -> str:
    parts = [part for route in routes for part in _route_text(route)]
    return "\n\n".join([*(parts or ["no route with recorded calls has a light model or a shadow"]), *notes])


def _route_text(route: RouteFigures) -> list[str]:
    rows = [_row(each) for each in (route.present, *route.curve)]
    lines = [f"route {route.route}", table([HEADS, *rows])]
    if route.best is None:
        lines.append("no other choice is known to cost less and keep as much")
    else:
        reach = f"up to a complexity of {max(0.0, route.best.threshold or 0.0):.2f}"
        lines.append(f"{route.best.light} {reach} would cost {_dollars(route.best.cost.value)} and keep as much")
    if route.single is not None:
        name = route.single.light if route.single.light_requests else "the best model"
        cost = _dollars(route.single.cost.value)
        lines.append(f"one model at the same cost would do as well or better: {name} alone, for {cost}")
    return lines


def _row(each: Alternative) -> list[str]:
    evidence = each.evidence
    return [
        each.light if each.threshold is not None else f"{each.light}, as it was",
        "" if each.threshold is None else f"{max(0.0, each.threshold):.2f}",
        f"{each.light_requests:,} of {each.requests:,}",
        _dollars(each.cost.value),
        _ends(each.cost, _dollars),
        _share(each.kept.value),
        _ends(each.kept, _share),
        f"{evidence.compared:,}",
    ]


def _ends(estimate: Estimate, shown: Callable[[float | None], str]) -> str:
    if estimate.low is None or estimate.low == estimate.high:
        return ""
    return f"{shown(estimate.low)} to {shown(estimate.high)}"


def _dollars(value: float | None) -> str:
    return "not priced" if value is None else f"${value:.4f}" if value < 1 else f"${value:,.2f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
