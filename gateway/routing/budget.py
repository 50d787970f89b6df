"""Latency budgets of a request, from its headers and its route's policy. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.errors import BadRequest

MAX_MS = 3_600_000.0


@dataclass(frozen=True, slots=True)
class Budget:
    """Durations from the request's arrival, in seconds; None: none."""

    total_s: float | None
    ttft_s: float | None
    tpot_s: float | None


def budget_of(headers: Mapping[str, str], policy_s: float | None) -> Budget:
    """The client's `x-latency-budget-ms`, `x-slo-ttft-ms`, `x-slo-tpot-ms`; the policy's `latency_budget` where the
    client says nothing, and as an upper bound where it does. Raises `BadRequest` on a value that is no duration."""
    total = _seconds(headers, "x-latency-budget-ms")
    if policy_s is not None:
        total = policy_s if total is None else min(total, policy_s)
    return Budget(total, _seconds(headers, "x-slo-ttft-ms"), _seconds(headers, "x-slo-tpot-ms"))


def _seconds(headers: Mapping[str, str], name: str) -> float | None:
    value = headers.get(name)
    if value is None:
        return None
    try:
        milliseconds = float(value)
    except ValueError:
        milliseconds = -1.0
    if not 0 < milliseconds <= MAX_MS:  # NaN fails this too
        raise BadRequest(f"the header {name} is no duration: expected milliseconds from 1 to {MAX_MS:.0f}")
    return milliseconds / 1e3
