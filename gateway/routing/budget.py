"""Latency budgets of a request, from its headers and its route's policy. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.context import RequestContext
from gateway.errors import BadRequest
from gateway.priority import Priority

HEADERS = TOTAL, TTFT, TPOT = "x-latency-budget-ms", "x-slo-ttft-ms", "x-slo-tpot-ms"
PRIORITY = "x-priority"
BOUNDS = (*HEADERS, PRIORITY)  # by which a client says how urgent a request is
NONE_GIVEN = None, None, None
MAX_MS = 3_600_000.0
# What a client that does not say how long it can wait is kept waiting for a call of somebody else.
MAX_WAIT_S = 60.0
# Of the time that is left to a request it waits so much: the rest is for a call of its own.
SHARE_OF_BUDGET = 0.5


@dataclass(frozen=True, slots=True)
class Budget:
    """Durations from the request's arrival, in seconds; None: none."""

    total_s: float | None
    ttft_s: float | None
    tpot_s: float | None

    def due(self, received: float) -> tuple[float | None, float | None]:
        """When the whole answer and its first token are due, of a request that came at `received`."""
        return (
            None if self.total_s is None else received + self.total_s,
            None if self.ttft_s is None else received + self.ttft_s,
        )


UNBOUNDED = Budget(None, None, None)


def budget_of(headers: Mapping[str, str], policy_s: float | None) -> Budget:
    """The client's `x-latency-budget-ms`, `x-slo-ttft-ms`, `x-slo-tpot-ms`; the policy's `latency_budget` where the
    client says nothing, and as an upper bound where it does. Raises `BadRequest` on a value that is no duration."""
    values = headers.get(TOTAL), headers.get(TTFT), headers.get(TPOT)
    if values == NONE_GIVEN:  # as a rule
        return UNBOUNDED if policy_s is None else Budget(policy_s, None, None)
    total, ttft, tpot = (_seconds(name, value) for name, value in zip(HEADERS, values, strict=True))
    if policy_s is not None:
        total = policy_s if total is None else min(total, policy_s)
    return Budget(total, ttft, tpot)


def priority_of(headers: Mapping[str, str], policy: Priority, *, raised: bool) -> Priority:
    """The client's `x-priority`, the policy's where it says nothing. A client may always step back; that it may go
    before what the policy says (`raised`) is for the policy to say. Raises `BadRequest` on a value that is none."""
    value = headers.get(PRIORITY)
    if value is None:
        return policy
    try:
        requested = Priority[value.strip().upper()]
    except KeyError:
        raise BadRequest("the header x-priority is no priority: expected high, normal or low") from None
    return requested if raised else max(requested, policy)


def _seconds(name: str, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        milliseconds = float(value)
    except ValueError:
        milliseconds = -1.0
    if not 0 < milliseconds <= MAX_MS:  # NaN fails this too
        raise BadRequest(f"the header {name} is no duration: expected milliseconds from 1 to {MAX_MS:.0f}")
    return milliseconds / 1e3


def max_wait_s(request: RequestContext, now: float) -> float:
    """How long a request may wait for somebody else's call. `now`: monotonic clock."""
    return max(0.0, min(MAX_WAIT_S, SHARE_OF_BUDGET * (request.due - now)))
