"""Latency budgets that no backend has kept since the gateway started: only one that runs can know."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from gateway.config.errors import Fault
from gateway.config.policy.model import Policy
from gateway.observability.metrics import LATENCY_BUCKETS
from gateway.observability.telemetry import Telemetry

MIN_ANSWERS = 20  # of each backend: fewer may all have been slow by chance


def unmet_budgets(policy: Policy, telemetry: Telemetry) -> Iterator[Fault]:
    """Routes whose `latency_budget` every answer of each of their backends has exceeded."""
    for route in policy.routes:
        budget_s = route.latency_budget_s
        if budget_s is None:
            continue
        members = dict.fromkeys(name for tier in route.target.tiers for name in tier.members)
        if all(_never_kept(telemetry, name, budget_s) for name in members):
            message = (
                f"route {route.name!r}: no answer of {', '.join(members)} has come within {budget_s:g} s since the "
                "gateway started, expected a longer latency_budget or a faster backend"
            )
            yield Fault(route.file, route.line, (), message)


def _never_kept(telemetry: Telemetry, backend: str, budget_s: float) -> bool:
    counts: Sequence[int] = telemetry.backend_seconds.counts.get((backend,), [])
    # The bucket in which the budget lies holds answers on both sides of it: only an empty one says anything.
    return sum(counts) >= MIN_ANSWERS and not any(counts[: bisect_left(LATENCY_BUCKETS, budget_s) + 1])
