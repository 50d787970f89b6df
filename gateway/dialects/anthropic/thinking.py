"""Make the thinking of a message request acceptable to Anthropic's API. Pure.

A conversation may come from several models. Only Anthropic signs its thinking, and its API refuses what is not signed,
or a tool call without the thinking before it. The same conversation was right for the model that answered before.

Source: https://platform.claude.com/docs/en/build-with-claude/extended-thinking
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.dialects.anthropic.translation.sealed_calls import is_sealed

INTERLEAVED = "interleaved-thinking"  # the beta in which the budget may exceed `max_tokens`
# OpenAI's efforts by their names here
EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max"}
MIN_TOP_P = 0.95
_SEAL = {"thinking": "signature", "redacted_thinking": "data"}  # the field that only the API can write


def fit_thinking(body: Mapping[str, Any], *, interleaved: bool = False) -> Mapping[str, Any]:
    """Return the request as the API accepts it; the same object if nothing has to change.

    - Thinking without a signature is left out, and so is a turn of nothing else.
    - `thinking` is left out if the turn of the model that goes on has called tools without thinking first.
    - `max_tokens` covers the answer in addition to a budget that reaches it. With `interleaved` thinking it stays as
      the client has it.
    """
    messages = _signed(body["messages"])
    fitted = body if messages is body["messages"] else {**body, "messages": messages}
    budget = _budget(fitted)
    if budget is None:
        return fitted
    if calls_without_thinking(messages):
        return {key: value for key, value in fitted.items() if key != "thinking"}
    limit = fitted.get("max_tokens")
    if not interleaved and type(limit) is int and 0 < limit <= budget:
        return {**fitted, "max_tokens": budget + limit}
    return fitted


def fit_settings(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a translated request without the settings that exclude each other: with a forced tool no thinking, with
    thinking no sampling settings."""
    if _budget(request) is None:
        return request
    if (request.get("tool_choice") or {}).get("type") in ("any", "tool"):
        return {key: value for key, value in request.items() if key != "thinking"}
    left_out = {"top_k"}
    if request.get("temperature") != 1:
        left_out.add("temperature")
    if (request.get("top_p") or 0) < MIN_TOP_P:
        left_out.add("top_p")
    return {key: value for key, value in request.items() if key not in left_out}


def _budget(body: Mapping[str, Any]) -> int | None:
    """Return the budget in tokens that switches thinking on, or None if it is off or the model decides."""
    thinking = body.get("thinking")
    if not isinstance(thinking, Mapping) or thinking.get("type") != "enabled":
        return None
    budget = thinking.get("budget_tokens")
    return budget if type(budget) is int else 0


def _signed(messages: Sequence[Any]) -> Sequence[Any]:
    """Return the messages without unsigned thinking; the same object if there is none."""
    if not any(_is_unsigned(block) for message in messages for block in _thinking_of(message)):
        return messages
    signed = []
    for message in messages:
        unsigned = [block for block in _thinking_of(message) if _is_unsigned(block)]
        content = [block for block in message["content"] if block not in unsigned] if unsigned else message["content"]
        if content or not unsigned:
            signed.append({**message, "content": content} if unsigned else message)
    return signed or messages


def _thinking_of(message: Mapping[str, Any]) -> Sequence[Any]:
    content = message["content"]
    if message["role"] != "assistant" or not isinstance(content, list):
        return ()
    return [block for block in content if block.get("type") in _SEAL]


def _is_unsigned(block: Mapping[str, Any]) -> bool:
    seal = block.get(_SEAL[block["type"]])
    return not (isinstance(seal, str) and seal.strip()) or is_sealed(block)


def calls_without_thinking(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the last turn of the model ends with tool calls and does not begin with thinking.

    A turn goes on over the results of its tools: its first message has the thinking, later ones may have none.
    """
    first: Mapping[str, Any] | None = None
    calls = False
    for message in reversed(messages):
        kinds = _kinds(message)
        if message["role"] == "assistant":
            calls = calls or (first is None and "tool_use" in kinds)
            first = message
        elif first is not None and "tool_result" not in kinds:
            break
    return calls and first is not None and _kinds(first)[0] not in _SEAL


def _kinds(message: Mapping[str, Any]) -> list[str]:
    content = message["content"]
    return [block["type"] for block in content] or [""] if isinstance(content, list) else ["text"]


def set_effort(body: dict[str, Any], lower: Callable[[Any], Any]) -> None:
    """Set the effort in a body to what `lower` returns for the client's. The effort `none` switches thinking off."""
    if lower(None) == "none":
        body["thinking"] = {"type": "disabled"}
        return
    thinking = body.get("thinking")
    if isinstance(thinking, dict) and thinking.get("type") == "disabled":
        return  # the client asks for less
    config = body.get("output_config")
    given = config if isinstance(config, dict) else {}
    chosen = lower(given.get("effort"))
    body["output_config"] = {**given, "effort": EFFORTS.get(chosen, chosen)}
