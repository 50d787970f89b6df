"""Parses the call, finds its route, and computes its cache keys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from gateway.cache.freshness import bypass_of, parse_directives
from gateway.cache.keys import keys_of, owner_of, variant_of
from gateway.calls import Call, Dialect
from gateway.config.policy.model import Policy, Route
from gateway.config.schema import MAX_BODY, MAX_BODY_KEYS
from gateway.context import Handler, RequestContext, resolve_response
from gateway.credentials import TRACING
from gateway.dialects.json_body import check_keys
from gateway.dialects.known import DIALECTS, Unimported, import_dialects, imported_dialect, reader_of
from gateway.dialects.named_models import ModelReader, content_type_of, model_in_body, uses_only_named
from gateway.errors import GatewayError, PayloadTooLarge
from gateway.messages import Response
from gateway.observability.telemetry import Telemetry
from gateway.outcomes import Bypass
from gateway.priority import Priority
from gateway.request_fields import EXPOSED, HIDDEN, WITHOUT_TIMINGS, Deadlines, TrafficNotes
from gateway.routing.budget import BOUNDS, budget_of, priority_of
from gateway.steps.recording import Recording
from gateway.steps.request_reading import (
    Models,
    find_route,
    read_body,
    read_models,
    read_passing,
    subjects_of_call,
    with_model_of,
)
from gateway.subjects import SubjectsOf

# Bytes. A longer body is parsed in another thread. There it blocks the event loop only for its longest step, not for
# all steps together (orjson keeps the interpreter's lock). For 10 MiB of turns on a busy machine that was 270 ms, and
# 1,030 ms on the loop. A body of this size takes 0.7 ms on the loop.
LARGE_BODY = 256 * 1024

# The same for a body with many objects: 7,000 messages in 210 kB took 26 ms on the loop. Counting colons is quick, and
# each key is followed by one.
COUNTED_BODY, MANY_KEYS = 16 * 1024, 2_000


Reader = Callable[[RequestContext, Call], Call]
"""Reads a call before its cache keys are computed, and returns it as the caches and the logs may see it."""


@dataclass(frozen=True)
class RouteTable:
    """A policy with the rest of the pipeline for each of its routes. A reload replaces both at once."""

    policy: Policy
    pipelines: Mapping[str, Handler]
    readers: Mapping[str, Reader] = field(default_factory=dict)  # by route, for those whose features read calls

    @cached_property
    def matches_models(self) -> bool:
        """Whether a route is for some models only."""
        return any(route.match.model is not None for route in self.policy.routes)

    @cached_property
    def caches(self) -> bool:
        """Whether a route has a cache."""
        return any(route.caches for route in self.policy.routes)

    @cached_property
    def traced_matches(self) -> tuple[str, ...]:
        """The headers that decide here although they usually only trace a request."""
        names = {name for route in self.policy.routes for name, _ in route.match.headers}
        names.update(name for route in self.policy.routes for name in route.vary)
        return tuple(sorted(names & TRACING))


UNIMPORTED: Final = Unimported.DIALECT  # a name of the module is found faster than a member
NAME = "ParseAndRoute"  # in `nearhit_step_failures_total`


class ParseAndRoute:
    """Hands each request to the pipeline of its route. `table` returns the table in force; a request keeps the one that
    it met, even if a reload replaces it. `dialect_of` returns the dialect of a method and a path, or None if they have
    none. `subjects_of` computes the erasure digests; it is None without an erasure key.
    `max_keys` and `max_body` bound a body (`server.max_body_keys`, `server.max_body`)."""

    def __init__(
        self,
        table: Callable[[], RouteTable],
        dialect_of: Callable[[str, str], Dialect | Unimported | None],
        recording: Recording,
        telemetry: Telemetry,
        subjects_of: SubjectsOf | None = None,
        max_keys: int = MAX_BODY_KEYS,
        max_body: int = MAX_BODY,
    ) -> None:
        self._table = table
        self._max_body = max_body
        self._max_keys = max_keys
        self._dialect_of = dialect_of
        self._recording = recording
        self._telemetry = telemetry
        self._subjects_of = subjects_of

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        table = self._table()
        dialect = self._dialect_of(request.method, request.path)
        if dialect is None:
            return self._pass(request, table)
        if dialect is UNIMPORTED:
            request.require_capacity()
            return self._parse_first(request)
        request.dialect = dialect
        body = request.body_source.read_nowait()
        if body is None or (len(body) > COUNTED_BODY and takes_long(body)):
            request.require_capacity()
            return self._parse_later(request, table, dialect, body)
        request.body = body
        call = dialect.parse(request.path, body, request.headers)
        return self._route(request, table, call, (call.model,))

    def _pass(self, request: RequestContext, table: RouteTable) -> Response | Awaitable[Response]:
        """Route a request that no dialect claims. It is read only if its models decide anything, or if a cache may have
        its answer."""
        reader = reader_of(request.method, request.path) if table.caches else None
        if reader is not None and DIALECTS.imported(reader) is None:
            request.require_capacity()
            return self._parse_first(request)
        permit, reads = request.client.permit, reader is not None
        needs_models = table.matches_models or (permit is not None and bool(permit.models))
        if not needs_models and not reads:
            return self._route(request, table, None, ())
        body = request.body_source.buffered_body
        if body is None or takes_long(body):
            request.require_capacity()
            return self._pass_later(request, table, reads=reads, needs_models=needs_models)
        if needs_models:
            body = request.body_source.read_nowait() or b""
            return self._route(request, table, *read_body(request, body, self._max_keys, reads=reads))
        decoded = _decoded(request)
        call = None if decoded is None else read_passing(request, decoded)
        return self._route(request, table, call, with_model_of(call, ()))

    async def _parse_first(self, request: RequestContext) -> Response:
        """Answer the first request for a dialect. Its import takes some 40 ms, so it runs in another thread."""
        await asyncio.to_thread(import_dialects, request.method, request.path)
        imported_dialect.cache_clear()
        return await resolve_response(self(request))

    async def _pass_later(
        self, request: RequestContext, table: RouteTable, *, reads: bool, needs_models: bool
    ) -> Response:
        """A body that the caches read has to arrive whole. One that is longer than that passes through."""
        call, models, source = None, None, request.body_source
        if reads:
            await source.buffer(whole=True)
        if needs_models:
            models = read_models(request, await read_model(request, self._max_body, self._max_keys))
        if reads and (body := _decoded(request)) is not None:
            if takes_long(body):
                call = await asyncio.to_thread(read_passing, request, body, parse_wholly)
            else:
                call = read_passing(request, body)
        return await resolve_response(self._route(request, table, call, with_model_of(call, models or ())))

    async def _parse_later(
        self, request: RequestContext, table: RouteTable, dialect: Dialect, body: bytes | None
    ) -> Response:
        request.body = body = await request.body_source.read() if body is None else body
        if takes_long(body):
            check_keys(body, self._max_keys)
            call = await asyncio.to_thread(parse_wholly, dialect, request.path, body, request.headers)
        else:
            call = dialect.parse(request.path, body, request.headers)
        return await resolve_response(self._route(request, table, call, (call.model,)))

    def _route(
        self, request: RequestContext, table: RouteTable, call: Call | None, models: Models
    ) -> Response | Awaitable[Response]:
        """Hand a request on."""
        if call is not None and request.traced is not None:
            request.traced.operation, request.traced.model = call.operation, call.model
        if request.client.permit is not None:  # before any lookup: a key may not see all that its tenant has stored
            is_told = call is not None or uses_only_named(request.method, request.path)
            request.client.permit.check_models(models if is_told else (), request.method, request.path)
        route = find_route(request, call, models, table.policy)
        try:
            apply_route(request, call, route, table.readers.get(route.name) if table.readers else None)
            self._record(request, call, route)
        except GatewayError:
            raise
        except Exception as error:
            # Without keys or subjects, or unread by the features of its route, its answer can't be stored for anybody.
            self._telemetry.failures.record(NAME, error)
            request.call = call
            request.leave_caches(Bypass.STEP_FAILED)
        return table.pipelines[route.name](request)

    def _record(self, request: RequestContext, call: Call | None, route: Route) -> None:
        """Record what erasure and the traffic log need."""
        if call is not None and (call.user is not None or request.client.permit is not None):
            request.subjects = subjects_of_call(call.user, request.client.permit, self._subjects_of)
        if self._recording.log is not None:  # asked here, too: most gateways record nothing, and a call costs
            note_traffic(request, route, self._recording)


def note_traffic(request: RequestContext, route: Route, recording: Recording) -> None:
    """Note what the traffic log needs of a request, as its call is now, if its route records it."""
    facts = None if recording.log is None else recording.log.facts(request, route)
    request.traffic = None if facts is None else TrafficNotes(facts)


async def read_model(request: RequestContext, max_body: int, max_keys: int) -> str | None:
    """Return the model that a body names which passes through, or None if it names none.

    A form streams on as soon as its model is known. Other bodies have to arrive whole. Raise `PayloadTooLarge` if the
    model does not come within `max_body` bytes, `BadRequest`, or `RequestTimeout`.
    """
    source, content_type = request.body_source, content_type_of(request.headers)
    if "content-encoding" not in request.headers:
        reader = ModelReader(content_type)
        if not await source.look_ahead(reader, max_body):
            raise _model_too_late(max_body)
        if not reader.needs_whole:
            return reader.model
    await source.buffer(whole=True)
    if source.buffered_body is None:
        raise _model_too_late(max_body)
    body = source.read_nowait() or b""
    if takes_long(body):
        return await asyncio.to_thread(model_in_body, body, content_type, max_keys)
    return model_in_body(body, content_type, max_keys)


def _decoded(request: RequestContext) -> bytes | None:
    """Return a body that has arrived whole, or None if it has not, or cannot be decoded."""
    source = request.body_source
    if source.buffered_body is None:
        return None
    try:
        return source.read_nowait()
    except GatewayError:  # the backend judges it
        return None


def _model_too_late(max_body: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"the first {max_body} bytes of the body (server.max_body) do not say which model it is for: send a form whose "
        "field 'model' comes before the files"
    )


def takes_long(body: bytes) -> bool:
    """Return whether parsing a body would hold up the event loop."""
    return len(body) > LARGE_BODY or (len(body) > COUNTED_BODY and body.count(b":") > MANY_KEYS)


def parse_wholly(dialect: Dialect, path: str, body: bytes, headers: Mapping[str, str]) -> Call:
    """Parse a body, and derive all that a call otherwise derives at its first use: for another thread."""
    call = dialect.parse(path, body, headers)
    if call.uncached is None:
        call.decisive_source = call.decisive
    call.prompt_source = call.prompt
    return call


def apply_route(request: RequestContext, call: Call | None, route: Route, read: Reader | None = None) -> None:
    """Set the fields of the request that its route and its head decide. `read` is that of the route's features. Raise
    `BadRequest` if a budget or a priority is invalid."""
    request.route = route.name
    request.exposure = HIDDEN if not route.expose_headers else WITHOUT_TIMINGS if route.share == "global" else EXPOSED
    control = request.headers.get("cache-control")
    if control is not None:
        request.directives = parse_directives(control)
    if request.work.background:  # clients that wait go first; a job has no latency budget
        request.priority = Priority.LOW
        if call is not None and call.stream:
            call = replace(call, stream=False)  # no client reads it as it comes; a broken one is an error
    else:
        _apply_budget(request, route)
    if call is not None and request.query:
        call = call.dialect.with_query(call, request.query)
    if call is not None and read is not None:
        call = read(request, call)
    request.call = call
    if call is None:
        request.bypass = Bypass.PASS_THROUGH
    else:
        request.owner = owner_of(route.share, request.client.tenant, call.user)
        request.bypass = bypass_of(call.uncached, request.directives) if route.caches else Bypass.POLICY
        if route.caches and call.uncached is None and not request.directives.no_store:
            variant = route.generation
            for name in route.vary:
                if name in request.headers:
                    variant = variant_of(request.headers, route.vary, route.generation)
                    break
            request.keys = keys_of(request.owner, route.name, call, deciding_query(request, call), variant)


def deciding_query(request: RequestContext, call: Call) -> str:
    """Return the part of a query that decides the answer to a call. A key in it is the tenant's, if no header has one:
    then the owner of the answer covers it."""
    if call.query is None:
        return request.query
    shown = request.client.credentials
    in_query = bool(shown.names) and shown.names[0].startswith("?")
    return shown.rules.without_secrets(call.query) if in_query else call.query


def _apply_budget(request: RequestContext, route: Route) -> None:
    head = request.head
    if head.has_budget is None:
        head.has_budget = any(name in request.headers for name in BOUNDS)
    if head.has_budget:
        request.priority = priority_of(request.headers, route.priority, raised=route.client_priority)
        request.deadlines = budget_of(request.headers, route.latency_budget_s).deadlines(request.received)
        return
    request.priority = route.priority
    if route.latency_budget_s is not None:
        request.deadlines = Deadlines(request.received + route.latency_budget_s)
