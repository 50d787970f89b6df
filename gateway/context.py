"""The request context: what is known of one request on its way through the pipeline, and who handles it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from gateway.credentials import TRACING
from gateway.errors import TooManyInflight
from gateway.latency_forecast import LatencyForecast
from gateway.messages import (
    NO_DIRECTIVES,
    Bypass,
    CacheDirectives,
    Call,
    Dialect,
    Embedding,
    Entry,
    Inspection,
    Lifetime,
    Response,
    TierDecision,
    TrafficFacts,
)
from gateway.ports import BodySource, Clock, Judgement
from gateway.principal import Principal
from gateway.priority import Priority
from gateway.tracing import TraceRecorder, UpstreamCall


class HeadMemo:
    """Results that steps derive from method, path, query and those headers that do not trace a request. Clients send
    the same head over and over: requests with the same head share this object, and each step derives its part once.
    None: not derived yet."""

    __slots__ = ("has_budget", "is_control_request", "tenant", "upstream")

    def __init__(self) -> None:
        self.tenant: str | None = None  # whose credentials these are, where a backend judges them
        self.is_control_request: bool | None = None  # whether an endpoint of the gateway's own answers it
        self.has_budget: bool | None = None  # whether it states a latency budget or a priority
        self.upstream: dict[Any, Any] = {}  # by backend: its form there


# One request on its way through the pipeline.
TraceHeaders = Sequence[tuple[str, str]]

MAX_LINKS = 8  # spans of other requests that a span names


OnWritten = Callable[["RequestContext", Response, Any, bytes, bytes], None]
"""Takes the request, its response, the `HeaderTemplate` of its own headers, the head as a format, and the body."""


class InputBatch(Protocol):
    """Collects the inputs of one request that no cache has: `gateway.upstream.input_batch`."""

    async def join(self, request: RequestContext, forward: Handler) -> Response:
        """The response for this input. Raises what the call to the backend raised."""

    def mark_resolved(self, fingerprint: str) -> None:
        """This input has come, or has been answered otherwise."""


class Inspected(NamedTuple):
    """A fresh answer, before the policy's rules decide whether it is stored."""

    inspection: Inspection
    dollars: float
    size: int  # bytes
    seconds: float  # from before the backend was called to the answer's end


