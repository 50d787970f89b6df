"""Compute the latency budgets of a request from its headers and its route's policy. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.context import RequestContext
from gateway.errors import BadRequest
from gateway.priority import Priority
from gateway.request_fields import Deadlines

HEADERS = TOTAL, TTFT, TPOT = "x-latency-budget-ms", "x-slo-ttft-ms", "x-slo-tpot-ms"
PRIORITY = "x-priority"
BOUNDS = (*HEADERS, PRIORITY)  # the headers that tell how urgent a request is
NONE_GIVEN = None, None, None
MAX_MS = 3_600_000.0
# Seconds. A client without a budget waits at most this long for another client's call.
MAX_WAIT_S = 60.0
# Share of the remaining time that a request waits. The rest is for its own call.
SHARE_OF_BUDGET = 0.5


@dataclass(frozen=True, slots=True)
class Budget:
    """Durations from the request's arrival, in seconds, or None for no limit."""

    total_s: float | None
    ttft_s: float | None
    tpot_s: float | None

    def deadlines(self, received: float) -> Deadlines:
        """Return the deadlines of a request that is received at `received`."""
        return Deadlines(
            None if self.total_s is None else received + self.total_s,
            None if self.ttft_s is None else received + self.ttft_s,
            self.tpot_s,
        )


UNBOUNDED = Budget(None, None, None)


def budget_of(headers: Mapping[str, str], policy_s: float | None) -> Budget:
    """Read the budget from `x-latency-budget-ms`, `x-slo-ttft-ms` and `x-slo-tpot-ms`.

    The policy's `latency_budget` is the default and the upper bound of the first one. Raise `BadRequest` on an invalid
    duration.
    """
    values = headers.get(TOTAL), headers.get(TTFT), headers.get(TPOT)
    if values == NONE_GIVEN:  # the usual case
        return UNBOUNDED if policy_s is None else Budget(policy_s, None, None)
    total, ttft, tpot = (_seconds(name, value) for name, value in zip(HEADERS, values, strict=True))
    if policy_s is not None:
        total = policy_s if total is None else min(total, policy_s)
    return Budget(total, ttft, tpot)


def priority_of(headers: Mapping[str, str], policy: Priority, *, raised: bool) -> Priority:
    """Return the priority of `x-priority`, or the policy's without that header.

    A client may always lower its priority. It may raise it above the policy's only if the policy allows that
    (`raised`). Raise `BadRequest` on an invalid value.
    """
    value = headers.get(PRIORITY)
    if value is None:
        return policy
    try:
        requested = Priority[value.strip().upper()]
    except KeyError:
        raise BadRequest("the header x-priority is not a priority: expected high, normal or low") from None
    return requested if raised else max(requested, policy)


def _seconds(name: str, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        milliseconds = float(value)
    except ValueError:
        milliseconds = -1.0
    if not 0 < milliseconds <= MAX_MS:  # NaN fails this too
        raise BadRequest(f"the header {name} is not a duration: expected milliseconds from 1 to {MAX_MS:.0f}")
    return milliseconds / 1e3


def max_wait_s(request: RequestContext, now: float) -> float:
    """Return how many seconds a request may wait for another client's call. `now` is by the monotonic clock."""
    return max(0.0, min(MAX_WAIT_S, SHARE_OF_BUDGET * (request.due - now)))
