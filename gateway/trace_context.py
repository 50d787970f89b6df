"""Whose trace a request is part of: W3C Trace Context (https://www.w3.org/TR/trace-context/). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from multidict import CIMultiDict

PARENT, STATE = "traceparent", "tracestate"
# Section 3.2: what a later version appends is not read; version 00 has nothing behind the flags, ff is none.
_PARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII
)
_STATE = re.compile(r"[ -~\t]*", re.ASCII)
MAX_STATE = 512  # characters that section 3.3.1.5 asks to be carried at least; a longer one is dropped
_SAMPLED = 1
LOW_BITS = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Parent:
    """The span of somebody else that asked. Ids are hex."""

    trace_id: str
    span_id: str
    sampled: bool
    state: str  # as it came, of several lines joined; empty: none


def parent_of(headers: Mapping[str, str]) -> Parent | None:
    """None where there is none, or none that can be read: then its state says nothing either."""
    given = headers.get(PARENT)
    found = None if given is None else _PARENT.fullmatch(given.strip())
    if found is None:
        return None
    version, trace_id, span_id, flags, rest = found.groups()
    if version == "00" and rest is not None:
        return None
    state = ""
    if STATE in headers:
        state = ",".join(value.strip() for name, value in headers.items() if name.lower() == STATE)
        if len(state) > MAX_STATE or _STATE.fullmatch(state) is None:
            state = ""
    return Parent(trace_id, span_id, bool(int(flags, 16) & _SAMPLED), state)


def traceparent(trace_id: str, span_id: str, *, sampled: bool) -> str:
    return f"00-{trace_id}-{span_id}-0{int(sampled)}"


def continued(headers: Mapping[str, str], parent: str, state: str) -> CIMultiDict[str]:
    """`headers` with another parent."""
    handed_on = CIMultiDict(headers)
    handed_on.popall(STATE, None)
    handed_on[PARENT] = parent
    if state:
        handed_on[STATE] = state
    return handed_on


def sampling_limit(share: float) -> float:
    """A trace that begins here is sampled if the lower 64 bits of its id are below this: its id alone decides, as with
    OpenTelemetry's TraceIdRatioBased. `share` in [0, 1]."""
    return share * (LOW_BITS + 1)


def metadata_of(headers: Mapping[str, str]) -> dict[str, str]:
    """What of `headers` says whose trace a call belongs to, as metadata of gRPC takes it."""
    parent = parent_of(headers)
    if parent is None:
        return {}
    own = {PARENT: traceparent(parent.trace_id, parent.span_id, sampled=parent.sampled)}
    return {**own, STATE: parent.state} if parent.state else own
