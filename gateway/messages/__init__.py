"""What flows through the gateway: requests, calls, answers and where an answer came from.

Everything here is immutable, which mypy holds (`gateway.messages.values`); a stage that learns something passes a
changed copy on (`dataclasses.replace`).
Errors have a module of their own: `gateway.errors`.
"""

from __future__ import annotations

from gateway.messages.answers import Body, ByteStream, Closing, Event, EventStream, Frame, Response, Tunnel, Whole
from gateway.messages.entries import Embedding, Entry, Neighbour, Placed, Vector
from gateway.messages.provenance import Admission, Bypass, Choice, Provenance, Refusal, Usage, Verdict
from gateway.messages.requests import Asked, Begun, CacheDirectives, Call, Request

__all__ = [
    "Admission",
    "Asked",
    "Begun",
    "Body",
    "Bypass",
    "ByteStream",
    "CacheDirectives",
    "Call",
    "Choice",
    "Closing",
    "Embedding",
    "Entry",
    "Event",
    "EventStream",
    "Frame",
    "Neighbour",
    "Placed",
    "Provenance",
    "Refusal",
    "Request",
    "Response",
    "Tunnel",
    "Usage",
    "Vector",
    "Verdict",
    "Whole",
]
