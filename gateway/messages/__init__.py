"""What flows through the gateway: requests, calls, answers and where an answer came from.

A `RequestContext` is filled by the steps of the pipeline. Everything else here is never changed once it is made;
where it is made for each request it is a dataclass that is not frozen, since the constructor of a frozen one takes two
to four times as long. Errors have a module of their own: `gateway.errors`.
"""

from __future__ import annotations

from gateway.messages.answers import Body, ByteStream, Closing, Event, EventStream, Frame, Response, Tunnel, Whole
from gateway.messages.calls import CacheDirectives, Call, Decisive
from gateway.messages.context import Handler, Inspected, RequestContext, resolved
from gateway.messages.entries import Embedding, Entry, Neighbour, Placed, Vector
from gateway.messages.head_memo import HeadMemo
from gateway.messages.provenance import Admission, Bypass, Choice, Provenance, Refusal, Usage, Verdict

__all__ = [
    "Admission",
    "Body",
    "Bypass",
    "ByteStream",
    "CacheDirectives",
    "Call",
    "Choice",
    "Closing",
    "Decisive",
    "Embedding",
    "Entry",
    "Event",
    "EventStream",
    "Frame",
    "Handler",
    "HeadMemo",
    "Inspected",
    "Neighbour",
    "Placed",
    "Provenance",
    "Refusal",
    "RequestContext",
    "Response",
    "Tunnel",
    "Usage",
    "Vector",
    "Verdict",
    "Whole",
    "resolved",
]
