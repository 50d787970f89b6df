"""What says that two calls belong together, so that the second finds the first one's KV cache. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Literal

import orjson

from gateway.messages import Call

Sticky = Literal["off", "conversation", "user"]
OPENING_CHARACTERS = 1024  # of a prompt that is no conversation: what comes later varies
SYSTEM_KEYS = ("system", "instructions")  # where dialects have the system prompt beside the messages
TURN_KEYS = ("messages", "input")


def sticky_key(call: Call, tenant: str, sticky: Sticky) -> bytes | None:
    """None: any upstream will do.

    `user`: who asks: the tenant and the end user that the body names. `conversation`: beside them the model, the system
    prompt and all up to the first turn of the user, which every later turn repeats."""
    if sticky == "off" or call.operation == "embeddings":
        return None
    parts: list[Any] = [tenant, call.user]
    if sticky == "conversation":
        parts += [call.model, _opening(call)]
    return blake2b(orjson.dumps(parts, default=str), digest_size=32).digest()


def _opening(call: Call) -> Any:
    turns = next((turns for key in TURN_KEYS if isinstance(turns := call.body.get(key), list) and turns), None)
    if turns is None:
        return call.prompt[:OPENING_CHARACTERS]
    first = next((i for i, turn in enumerate(turns) if isinstance(turn, Mapping) and turn.get("role") == "user"), 0)
    return [*(call.body.get(key) for key in SYSTEM_KEYS), *turns[: first + 1]]
