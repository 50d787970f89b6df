"""Set the parameters of a tier on a call. Pure.

A value of the client stays if it is lower: a tier bounds the effort of a request. If the client says nothing, the
tier's value holds. A protocol without budgets for thinking gets the effort that comes nearest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from gateway.config.policy.parameters import EFFORTS, MIN_BUDGET, Parameters
from gateway.dialects.anthropic.translation.chat_to_messages import DEFAULT_MAX_TOKENS
from gateway.dialects.known import endpoint_of
from gateway.messages import Call

# Efforts with the budgets up to which they stand for them. LiteLLM translates with the same numbers.
BUDGETS = (("none", 0), ("low", 1024), ("medium", 2048))


def tuned_call(call: Call, parameters: Parameters, speaks: str) -> Call:
    """Return the call with the parameters. `speaks`: the dialect of the backend. Other operations stay as they are.

    The keys of the caches stay those of the client's call.
    """
    tunable, endpoint = call.dialect.tunable(call), endpoint_of(speaks)
    if tunable is None:
        return call
    has_budgets = endpoint is not None and endpoint.has_budgets
    body, max_tokens = dict(call.body), lower(call.max_tokens, parameters.max_tokens)
    if parameters.max_tokens is not None:
        body[tunable.limit_field] = max_tokens
        if has_budgets:
            _cap_budget(body, parameters.max_tokens)
    if tunable.set_effort is not None:
        effort, budget = parameters.reasoning_effort, parameters.thinking_budget
        if budget is not None and has_budgets:
            _set_budget(body, budget, max_tokens or DEFAULT_MAX_TOKENS)
        elif budget is not None:
            effort = _lower_effort(effort, effort_of(budget))
        if effort is not None:
            tunable.set_effort(body, partial(_lower_effort, tier=effort))
    added = frozenset(body.keys() - call.body.keys())
    return replace(call, body=body, max_tokens=max_tokens, body_bytes=None, tuning=str(parameters), added=added)


def lower(client: int | None, tier: int | None) -> int | None:
    """Return the lower of two numbers of tokens. None: no number."""
    return min((tokens for tokens in (client, tier) if tokens), default=None)


def effort_of(budget: int) -> str:
    """Return the effort that stands for a budget in tokens."""
    return next((effort for effort, most in BUDGETS if budget <= most), "high")


def _lower_effort(client: Any, tier: str) -> Any:
    """Return the lower effort. A word of the client that is not known stays, and the backend judges it."""
    if client is None:
        return tier
    return client if client not in EFFORTS else min(client, tier, key=EFFORTS.index)


def _set_budget(body: dict[str, Any], budget: int, max_tokens: int) -> None:
    """Set Anthropic's budget for thinking. It must be lower than the answer's limit.

    Thinking is not switched on where the API refuses it, and a client that has switched it off keeps it off.
    """
    thinking = body.get("thinking")
    given = thinking if isinstance(thinking, dict) else {}
    if budget == 0 or given.get("type") == "disabled":
        body["thinking"] = {"type": "disabled"}
        return
    tokens = given.get("budget_tokens")
    budget = min(budget, max_tokens - 1, tokens if isinstance(tokens, int) else budget)
    if budget >= MIN_BUDGET and (given or _may_think(body)):
        body["thinking"] = {"type": "enabled", "budget_tokens": budget}


def _cap_budget(body: dict[str, Any], max_tokens: int) -> None:
    """Lower the client's budget below the tier's limit on the answer; too small a budget switches thinking off."""
    thinking = body.get("thinking")
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    if not isinstance(budget, int) or budget < max_tokens:
        return
    if max_tokens <= MIN_BUDGET:
        body["thinking"] = {"type": "disabled"}
    else:
        body["thinking"] = {**body["thinking"], "budget_tokens": max_tokens - 1}


def _may_think(body: Mapping[str, Any]) -> bool:
    """Return whether Anthropic's API lets this request think.

    It refuses sampling settings, a forced tool, a prefilled answer, and a result of a tool that was called without
    thinking.

    Source: https://platform.claude.com/docs/en/build-with-claude/extended-thinking
    """
    choice = body.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if body.get("temperature") not in (None, 1) or body.get("top_k") is not None or kind not in (None, "auto", "none"):
        return False
    last = body["messages"][-1]
    content = last.get("content")
    parts = content if isinstance(content, list) else []
    return last.get("role") == "user" and not any(part.get("type") == "tool_result" for part in parts)
