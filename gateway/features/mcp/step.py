"""Results of MCP servers: whether a request is looked up and under which keys, and what servers announce meanwhile."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from gateway.cache.flight import SharedCall
from gateway.cache.freshness import bypass_of
from gateway.cache.keys import keys_of, owner_of, variant_of
from gateway.cache.placement import PlacementDecision
from gateway.cache.response_directives import is_anonymous
from gateway.calls import Call, Inspection
from gateway.config.policy.model import Route
from gateway.context import Handler, RequestContext, RequestState, resolve_response
from gateway.dialects.sse import SSEParser
from gateway.entries import CacheDirectives, CacheKeys
from gateway.errors import UpstreamStreamError
from gateway.feature import Runtime
from gateway.features.mcp.dialect import (
    CALL_TOOL,
    CHANGES,
    LIST_TOOLS,
    MCP,
    SESSION,
    params_of,
    read_message,
    result_of,
)
from gateway.features.mcp.results import (
    McpKnowledge,
    authorisation_of,
    changed_subjects,
    place_result,
    read_only_tools,
    refusal_of,
    since_change,
    subject_of,
)
from gateway.features.mcp.rule import McpRule
from gateway.messages import ByteStream, FullBody, Response
from gateway.observability.response_headers import HITS
from gateway.outcomes import Admission, Bypass
from gateway.ports import Clock
from gateway.steps.route_ports import RoutePorts
from gateway.streams import StreamObserver, with_observer
from gateway.upstream.content_decoding import CODINGS, ContentDecoder, coding_of, decode_whole

# Found in every notification that makes a result stale. Few messages have them, so few are parsed.
MARKS = tuple(name.rpartition("/")[2].encode() for name in CHANGES)


class McpKeys(NamedTuple):
    """The keys under which one party looks a result up, and the directives that apply to it there."""

    owner: str
    keys: CacheKeys
    directives: CacheDirectives


class McpLookups(RequestState):
    """The keys of a request whose answer says who may share it: for its own client, and for all clients.

    A request that is not looked up has none.
    """

    __slots__ = ("own", "shared")

    def __init__(self) -> None:
        self.own: McpKeys | None = None
        self.shared: McpKeys | None = None


class McpRuntime(Runtime):
    """The shared parts of the feature: what servers announced, and the calls in flight."""

    __slots__ = ("_clock", "_exact_cache", "_flights", "_knowledge")

    def __init__(
        self,
        knowledge: McpKnowledge,
        clock: Clock,
        flights: MutableMapping[str, SharedCall],
        exact_cache: Callable[[Route, Handler], Handler],
    ) -> None:
        self._knowledge = knowledge
        self._clock = clock
        self._flights = flights
        self._exact_cache = exact_cache

    def results(self, route: Route, inner: Handler) -> Handler:
        return McpResults(inner, route, self._knowledge, self._clock, self._flights).__call__

    def shared_results(self, route: Route, inner: Handler) -> Handler:
        return SharedResults(inner, lambda on_miss: self._exact_cache(route, on_miss)).__call__

    def apply(self, request: RequestContext, call: Call, route: Route) -> Call:
        return apply_mcp(request, call, route, self._knowledge, self._clock.wall())

    def ports(self, route: Route) -> RoutePorts:
        rule = route.of(McpRule)
        return RoutePorts(placement=None if rule is None else ResultPlacement(route.name, rule, self._knowledge))


def apply_mcp(request: RequestContext, call: Call, route: Route, knowledge: McpKnowledge, now: float) -> Call:
    """Set the keys of a request whose MCP result may be stored, and return its call as it goes on.

    `now` is in wall-clock seconds. `apply_route` has set the keys of all other requests.
    """
    rule = route.of(McpRule)
    if rule is None or call.dialect.name != MCP.name or call.uncached not in (Bypass.POLICY, Bypass.TOOL):
        return call
    authorisation = _authorisation(request)
    refusal = refusal_of(rule, call, lambda tool: knowledge.only_reads(route.name, authorisation, tool))
    if refusal is not None:
        request.bypass = refusal
        return call
    request.call = call = replace(call, uncached=None)
    request.bypass = bypass_of(None, request.directives)
    if request.directives.no_store:
        return call
    variant = variant_of(request.headers, route.vary, route.generation)
    public = owner_of(route.share, request.client.tenant, None)
    session = request.headers.get(SESSION, "")

    def keys(owner: str, changes_of: str) -> McpKeys:
        directives = since_change(
            request.directives, knowledge.changed_at(route.name, changes_of, subject_of(call)), now
        )
        return McpKeys(owner, keys_of(owner, route.name, call, request.query, variant), directives)

    # Nobody shares a key with a client that nothing tells from others: not even a call in flight.
    owner = authorisation + session if _is_somebody(request) else secrets.token_hex(16)
    own = keys(owner, authorisation)
    state = request.of(McpLookups)
    state.own, state.shared = own, keys(public, public)
    use_keys(request, own)
    return call


def _is_somebody(request: RequestContext) -> bool:
    """Return whether a private result has somebody to be private to: a client with credentials, or with a session."""
    return not is_anonymous(request) or SESSION in request.headers


def use_keys(request: RequestContext, keys: McpKeys) -> None:
    request.owner, request.keys, request.directives = keys


def _authorisation(request: RequestContext) -> str:
    """Return the owner of the request's private results. Two API keys of a tenant are two authorisations; those of the
    configuration have no id."""
    permit = request.client.permit
    key = "" if permit is None else f"{permit.id} {request.client.credentials.tenant}"
    return authorisation_of(request.client.tenant, key)


class McpResults:
    """Approves requests of one route whose results may be stored, and reads what the servers announce. The knowledge
    must be asked for every request, so no result takes the fast path for repeated bytes. `flights` are the
    calls in flight, by fingerprint. Nobody joins one that began before a change."""

    def __init__(
        self,
        inner: Handler,
        route: Route,
        knowledge: McpKnowledge,
        clock: Clock,
        flights: MutableMapping[str, SharedCall],
    ) -> None:
        self._inner = inner
        self._route = route
        self._knowledge = knowledge
        self._clock = clock
        self._flights = flights
        self._inflight: dict[RequestContext, tuple[str, str]] = {}  # requests in flight: subject and own fingerprint

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        call = request.call
        if call is None:
            if MCP.path.fullmatch(request.path) is None:
                return self._inner(request)
            request.reads_answer = True
        elif call.dialect.name != MCP.name:
            return self._inner(request)
        else:
            apply_mcp(request, call, self._route, self._knowledge, self._clock.wall())
        return self._read(request)

    async def _read(self, request: RequestContext) -> Response:
        own = request.of(McpLookups).own
        if own is not None and request.call is not None:
            self._inflight[request] = subject_of(request.call), own.keys.fingerprint
        try:
            response = await resolve_response(self._inner(request))
        finally:
            self._inflight.pop(request, None)
        request.served = None
        if response.status != 200:
            return response
        body, is_stream = response.body, response.content_type.startswith("text/event-stream")
        is_hit = response.provenance.verdict in HITS
        coding = coding_of({name.lower(): value for name, value in response.headers})  # of a body that passes through
        if isinstance(body, FullBody):
            read = body.data if not coding else (coding in CODINGS and decode_whole(body.data, coding)) or b""
            for data in _messages_of(read) if is_stream else (read,):
                self._record_message(request, data, is_hit=is_hit)
        elif isinstance(body, ByteStream) and is_stream:
            return replace(response, body=ByteStream(with_observer(body.chunks, self._observer(request, coding))))
        return response

    def _observer(self, request: RequestContext, coding: str) -> StreamObserver[bytes]:
        """Return an observer that reads the messages of a stream in a content coding, and changes nothing."""
        parser: SSEParser | None = SSEParser()
        decode: Callable[[bytes], bytes] = ContentDecoder(coding).decode if coding in CODINGS else bytes

        def on_items(chunks: Sequence[bytes]) -> Sequence[bytes]:
            nonlocal parser
            if parser is not None:
                try:
                    for chunk in chunks:
                        for event in parser.feed(decode(chunk)):
                            self._record_message(request, event.data, is_hit=False)
                except UpstreamStreamError:  # a huge message or other bytes, which the client may still want
                    parser = None
            return chunks

        return StreamObserver(on_items)

    def _record_message(self, request: RequestContext, data: bytes, *, is_hit: bool) -> None:
        """Note a message of the server if it announces a change, or lists tools. A list from the cache only counts if
        no other is known."""
        if any(mark in data for mark in MARKS):
            for subject in changed_subjects(read_message(data)):
                self._record_change(request, subject)
        call = request.call
        if call is None or call.operation != LIST_TOOLS:
            return
        if not (is_hit and self._knowledge.knows_tools(self._route.name, _authorisation(request))):
            self._record_tools(request, call, read_message(data))

    def _record_tools(self, request: RequestContext, call: Call, message: Mapping[str, object]) -> None:
        result = result_of(message)
        tools = None if result is None else read_only_tools(result)
        if tools is None:
            return
        further = params_of(call).get("cursor") is not None
        if self._knowledge.record_tools(self._route.name, _authorisation(request), tools, further_page=further):
            self._record_change(request, CALL_TOOL)

    def _record_change(self, request: RequestContext, subject: str) -> None:
        now, authorisation = self._clock.wall(), _authorisation(request)
        for owner in dict.fromkeys((authorisation, owner_of(self._route.share, request.client.tenant, None))):
            self._knowledge.record_change(self._route.name, owner, subject, now)
        for subject_inflight, fingerprint in self._inflight.values():
            if subject_inflight == subject:
                self._flights.pop(fingerprint, None)


class SharedResults:
    """Looks a request up among the results that all clients of its route may share. `exact_cache` builds the exact
    cache around a handler. If it has nothing, the request goes on under its own keys."""

    def __init__(self, inner: Handler, exact_cache: Callable[[Handler], Handler]) -> None:
        self._inner = inner
        self._look_up = exact_cache(self._on_miss)

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        shared = request.of(McpLookups).shared
        if shared is None or request.bypass is not None:
            return self._inner(request)
        use_keys(request, shared)
        return self._look_up(request)

    def _on_miss(self, request: RequestContext) -> Response | Awaitable[Response]:
        own = request.of(McpLookups).own
        assert own is not None  # set with the shared ones
        use_keys(request, own)
        return self._inner(request)


class ResultPlacement:
    """Decides where the MCP results of a route are stored."""

    __slots__ = ("_knowledge", "_route", "_rule")

    def __init__(self, route: str, rule: McpRule, knowledge: McpKnowledge) -> None:
        self._route = route
        self._rule = rule
        self._knowledge = knowledge

    def applies(self, request: RequestContext) -> bool:
        return request.of(McpLookups).shared is not None

    def place(
        self, request: RequestContext, call: Call, inspection: Inspection, *, private: bool, request_time: float
    ) -> PlacementDecision:
        terms = place_result(self._rule, call, inspection.hints, private=private)
        if terms.admission is not Admission.STORED:
            return PlacementDecision(terms.admission)
        if not terms.public and not _is_somebody(request):
            return PlacementDecision(Admission.PRIVATE)
        shared = request.of(McpLookups).shared
        assert shared is not None  # else the placement does not apply
        owner = shared.owner if terms.public else _authorisation(request)
        if request_time <= self._knowledge.changed_at(self._route, owner, subject_of(call)):
            return PlacementDecision(Admission.PURGED)
        return PlacementDecision(Admission.STORED, terms.ttl_s, shared.keys if terms.public else None)


def _messages_of(stream: bytes) -> Sequence[bytes]:
    """Return the messages of a whole stream; none if one of them is huge."""
    parser = SSEParser()
    try:
        return [event.data for event in (*parser.feed(stream), *parser.close())]
    except UpstreamStreamError:
        return ()
