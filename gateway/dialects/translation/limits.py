"""Fit what a translation sends into the limits of the backend's protocol. Pure.

The two protocols allow different lengths and characters. A value that the other side would refuse gets a replacement
that follows from it alone: each turn of a conversation says the same. Values that fit stay as they are.

Sources: the error messages of both APIs, https://platform.openai.com/docs/api-reference/chat/create and
https://platform.claude.com/docs/en/api/messages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

_ODD = re.compile(r"[^A-Za-z0-9_-]")
# Anthropic refuses a user id that it takes for an e-mail address or a telephone number.
_PERSONAL = re.compile(r".*@.*|\+?[\d\s()./-]{7,}", re.DOTALL)
_NAME_DIGEST, _ID_DIGEST = 8, 24  # hex digits


class Limits(NamedTuple):
    """The limits of a protocol, in characters."""

    tool_name: int
    call_id: int
    user: int
    plain_ids: bool  # ids of tool calls have only letters, digits, `_` and `-`
    opaque_user: bool  # the user's id names no person


OPENAI = Limits(tool_name=64, call_id=40, user=64, plain_ids=False, opaque_user=False)


@dataclass(slots=True)
class Fitting:
    """`Fitting` fits the names and ids of one request, and knows the client's names for its answer."""

    limits: Limits
    names: dict[str, str]  # the name that was sent -> the client's name, if they differ

    def name(self, name: str) -> str:
        """Return the name of a tool for the backend."""
        limit, plain = self.limits.tool_name, _ODD.sub("_", name)
        if plain == name and 0 < len(name) <= limit:
            return name
        sent = f"{plain[: limit - _NAME_DIGEST - 1]}_{_digest(name)[:_NAME_DIGEST]}"
        self.names[sent] = name
        return sent

    def original(self, name: str) -> str:
        """Return the client's name for a tool that the answer calls."""
        return self.names.get(name, name)

    def call_id(self, given: Any) -> Any:
        """Return the id of a tool call for the backend; the call and its result get the same."""
        if not isinstance(given, str) or not given:
            return given
        if len(given) <= self.limits.call_id and not (self.limits.plain_ids and _ODD.search(given)):
            return given
        return f"call_{_digest(given)[:_ID_DIGEST]}"

    def user(self, given: Any) -> Any:
        """Return the id of an end user for the backend: an opaque digest of 64 characters if it does not fit."""
        if not isinstance(given, str):
            return given
        personal = self.limits.opaque_user and _PERSONAL.fullmatch(given)
        return _digest(given) if personal or len(given) > self.limits.user else given


def fitting(limits: Limits) -> Fitting:
    return Fitting(limits, {})


def object_schema(schema: Any) -> Any:
    """Return the schema of a tool's arguments with the keys that the APIs require of an object, even without
    properties."""
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        return schema
    return {"type": "object", "properties": {}, **schema}


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
