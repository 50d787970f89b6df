"""Budgets for thinking, in tokens, in requests for Anthropic's models. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.config.policy.parameters import MIN_BUDGET
from gateway.dialects.anthropic.requests import DEFAULT_MAX_TOKENS


def set_budget(body: dict[str, Any], budget: int, max_tokens: int | None) -> None:
    """Set the budget for thinking in a body. It must be lower than the answer's limit.

    Thinking is not switched on where the API refuses it, and a client that has switched it off keeps it off.
    """
    thinking = body.get("thinking")
    given = thinking if isinstance(thinking, dict) else {}
    if budget == 0 or given.get("type") == "disabled":
        body["thinking"] = {"type": "disabled"}
        return
    tokens = given.get("budget_tokens")
    budget = min(budget, (max_tokens or DEFAULT_MAX_TOKENS) - 1, tokens if isinstance(tokens, int) else budget)
    if budget >= MIN_BUDGET and (given or _may_think(body)):
        body["thinking"] = {"type": "enabled", "budget_tokens": budget}


def cap_budget(body: dict[str, Any], max_tokens: int) -> None:
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