class RequestContext:
    """A request from its first byte to its last: one object, which the steps of the pipeline fill.

    The HTTP server creates it with the group `http`; each step adds what it finds out and what it decides. Times are
    seconds on the monotonic clock."""

    __slots__ = (  # noqa: RUF023 - in groups
        # http: what came, from where, and what it has cost so far
        "id", "method", "path", "query", "headers", "body_source", "body", "received", "client_address",
        "head", "head_digest", "trace_headers", "background", "clock", "timings", "traced", "purpose", "upstream_call",
        "on_written",
        # call: what is asked for, by whom, and under which rules
        "dialect", "call", "tenant", "permit", "table", "route", "expose_headers", "expose_timings",
        "internal", "facts",
        # cache: what may answer it, and what was found
        "directives", "owner", "scope", "fingerprint", "bypass", "embedding", "note", "served", "judged",
        "considered", "stored", "inspected", "stale_available", "gathering", "lease",
        # budget: when its answer is due, and what may be spent on it
        "deadline", "ttft_deadline", "tpot_s", "upstream_deadline", "priority", "complexity", "wish", "outlook",
        "light_only", "metered", "overloaded",
    )  # fmt: skip

    def __init__(
        self,
        *,
        request_id: str,
        method: str,
        path: str,
        query: str,
        headers: Mapping[str, str],
        body_source: BodySource,
        clock: Clock,
        client_address: str = "",
        tenant: str = "",
        background: bool = False,
        head: HeadMemo | None = None,
        head_digest: bytes = b"",
        trace_headers: TraceHeaders | None = None,
    ) -> None:
        self.id = request_id
        self.method = method
        self.path = path  # as sent, still percent-encoded, without the query
        self.query = query  # as sent, without "?"
        self.headers = headers  # case-insensitive multi-mapping
        self.body_source = body_source
        self.body = b""  # read where a dialect claims the path; any other body streams from `body_source`
        self.received = clock.monotonic()
        self.client_address = client_address  # empty: it did not come from a client
        self.head = head or HeadMemo()
        # A digest of its head without the headers that trace it, where it may be answered as another one with the same
        # head and body. Empty: it may not.
        self.head_digest = head_digest
        self.trace_headers = trace_headers  # those of `credentials.TRACING`; None: not picked out of `headers` yet
        self.background = background  # a job: it yields to all others and has no latency budget
        self.clock = clock
        self.timings: dict[str, float] = {}  # seconds by step, in the order in which the steps ended
        self.traced: TraceRecorder | None = None  # where traces are exported
        self.purpose = ""  # of work that is not part of a client's request: a word for it
        self.upstream_call: UpstreamCall | None = None  # the last one, where the request is traced
        # The HTTP server calls it with what it wrote: the gateway's own headers, head and body as a format, the body.
        self.on_written: OnWritten | None = None

        self.dialect: Dialect | None = None
        self.call: Call | None = None  # None: no dialect knows the path
        self.tenant = tenant
        self.permit: Principal | None = None  # of the API key, where the gateway asks for one
        self.table: Any = None  # `RouteTable`: the policy that it met
        self.route = ""
        self.expose_headers = True
        self.expose_timings = True  # no: its answers may be shared with anybody, and the time would tell who asked what
        self.internal = False  # a call of the gateway's own: no client asked for it
        self.facts: TrafficFacts | None = None  # for the traffic log, on routes that record

        self.directives: CacheDirectives = NO_DIRECTIVES
        self.owner = ""  # who may share its answers, by the policy: see `cache.keys.owner_of`
        self.scope = ""  # hex SHA-256: who and what may share
        self.fingerprint = ""  # hex SHA-256: the exact key
        self.bypass: Bypass | None = None  # why no stored answer is looked for
        self.embedding: Embedding | None = None  # of the question
        self.note: str | None = None  # why no semantic lookup was made, or why the nearest neighbour was refused
        self.served: tuple[Entry, Lifetime] | None = None  # of an exact hit: the entry, and its lifetime by the policy
        self.judged: Judgement | None = None  # the best neighbour with its score, where there was one
        self.considered: Sequence[Judgement] = ()  # every neighbour with a score
        self.stored: Entry | None = None  # the entry that was made of a fresh answer
        self.inspected: Inspected | None = None  # what the dialect read from a fresh answer
        self.stale_available = False  # a stored answer past its time may be served where no backend answers
        self.gathering: InputBatch | None = None  # of one input of several: collects those that no cache has
        self.lease = 0  # the token under which the backend is called for all gateways on the store; 0: none

        self.deadline: float | None = None  # when the whole answer is due
        self.ttft_deadline: float | None = None  # when its first token is due
        self.tpot_s: float | None = None  # seconds an output token may take
        self.upstream_deadline = math.inf  # event loop time: the end of all attempts together, see `timeouts.total`
        self.priority = Priority.NORMAL  # where there is not room for all
        self.complexity: float | None = None  # in [0, 1]
        self.wish: TierDecision | None = None  # what the rule between light and large asks for
        self.outlook: LatencyForecast | None = None  # what the backends were predicted to take, where there is a budget
        self.light_only = False  # a limit of the policy keeps it from all but the lightest model
        self.metered = False  # what it costs is counted: the backend is to tell
        self.overloaded = False  # the gateway is at `server.max_inflight`: only what need not wait is answered

    @property
    def log_fields(self) -> dict[str, str]:
        """Its name in lines of the log."""
        return {"id": self.id} if self.traced is None else {"id": self.id, "trace_id": self.traced.trace_id}

    # budget

    @property
    def has_budget(self) -> bool:
        """Whether it has a latency budget of any kind."""
        return self.deadline is not None or self.ttft_deadline is not None or self.tpot_s is not None

    @property
    def due(self) -> float:
        """When the answer, or its first token, is due; infinite where nobody waits for it."""
        whole, first = self.deadline, self.ttft_deadline
        return min(math.inf if whole is None else whole, math.inf if first is None else first)

    def require_capacity(self) -> None:
        """A step calls this before it waits. Raises `TooManyInflight` at `server.max_inflight`."""
        if self.overloaded:
            raise TooManyInflight

    # timings

    def timer(self, name: str) -> Timer:
        """Adds the time spent inside the `with` block to `name`."""
        return Timer(self, name)

    def since(self, name: str, started: float) -> float:
        """Adds the time since `started` to `name`, and returns the clock's reading."""
        now = self.clock.monotonic()
        timings = self.timings
        timings[name] = timings[name] + now - started if name in timings else now - started
        if self.traced is not None:
            self.traced.mark(name, started, now, self.purpose)
        return now

    def add_time(self, name: str, seconds: float) -> None:
        self.timings[name] = self.timings.get(name, 0.0) + seconds

    # traces

    def headers_with_parent(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """`headers` for work that comes of this request later: with its span as the parent, where it is traced."""
        return headers if self.traced is None else self.traced.traced_headers(headers)

    def upstream_headers(self) -> Mapping[str, str]:
        """Its headers as an upstream is to have them: with the span of this call as the parent, where it is traced."""
        if self.traced is None or self.upstream_call is None:
            return self.headers
        return self.traced.traced_headers(self.headers, self.upstream_call.span_id)

    def upstream_trace_headers(self) -> TraceHeaders:
        """Of those the ones that trace it."""
        if self.trace_headers is None:
            self.trace_headers = [(name, value) for name, value in self.headers.items() if name.lower() in TRACING]
        if self.traced is None or self.upstream_call is None:
            return self.trace_headers
        return self.traced.inject_trace(self.trace_headers, self.upstream_call.span_id)

    def link(self, origin: TraceRecorder | None) -> None:
        """The answer is that of another request, `origin`, where that one is traced."""
        if self.traced is not None and origin is not None and len(self.traced.links) < MAX_LINKS:
            self.traced.links += ((origin.trace_id, origin.span_id),)

    # work on its behalf

    def child(self, purpose: str) -> RequestContext:
        """The same request with nothing spent and nothing found yet, for work on its behalf that is not part of it.
        `purpose`: a word for that work, such as `shadow`."""
        child = copy(self)
        child.purpose, child.timings, child.upstream_call, child.facts = purpose, {}, None, None
        child.served = child.judged = child.stored = child.inspected = child.note = None
        child.on_written, child.considered, child.complexity, child.wish, child.outlook = None, (), None, None, None
        return child

    def with_call(self, call: Call) -> RequestContext:
        """The same request that asks for something else. What it takes counts for both."""
        other = copy(self)
        other.call = call
        return other

    def internal_child(self, purpose: str) -> RequestContext:
        """A child that the gateway asks for itself: nobody waits, so that no budget chooses the model, and no lease was
        taken for it."""
        child = self.child(purpose)
        child.deadline = child.ttft_deadline = child.tpot_s = None
        child.lease, child.internal, child.upstream_deadline = 0, True, math.inf
        return child


Handler = Callable[[RequestContext], Response | Awaitable[Response]]
"""Answers a request: at once where nothing is waited for, else with what is to be awaited."""


async def resolve_response(answer: Response | Awaitable[Response]) -> Response:
    """What a handler has returned, waited for where that has to be."""
    return answer if isinstance(answer, Response) else await answer


class Timer:
    """A class rather than a generator: a third of the cost."""

    __slots__ = ("_name", "_request", "_started")

    def __init__(self, request: RequestContext, name: str) -> None:
        self._request = request
        self._name = name

    def __enter__(self) -> None:
        self._started = self._request.clock.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._request.since(self._name, self._started)


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of a backend at once."""

    inflight: int
    limit: int  # on that, at the moment
    queued: int  # those who wait for a place


class Backend(Protocol):
    """A named service that answers."""

    @property
    def name(self) -> str: ...

    @property
    def http(self) -> bool:
        """Whether paths that no dialect knows can be passed through to it."""

    @property
    def speaks(self) -> str:
        """The name of the dialect that it understands; `text` where it is given a prompt and answers with a text."""

    @property
    def crowd(self) -> Load: ...

    def wait_s(self, priority: Priority) -> float:
        """How long a request would wait for a place, as it looks now; 0 where one is free."""

    def send(self, request: RequestContext) -> Awaitable[Response]:
        """Sends the call and answers once the status and the first byte of the body are there.

        Raises `BackendError` when it fails before that. Closing the response's body cancels the call upstream.
        """

    async def models(self, request: RequestContext) -> list[dict[str, Any]]:
        """The models it offers, as OpenAI model objects. Raises `BackendError`."""

    async def ready(self) -> bool:
        """A cheap health probe; never raises."""

    async def close(self) -> None: ...
