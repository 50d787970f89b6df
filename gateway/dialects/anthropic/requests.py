"""Requests of Anthropic's protocol: their path, and the marks for the prompt cache in them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.dialects.translation.limits import Limits

DEFAULT_MAX_TOKENS = 4096  # Anthropic requires a limit, and all its models accept this one
LIMITS = Limits(tool_name=128, call_id=128, user=256, plain_ids=True, opaque_user=True)


def without_cache_marks(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body without the marks for Anthropic's prompt cache, which affect the price and not the response.

    They are removed only where the protocol defines them: in a tool's input or a schema the key may mean anything.
    """
    bare = dict(body)
    for key in ("system", "tools"):
        if isinstance(bare.get(key), list):
            bare[key] = [_strip_cache_control(each) for each in bare[key]]
    bare["messages"] = [
        {**message, "content": [_strip_cache_control(block) for block in message["content"]]}
        if isinstance(message["content"], list)
        else message
        for message in bare["messages"]
    ]
    return bare


def _strip_cache_control(block: Any) -> Any:
    if not isinstance(block, dict):
        return block
    bare = {key: value for key, value in block.items() if key != "cache_control"}
    if bare.get("type") == "tool_result" and isinstance(bare.get("content"), list):
        bare["content"] = [_strip_cache_control(each) for each in bare["content"]]
    return bare
