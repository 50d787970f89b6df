"""Traces of requests: W3C Trace Context, and the record from which spans are made after a request."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import getrandbits

from multidict import CIMultiDict

from gateway.calls import Call
from gateway.messages import EventStream, FullBody, Response

PARENT, STATE = "traceparent", "tracestate"

# Section 3.2: fields that a later version appends are ignored; version 00 has none; version ff is invalid.
_PARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII
)

_STATE = re.compile(r"[ -~\t]*", re.ASCII)

MAX_STATE = 512  # characters; section 3.3.1.5 asks to propagate at least this many; a longer value is dropped

_SAMPLED = 1

LOW_BITS = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class TraceParent:
    """The calling span of another service. Ids are hex."""

    trace_id: str
    span_id: str
    sampled: bool
    state: str  # as received, several lines joined, or ""


def parent_of(headers: Mapping[str, str]) -> TraceParent | None:
    """Return the parent; None if there is none or it is invalid. Its state is then ignored, too."""
    header = headers.get(PARENT)
    match = None if header is None else _PARENT.fullmatch(header.strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "00" and rest is not None:
        return None
    state = ""
    if STATE in headers:
        state = ",".join(value.strip() for name, value in headers.items() if name.lower() == STATE)
        if len(state) > MAX_STATE or _STATE.fullmatch(state) is None:
            state = ""
    return TraceParent(trace_id, span_id, bool(int(flags, 16) & _SAMPLED), state)


def traceparent(trace_id: str, span_id: str, *, sampled: bool) -> str:
    return f"00-{trace_id}-{span_id}-0{int(sampled)}"


def inject_trace(headers: Mapping[str, str], parent: str, state: str) -> CIMultiDict[str]:
    """Return `headers` with another parent."""
    traced_headers = CIMultiDict(headers)
    traced_headers.popall(STATE, None)
    traced_headers[PARENT] = parent
    if state:
        traced_headers[STATE] = state
    return traced_headers


def sampling_limit(share: float) -> float:
    """Return the sampling limit for a `share` in [0, 1]. A trace that begins here is sampled if the lower 64 bits of
    its id are below it. So the id alone decides, as in OpenTelemetry's TraceIdRatioBased."""
    return share * (LOW_BITS + 1)


