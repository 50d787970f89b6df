"""The request context: what the pipeline knows of one request. Also the types that handle it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar

from gateway.calls import Call, Dialect
from gateway.credentials import TRACING
from gateway.entries import NO_DIRECTIVES, NO_KEYS, CacheDirectives, CacheKeys, Embedding, Entry, Lifetime
from gateway.errors import TooManyInflight
from gateway.messages import Response
from gateway.outcomes import Bypass
from gateway.ports import BodySource, Clock, Judgement
from gateway.priority import Priority
from gateway.request_fields import (
    EXPOSED,
    NO_CALLS,
    NO_CONSTRAINTS,
    NO_DEADLINES,
    NO_ESTIMATES,
    UNKNOWN_CLIENT,
    Client,
    Lease,
    TrafficNotes,
    UpstreamCalls,
)
from gateway.tracing import TraceRecorder

if TYPE_CHECKING:  # features bring them
    from gateway.transmission import Transmission


class HeadMemo:
    """`HeadMemo` keeps results that steps derive from a request head: method, path, query, and headers other than trace
    headers.

    Clients send the same head over and over. Requests with the same head share this object, so each step derives its
    result once. It is None before it is derived.

    `digest` is one of the head without trace headers, if a request with the same head and body may get the same
    response. It is empty if it may not.
    """

    __slots__ = ("client", "digest", "has_budget", "is_control_request", "upstream")

    def __init__(self, digest: bytes = b"") -> None:
        self.digest = digest
        self.client: Client | None = None  # as it was authenticated last
        self.is_control_request: bool | None = None  # whether the gateway itself answers it
        self.has_budget: bool | None = None  # whether it states a latency budget or a priority
        self.upstream: dict[Any, Any] = {}  # by backend: the form of the head there


TraceHeaders = Sequence[tuple[str, str]]

MAX_LINKS = 8  # maximum number of links from a span to spans of other requests


OnWritten = Callable[["RequestContext", Response, Any, bytes, bytes], None]
"""Arguments: the request, its response, the `HeaderTemplate` of the gateway's own headers, the head as a format, the
body."""


class InputBatch(Protocol):
    """`InputBatch` collects the inputs of one request that are in no cache: see `gateway.upstream.input_batch`."""

    async def join(self, request: RequestContext, forward: Handler) -> Response:
        """Return the response for this input. Raise the error of the backend call."""

    def mark_resolved(self, fingerprint: str) -> None:
        """Note that this input has joined, or was answered in another way."""


class Work(NamedTuple):
    """The work that a request is part of."""

    purpose: str = ""
    """A word for work that is not part of a client's request."""
    internal: bool = False
    """The gateway makes the call for itself, and nobody waits for it."""
    background: bool = False
    """A job: it yields to all other requests and has no latency budget."""
    transmission: Transmission | None = None
    """Whether a job has gone to a backend. Its side work shares it."""
    batch: InputBatch | None = None
    """For one of several inputs: collects those that are in no cache. `Negotiate` sets it."""


FOR_CLIENT = Work()


class Asker(Protocol):
    """A client of a route that keeps some entries of a scope from some of its clients: `request.asker`."""

    @property
    def names(self) -> tuple[str, ...]:
        """`Entry.askers` of an answer of the client."""

    def may_have(self, entry: Entry) -> bool:
        """Return whether an entry of this scope may serve the client."""

    def confirms(self, entry: Entry) -> bool:
        """Return whether an entry serves its whole scope."""

    def own_key(self, fingerprint: str) -> str:
        """Return the exact key of the client for a request that has the key `fingerprint` otherwise."""

    def withhold(self, request: RequestContext, entries: Sequence[Entry]) -> None:
        """Note the entries that would be hits of the request if the client might have them."""

    def is_same_writer(self, a: Entry, b: Entry) -> bool:
        """Return whether the writers of two entries are not independent."""


