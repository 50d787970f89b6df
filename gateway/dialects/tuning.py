"""Set the parameters of a tier on a call. Pure.

A value of the client stays if it is lower: a tier bounds the effort of a request. If the client says nothing, the
tier's value holds. A protocol without budgets for thinking gets the effort that comes nearest.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from gateway.calls import Call
from gateway.config.policy.parameters import EFFORTS, Parameters
from gateway.dialects.known import endpoint_of

# Efforts with the budgets up to which they stand for them. LiteLLM translates with the same numbers.
BUDGETS = (("none", 0), ("low", 1024), ("medium", 2048))


def tuned_call(call: Call, parameters: Parameters, speaks: str) -> Call:
    """Return the call with the parameters. The backend `speaks` a dialect. Other operations stay as they are.

    The keys of the caches stay those of the client's call.
    """
    tunable, endpoint = call.dialect.tunable(call), endpoint_of(speaks)
    if tunable is None:
        return call
    budgets = None if endpoint is None else endpoint.budgets
    body, max_tokens = dict(call.body), lower(call.max_tokens, parameters.max_tokens)
    if parameters.max_tokens is not None:
        body[tunable.limit_field] = max_tokens
        if budgets is not None:
            budgets.cap(body, parameters.max_tokens)
    if tunable.set_effort is not None:
        effort, budget = parameters.reasoning_effort, parameters.thinking_budget
        if budget is not None and budgets is not None:
            budgets.set(body, budget, max_tokens)
        elif budget is not None:
            effort = _lower_effort(effort, effort_of(budget))
        if effort is not None:
            tunable.set_effort(body, partial(_lower_effort, tier=effort))
    added = frozenset(body.keys() - call.body.keys())
    return replace(call, body=body, max_tokens=max_tokens, body_bytes=None, tuning=str(parameters), added=added)


def lower(client: int | None, tier: int | None) -> int | None:
    """Return the lower of two numbers of tokens, each of which may be None."""
    return min((tokens for tokens in (client, tier) if tokens), default=None)


def effort_of(budget: int) -> str:
    """Return the effort that stands for a budget in tokens."""
    return next((effort for effort, most in BUDGETS if budget <= most), "high")


def _lower_effort(client: Any, tier: str) -> Any:
    """Return the lower effort. A word of the client that is not known stays, and the backend judges it."""
    if client is None:
        return tier
    return client if client not in EFFORTS else min(client, tier, key=EFFORTS.index)