def metadata_of(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the trace headers as gRPC metadata."""
    parent = parent_of(headers)
    if parent is None:
        return {}
    own = {PARENT: traceparent(parent.trace_id, parent.span_id, sampled=parent.sampled)}
    return {**own, STATE: parent.state} if parent.state else own


# The record of a traced request: the time of each step, and every upstream call. `gateway.observability.spans` makes
# spans of it after the request.
MAX_RECORDS = 128  # steps and calls of a request, including work that continues after it

MAX_READ = 256 * 1024  # bytes of a whole answer that is parsed for its usage; more would take milliseconds

BROKEN = "stream_broken"  # an answer that ended after its first byte and before its last

TAIL = 8  # last events of a stream to keep: one of them has the usage; Anthropic's first event also has some

CONTEXT = frozenset({PARENT, STATE})

NO_TEXTS: Mapping[str, str] = {}

Mark = tuple[str, float, float, str]
"""A step: name, begin, end (monotonic seconds), and purpose (see `UpstreamCall.purpose`)."""


def new_span_id() -> str:
    return (getrandbits(64) or 1).to_bytes(8).hex()


class TraceRecorder:
    """`TraceRecorder` collects the trace of one request. `kind` is `server`, or `consumer` for a job. Ids are hex."""

    __slots__ = (
        "_span_id", "calls", "kind", "later", "links", "lost", "marks", "model", "operation", "parent", "sampled",
        "texts", "trace_id",
    )  # fmt: skip

    def __init__(self, trace_id: str, parent: TraceParent | None, sampled: bool, kind: str) -> None:
        self.trace_id = trace_id
        self._span_id = ""
        self.parent = parent
        self.sampled = sampled  # as reported to upstreams
        self.kind = kind
        self.operation = ""  # the call's operation, if a dialect has parsed it
        self.model = ""
        self.texts: Mapping[str, str] = NO_TEXTS  # attributes with prompts and answers, where a policy asks for them
        self.marks: list[Mark] = []
        self.calls: tuple[UpstreamCall, ...] = ()
        self.links: tuple[tuple[str, str], ...] = ()  # (trace id, span id) of the requests whose answers it shared
        self.lost = 0  # records beyond `MAX_RECORDS`
        self.later: Callable[[TraceRecorder], None] | None = (
            None  # set when the request is over; called for later records
        )

    @property
    def span_id(self) -> str:
        """The span id, created on first use: most requests are not exported and need none."""
        if not self._span_id:
            self._span_id = new_span_id()
        return self._span_id

    def mark(self, name: str, started: float, ended: float, purpose: str) -> None:
        if len(self.marks) + len(self.calls) >= MAX_RECORDS:
            self.lost += 1
            return
        self.marks.append((name, started, ended, purpose))
        if self.later is not None:
            self.later(self)

    def record_call(self, call: UpstreamCall) -> None:
        if len(self.marks) + len(self.calls) >= MAX_RECORDS:
            self.lost += 1
            return
        self.calls += (call,)
        if self.later is not None:
            self.later(self)

    def failed(self, status: int) -> bool:
        """Return whether a request that is answered with `status` ends in an error."""
        for call in self.calls:
            if call.error == BROKEN and not call.purpose:
                return True
        return status >= 500

    def parent_for(self, span_id: str) -> str:
        """Return the header that names one of its spans as the parent."""
        return traceparent(self.trace_id, span_id, sampled=self.sampled)

    def traced_headers(self, headers: Mapping[str, str], span_id: str | None = None) -> CIMultiDict[str]:
        """Return `headers` with one of its spans as the parent, or the request's own span for None."""
        state = "" if self.parent is None else self.parent.state
        return inject_trace(headers, self.parent_for(span_id or self.span_id), state)

    def inject_trace(self, headers: Sequence[tuple[str, str]], span_id: str) -> list[tuple[str, str]]:
        """Return trace headers with the span `span_id` as the parent."""
        own = [header for header in headers if header[0].lower() not in CONTEXT] if headers else []
        own.append((PARENT, self.parent_for(span_id)))
        if self.parent is not None and self.parent.state:
            own.append((STATE, self.parent.state))
        return own

    def drain(self) -> tuple[tuple[Mark, ...], tuple[UpstreamCall, ...]]:
        """Return the records since the last call, and clear them."""
        marks, calls = tuple(self.marks), self.calls
        self.marks, self.calls = [], ()
        return marks, calls


@dataclass(slots=True)
class UpstreamCall:
    """One call to one upstream address. Times are seconds on the monotonic clock."""

    backend: str
    provider: str  # the backend's `adapter`
    address: str
    model: str  # the model's name at that address
    call: Call | None
    attempt: int  # 1: the first attempt
    purpose: str  # "": for the client's answer; else a word for the gateway's own purpose
    started: float
    span_id: str = field(default_factory=new_span_id)
    first: float | None = None  # when its first byte arrived
    ended: float | None = None
    status: int | None = None
    error: str = ""  # why there is no complete answer
    payload: list[bytes] = field(default_factory=list)  # the body or events from which the usage is read
    tail: deque[bytes] | None = None  # the last events of its stream
    streamed: bool = False
    usage: tuple[int, int] = (0, 0)  # input and output tokens, if the answer states them; see `settle`

    def record_response(self, now: float, response: Response) -> None:
        """Record the start of the response."""
        self.first, self.status = now, response.status
        self.streamed = isinstance(response.body, EventStream)
        if isinstance(response.body, FullBody) and len(response.body.data) <= MAX_READ:
            self.payload.append(response.body.data)

    def settle(self) -> None:
        """Read the usage, and release the payload from which it was read."""
        if self.call is not None and self.payload:
            seen = self.call.dialect.inspect(self.call, (*self.payload, *(self.tail or ())), self.streamed)
            self.usage = (seen.input_tokens, seen.output_tokens)
        self.payload.clear()
        self.tail = None

    def observe(self, event: bytes) -> None:
        """Record an event of the response stream."""
        if not self.payload:
            self.payload.append(event)
        else:
            if self.tail is None:
                self.tail = deque(maxlen=TAIL)
            self.tail.append(event)
