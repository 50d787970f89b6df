"""Formats a fleet and its cost as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from textwrap import wrap
from typing import Any

from gateway.features.capacity.costs import Costs, Prices
from gateway.features.capacity.plan import FleetPlan

WIDTH = 110


def as_json(fleet: FleetPlan, costs: Costs, prices: Prices, currency: str) -> dict[str, Any]:
    """Return the counts, the formulas and the assumed values. Waits are in milliseconds, rates per second."""
    return {
        "demand": {**asdict(fleet.demand), "peak_rps": fleet.demand.peak},
        "index": {"adapter": fleet.index, "because": fleet.index_reason},
        "parts": [
            {
                "name": part.name,
                "count": part.count,
                "cores": round(part.cores, 2),
                "memory_gb": round(part.memory_gb, 2),
                "gpus": part.gpus,
                "formula": part.formula,
                "assumed": [name for name in part.used if name in costs.assumed],
            }
            for part in fleet.parts
        ],
        "cores": round(fleet.cores, 2),
        "memory_gb": round(fleet.memory_gb, 2),
        "gpus": fleet.gpus,
        "changes_per_second": round(fleet.changes, 1),
        "queue_p95_ms": {
            "event_loop": round(1e3 * fleet.loop_wait_p95_s, 3),
            "threads": round(1e3 * fleet.threads_wait_p95_s, 3),
        },
        "network": {
            "clients_bits_per_second": round(fleet.client_bits),
            "upstream_bits_per_second": round(fleet.upstream_bits),
            "store_bits_per_second": round(fleet.store_bits),
            "out_gb_per_month": round(fleet.out_gb_month, 1),
        },
        "cost_per_month": {
            "currency": currency,
            **{name: round(cost, 2) for name, _, cost in cost_lines(fleet, prices)},
            "total": round(total(fleet, prices), 2),
            "assumed_prices": sorted(prices.assumed),
        },
        "notes": list(fleet.notes),
    }


def cost_lines(fleet: FleetPlan, prices: Prices) -> Iterator[tuple[str, str, float]]:
    """Yield (name of the price, formula, cost per month)."""
    for name, count, price in (
        ("core", fleet.cores, prices.core),
        ("memory_gb", fleet.memory_gb, prices.memory_gb),
        ("gpu", float(fleet.gpus), prices.gpu),
        ("traffic_gb", fleet.out_gb_month, prices.traffic_gb),
    ):
        yield name, f"{count:,.1f} x {price:g}", count * price


def total(fleet: FleetPlan, prices: Prices) -> float:
    return sum(cost for _, _, cost in cost_lines(fleet, prices))


def as_text(fleet: FleetPlan, costs: Costs, prices: Prices, currency: str) -> str:
    return "\n".join(_format_lines(fleet, costs, prices, currency))


def _format_lines(fleet: FleetPlan, costs: Costs, prices: Prices, currency: str) -> Iterator[str]:
    d = fleet.demand
    yield (
        f"{d.rps:,.0f} requests a second on average, {d.peak:,.0f} at the peak: {d.exact:.0%} exact hits, "
        f"{d.semantic:.0%} semantic hits, {d.miss:.0%} misses; {d.entries:g} entries"
    )
    yield f"index: {fleet.index} ({fleet.index_reason})"
    yield ""
    yield f"{'':<18}{'count':>9}{'cores':>10}{'memory GB':>12}"
    for part in fleet.parts:
        star = " *" if any(name in costs.assumed for name in part.used) else ""
        cores = f"{part.cores:,.1f}" if part.cores else ""
        memory = f"{part.memory_gb:,.1f}" if part.memory_gb else ""
        yield f"{part.name:<18}{part.count:>9,}{cores:>10}{memory:>12}{star}"
    yield f"{'total':<18}{'':>9}{fleet.cores:>10,.1f}{fleet.memory_gb:>12,.1f}"
    yield ""
    yield "formulas"
    for part in fleet.parts:
        yield from wrap(part.formula, WIDTH, initial_indent=f"  {part.name}: ", subsequent_indent="    ")
    yield ""
    yield (
        f"95 % of the requests wait at most {1e3 * fleet.loop_wait_p95_s:.1f} ms for an event loop and "
        f"{1e3 * fleet.threads_wait_p95_s:.1f} ms for its threads, at the peak, with {d.spare} gateway(s) down"
    )
    yield (
        f"network at the peak: clients {_bits(fleet.client_bits)}, upstream {_bits(fleet.upstream_bits)}, "
        f"store {_bits(fleet.store_bits)}"
    )
    for note in fleet.notes:
        yield from wrap(note, WIDTH)
    yield ""
    for name, formula, cost in cost_lines(fleet, prices):
        own = "" if name not in prices.assumed else " (assumed price)"
        if cost == 0:
            continue
        yield f"{name:<18}{formula:>28}{cost:>16,.0f}{own}"
    yield f"{currency + ' a month':<18}{'':>28}{total(fleet, prices):>16,.0f}"
    yield from _assumptions(fleet, costs, prices)


def _assumptions(fleet: FleetPlan, costs: Costs, prices: Prices) -> Iterator[str]:
    used = dict.fromkeys(name for part in fleet.parts for name in part.used if name in costs.assumed)
    if used:
        values = ", ".join(f"{name} {getattr(costs, name):g}" for name in used)
        yield ""
        yield from wrap(f"* uses assumed costs: {values}. --costs FILE replaces them.", WIDTH)
    if prices.assumed:
        yield "Prices are assumptions, not offers. --prices FILE replaces them."


def _bits(rate: float) -> str:
    for unit, name in ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s")):
        if rate >= unit:
            return f"{rate / unit:,.1f} {name}"
    return f"{rate / 1e3:,.1f} kbit/s"