class RequestState:
    """The part of a request that belongs to one feature, or to one step that few requests need. A subclass has no
    required arguments."""

    __slots__ = ()

    number: ClassVar[int]
    """The place of the state in `RequestContext.states`. Each subclass gets the next one."""
    count: ClassVar[int] = 0

    def __init_subclass__(cls) -> None:
        cls.number = RequestState.count
        RequestState.count += 1


S = TypeVar("S", bound=RequestState)
NO_STATES: list[Any] = []  # of a request that no feature has looked at; it stays empty


class RequestContext:
    """`RequestContext` is a request from its first byte to its last: one object that the pipeline steps fill.

    The HTTP server creates it with the group `http`. Each step adds its results and decisions. Times are seconds on the
    monotonic clock.

    Fields that the same steps write and read together are one value: `gateway.request_fields` has the types. A feature
    or a step that nobody else depends on has a state of its own: see `of`.
    """

    __slots__ = (  # noqa: RUF023 - in groups
        # http: the request as received, its origin, and its cost so far
        "id", "method", "path", "query", "headers", "body_source", "body", "received", "client_address", "head",
        "trace_headers", "clock", "timings", "traced", "work", "upstream_request_id", "on_written",
        # call: what the client asks for, its identity, and the rules in force
        "dialect", "call", "model", "client", "route", "exposure", "traffic", "subjects",
        # cache: which entries may answer it, and what the lookups found
        "directives", "owner", "keys", "asker", "bypass", "embedding", "note", "served", "judged", "stored", "lease",
        # features, and steps that few requests need: their states, see `of`
        "states",
        # guard: how far it has come, for `gateway.steps.guard`
        "reached", "outcome",
        # backend: how soon and by whom it is to be answered, and the calls so far
        "deadlines", "calls", "priority", "estimates", "overloaded", "constraints", "reads_answer",
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
        client: Client = UNKNOWN_CLIENT,
        work: Work = FOR_CLIENT,
        head: HeadMemo | None = None,
        trace_headers: TraceHeaders | None = None,
    ) -> None:
        self.id = request_id
        self.method = method
        self.path = path  # as sent, still percent-encoded, without the query
        self.query = query  # as sent, without "?"
        self.headers = headers  # case-insensitive multi-mapping
        self.body_source = body_source
        self.body = b""  # read if a dialect claims the path; any other body streams from `body_source`
        self.received = clock.monotonic()
        self.client_address = client_address  # "" if it does not come from a client
        self.head = head or HeadMemo()
        # the headers named in `credentials.TRACING`, or None before they are extracted from `headers`
        self.trace_headers = trace_headers
        self.work = work
        self.clock = clock
        self.timings: dict[str, float] = {}  # seconds by step, in the order in which the steps ended
        self.traced: TraceRecorder | None = None  # set if traces are exported
        self.upstream_request_id: str | None = None  # the provider's own id of the call that answered
        # The HTTP server calls it after writing: see `OnWritten`.
        self.on_written: OnWritten | None = None

        self.dialect: Dialect | None = None
        self.call: Call | None = None  # None if no dialect claims the path
        # What it names as its model. Empty: nothing, or no dialect claims the path and no rule needs its model.
        self.model = ""
        self.client = client
        self.route = ""
        self.exposure = EXPOSED
        self.subjects: tuple[str, ...] = ()  # digests of those who may have it erased (`gateway.subjects`)
        self.traffic: TrafficNotes | None = None  # set on routes that record traffic

        self.directives: CacheDirectives = NO_DIRECTIVES
        self.owner = ""  # the party that may share its answers under the policy: see `cache.keys.owner_of`
        self.keys = NO_KEYS
        self.asker: Asker | None = None  # the client, if its route keeps some entries of the scope from it
        self.bypass: Bypass | None = None  # why no lookup is made
        self.embedding: Embedding | None = None  # of the call's `focus`
        self.note: str | None = None  # why there was no semantic lookup, or why the nearest neighbour was refused
        self.served: tuple[Entry, Lifetime] | None = None  # exact hit: the entry, and its lifetime under the policy
        self.judged: Judgement | None = None  # the best neighbour with its score, if there is one
        self.stored: Entry | None = None  # the entry made from a fresh answer
        self.lease: Lease | None = None  # on the backend call, on a store that other gateways use

        self.states: list[Any] = NO_STATES  # by `RequestState.number`; it grows when `of` needs it

        self.reached = 0  # the depth of the innermost step that it has reached
        # What the step reached last has returned or raised, until the step around it ends.
        self.outcome: Response | Awaitable[Response] | Exception | None = None

        self.deadlines = NO_DEADLINES
        self.calls: UpstreamCalls = NO_CALLS
        self.priority = Priority.NORMAL  # for when there is not enough capacity for all
        self.estimates = NO_ESTIMATES
        self.constraints = NO_CONSTRAINTS
        # the gateway is at `server.max_inflight`: it answers only what it can answer without waiting
        self.overloaded = False
        # The gateway reads the answer though no cache stores it: the backend has to send it readable, with its usage.
        self.reads_answer = False

    @property
    def log_fields(self) -> dict[str, str]:
        """The fields that identify the request in log lines."""
        return {"id": self.id} if self.traced is None else {"id": self.id, "trace_id": self.traced.trace_id}

    @property
    def opens_websocket(self) -> bool:
        """Whether it is the handshake of a WebSocket, which is a GET (RFC 6455, section 4.1). The Upgrade header of
        another method is ignored (RFC 9110, section 7.8)."""
        return self.method == "GET" and self.headers.get("upgrade", "").lower() == "websocket"

    # features

    def of(self, kind: type[S]) -> S:
        """Return the state of a feature or of a step. It is made when it is needed first."""
        states, number = self.states, kind.number
        if number >= len(states):
            states = self.states = [*states, *(None for _ in range(RequestState.count - len(states)))]
        state: S | None = states[number]
        if state is None:
            state = states[number] = kind()
        return state

    # budget

    @property
    def has_budget(self) -> bool:
        """Whether the request has a latency budget of any kind."""
        return self.deadlines != NO_DEADLINES

    @property
    def is_part(self) -> bool:
        """Whether the question that is matched by meaning is a part of a long prompt."""
        return self.call is not None and self.call.is_split

    @property
    def due(self) -> float:
        """When the answer or its first token is due, whichever is earlier; infinite if nobody waits for it."""
        whole, first, _ = self.deadlines
        return min(math.inf if whole is None else whole, math.inf if first is None else first)

    @property
    def upstream_left_s(self) -> float:
        """Return the seconds that are left for the calls to backends; infinite before the first one."""
        return self.calls.due - self.clock.monotonic()

    def require_capacity(self) -> None:
        """Raise `TooManyInflight` at `server.max_inflight`. A step calls this before it waits."""
        if self.overloaded:
            raise TooManyInflight

    # caches

    def leave_caches(self, reason: Bypass) -> None:
        """Look nothing up from now on, and store and share no answer."""
        self.bypass = self.bypass or reason
        self.keys = CacheKeys(variant=self.keys.variant)
        self.served = None

    # timings

    def timer(self, name: str) -> Timer:
        """Return a context manager that adds the time inside the `with` block to `name`."""
        return Timer(self, name)

    def since(self, name: str, started: float) -> float:
        """Add the time since `started` to `name`, and return the clock's reading."""
        now = self.clock.monotonic()
        timings = self.timings
        timings[name] = timings[name] + now - started if name in timings else now - started
        if self.traced is not None:
            self.traced.mark(name, started, now, self.work.purpose)
        return now

    def add_time(self, name: str, seconds: float) -> None:
        self.timings[name] = self.timings.get(name, 0.0) + seconds

    # traces

    def headers_with_parent(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Return `headers` for later work that this request causes. If it is traced, its span becomes the parent."""
        return headers if self.traced is None else self.traced.traced_headers(headers)

    def upstream_headers(self) -> Mapping[str, str]:
        """Return the headers for the upstream. If the request is traced, the span of this call becomes the parent."""
        if self.traced is None or self.calls.last is None:
            return self.headers
        return self.traced.traced_headers(self.headers, self.calls.last.span_id)

    def upstream_trace_headers(self) -> TraceHeaders:
        """Return the trace headers among the headers for the upstream."""
        if self.trace_headers is None:
            self.trace_headers = [(name, value) for name, value in self.headers.items() if name.lower() in TRACING]
        if self.traced is None or self.calls.last is None:
            return self.trace_headers
        return self.traced.inject_trace(self.trace_headers, self.calls.last.span_id)

    def link(self, origin: TraceRecorder | None) -> None:
        """Link to the span of `origin`, the request whose answer is shared, if both are traced."""
        if self.traced is not None and origin is not None and len(self.traced.links) < MAX_LINKS:
            self.traced.links += ((origin.trace_id, origin.span_id),)

    # work on its behalf

    def child(self, purpose: str) -> RequestContext:
        """Return a copy without costs or results, for side work such as `shadow` that is not part of the request.
        `purpose` is a word for that work."""
        child = self._copy()
        child.calls = self.calls.of_child()
        child.work, child.timings, child.estimates = self.work._replace(purpose=purpose), {}, NO_ESTIMATES
        child.served = child.judged = child.stored = child.note = child.traffic = None
        child.on_written = child.lease = None
        return child

    def with_call(self, call: Call) -> RequestContext:
        """Return a copy with another call. Both share the timings and the calls to backends."""
        other = self._copy()
        other.call = call
        return other

    def _copy(self) -> RequestContext:
        """Return a copy whose calls to backends share one total time with those of the original."""
        if self.calls is NO_CALLS:
            self.calls = UpstreamCalls()
            self.calls.since = self.clock.monotonic()
        other = copy(self)
        other.outcome = None
        if self.states:
            other.states = [None if state is None else copy(state) for state in self.states]
        return other

    def internal_child(self, purpose: str) -> RequestContext:
        """Return a child for a call that the gateway makes for itself. It has no latency budget, because nobody waits
        for it, and no lease."""
        child = self.child(purpose)
        child.deadlines = NO_DEADLINES
        child.calls, child.work = NO_CALLS, child.work._replace(internal=True)
        return child


Handler = Callable[[RequestContext], Response | Awaitable[Response]]
"""Answers a request: returns the response if it is ready, otherwise an awaitable."""


async def resolve_response(answer: Response | Awaitable[Response]) -> Response:
    """Return the response of a handler; await it if necessary."""
    return answer if isinstance(answer, Response) else await answer


class Timer:
    """`Timer` measures a `with` block. A class costs a third of a generator."""

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
    """The current load of a backend."""

    inflight: int
    limit: int  # current limit on `inflight`
    queued: int  # requests that wait for a permit


class Backend(Protocol):
    """A named service that answers requests."""

    @property
    def name(self) -> str: ...

    @property
    def http(self) -> bool:
        """Whether requests on paths that no dialect claims can be forwarded to it."""

    @property
    def speaks(self) -> str:
        """The name of the dialect that it understands; `text` if it takes a prompt and returns a text."""

    @property
    def occupancy(self) -> Load: ...

    def wait_s(self, priority: Priority) -> float:
        """Return the expected wait for a permit in seconds; 0 if one is free."""

    def send(self, request: RequestContext) -> Awaitable[Response]:
        """Send the call, and return when the status and the first byte of the body have arrived.

        Raise `BackendError` if it fails before that. Closing the response's body cancels the upstream call.
        """

    async def models(self, request: RequestContext) -> list[dict[str, Any]]:
        """Return the models that it offers, as OpenAI model objects. Raise `BackendError`."""

    async def ready(self) -> bool:
        """Probe its health cheaply. Raise `BackendError` for a reason of the gateway's own, such as missing
        credentials, or a proxy that refuses."""

    async def close(self) -> None: ...
