"""Server-sent events whose name is the `type` of what they carry, as in several vendors' protocols. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from gateway.messages import Event

_FIRST = re.compile(rb'\{"type": ?"([a-z_.]+)"')  # most servers write it first
_NAME = re.compile(r"[A-Za-z0-9_.-]+")  # one with a line break would be another line of the stream


def named(data: bytes) -> Event:
    """An event under the name that its `type` is; without a name where it has none."""
    if match := _FIRST.match(data):
        return Event(data, match[1].decode())
    try:
        kind = orjson.loads(data)["type"]
    except (ValueError, TypeError, KeyError):
        return Event(data)
    return Event(data, kind if isinstance(kind, str) and _NAME.fullmatch(kind) else None)


def written(value: Mapping[str, Any]) -> Event:
    """`value` has a `type`."""
    return Event(orjson.dumps(value), value["type"])
