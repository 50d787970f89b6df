"""What the notebook of a request keeps where it is traced: when each step was, and every call to an upstream. Spans are
made of it when the request is over (`gateway.observing.spans`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import getrandbits

from multidict import CIMultiDict

from gateway.messages import Call, EventStream, Response, Whole
from gateway.observing.trace_context import Parent, continued, traceparent

MAX_NOTES = 128  # steps and calls of a request, what goes on behind it included
MAX_READ = 256 * 1024  # bytes of a whole answer that is read for its usage: beyond it that takes milliseconds
BROKEN = "stream_broken"  # an answer that ended after its first byte and before its last
TAIL = 8  # of a stream's events: its usage is in one of the last ones, and Anthropic's also in the first

Mark = tuple[str, float, float, str]
"""A step: name, begin, end (monotonic seconds), and what it was for (see `UpstreamCall.purpose`)."""


def new_span_id() -> str:
    return f"{getrandbits(64) or 1:016x}"


class Traced:
    """`kind`: `server`, or `consumer` of a job. Ids are hex."""

    __slots__ = (
        "calls", "kind", "later", "links", "lost", "marks", "model", "operation", "parent", "sampled", "span_id",
        "trace_id",
    )  # fmt: skip

    def __init__(self, trace_id: str, parent: Parent | None, *, sampled: bool, kind: str) -> None:
        self.trace_id = trace_id
        self.span_id = new_span_id()
        self.parent = parent
        self.sampled = sampled  # as upstreams are told
        self.kind = kind
        self.operation = ""  # of the call, where a dialect has read one
        self.model = ""
        self.marks: list[Mark] = []
        self.calls: list[UpstreamCall] = []
        self.links: list[tuple[str, str]] = []  # (trace id, span id) of the requests whose answers it shared
        self.lost = 0  # notes beyond `MAX_NOTES`
        self.later: Callable[[Traced], None] | None = None  # set when the request is over: told of what comes then

    def mark(self, name: str, started: float, ended: float, purpose: str) -> None:
        if self._room():
            self.marks.append((name, started, ended, purpose))
            if self.later is not None:
                self.later(self)

    def ended(self, call: UpstreamCall) -> None:
        if self._room():
            self.calls.append(call)
            if self.later is not None:
                self.later(self)

    def failed(self, status: int) -> bool:
        """Whether a request that is answered with `status` ends in an error."""
        return status >= 500 or any(call.error == BROKEN and not call.purpose for call in self.calls)

    def parent_for(self, span_id: str) -> str:
        """The header that names one of its spans as who asks."""
        return traceparent(self.trace_id, span_id, sampled=self.sampled)

    def handed_on(self, headers: Mapping[str, str], span_id: str | None = None) -> CIMultiDict[str]:
        """`headers` that name one of its spans as who asks; None: the request's own."""
        state = "" if self.parent is None else self.parent.state
        return continued(headers, self.parent_for(span_id or self.span_id), state)

    def taken(self) -> tuple[tuple[Mark, ...], tuple[UpstreamCall, ...]]:
        """What has been noted since it was asked last."""
        marks, calls = tuple(self.marks), tuple(self.calls)
        self.marks, self.calls = [], []
        return marks, calls

    def _room(self) -> bool:
        room = len(self.marks) + len(self.calls) < MAX_NOTES
        self.lost += not room
        return room


@dataclass(slots=True)
class UpstreamCall:
    """One call to one address. Times are monotonic seconds."""

    backend: str
    provider: str  # the backend's `adapter`
    address: str
    model: str  # as it is asked for there
    call: Call | None
    attempt: int  # 1: not asked before
    purpose: str  # "": the client's answer; else what of the gateway's own it was for
    started: float
    span_id: str = field(default_factory=new_span_id)
    first: float | None = None  # when its first byte came
    over: float | None = None
    status: int | None = None
    error: str = ""  # why there is no whole answer
    payload: list[bytes] = field(default_factory=list)  # what its usage is read from
    tail: deque[bytes] = field(default_factory=lambda: deque(maxlen=TAIL))
    streamed: bool = False
    usage: tuple[int, int] = (0, 0)  # input and output tokens, where the answer tells; see `settle`

    def answered(self, now: float, response: Response) -> None:
        """The answer begins."""
        self.first, self.status = now, response.status
        self.streamed = isinstance(response.body, EventStream)
        if isinstance(response.body, Whole) and len(response.body.data) <= MAX_READ:
            self.payload.append(response.body.data)

    def settle(self) -> None:
        """Reads the usage, and lets go of what it was read from."""
        if self.call is not None and self.payload:
            seen = self.call.dialect.inspect(self.call, (*self.payload, *self.tail), self.streamed)
            self.usage = (seen.input_tokens, seen.output_tokens)
        self.payload.clear()
        self.tail.clear()

    def saw(self, event: bytes) -> None:
        """An event of its stream."""
        if not self.payload:
            self.payload.append(event)
        else:
            self.tail.append(event)
