"""Answers exact hits without parsing the request again.

When a client repeats the same bytes, every decision is the same again. That is true as long as the policy is the same
object and the entry is unchanged and fresh. The key contains everything that decides: the body, and a digest of method,
target and headers. The digest leaves out headers that only trace a request; those that a route matches on are added to
the key. Limits and observation work as in the later steps. The answer is bytes: a head with a few values to fill in,
and the body.

Measurements (`make bench`, exact hit; `python -m bench.calls`): docs/performance.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any

from aiohttp.helpers import rfc822_formatted_time

from gateway.bounded_cache import BoundedCache
from gateway.cache.freshness import Freshness, freshness_of
from gateway.cache.hits import provenance_of
from gateway.calls import Dialect
from gateway.containment import StepFailures
from gateway.context import Handler, RequestContext, resolve_response
from gateway.entries import NO_DIRECTIVES, Entry, Lifetime
from gateway.errors import StoreUnavailable
from gateway.messages import FullBody, Provenance, Response
from gateway.observability.access_log import RequestSeries
from gateway.observability.observer import CLIENT_CLOSED, Observer
from gateway.observability.response_headers import HeaderTemplate
from gateway.outcomes import Verdict
from gateway.ports import Clock, NearbyStore
from gateway.principal import Principal
from gateway.request_fields import Client, TrafficNotes
from gateway.scores import TrafficFacts
from gateway.steps.error_boundary import Inflight
from gateway.steps.parse_and_route import RouteTable

MAX_KNOWN = 4096
# Bytes of request bodies, and of answers in another form than the stored one: streams, and whole answers that were
# assembled from streams. Everything else that they refer to is in memory anyway.
MAX_BYTES = 32 * 1024 * 1024
MAX_BODY = 64 * 1024  # bytes of a request: hashing takes a tenth of the time of parsing
MAX_FORMED = 512 * 1024  # bytes of an answer in another form than the stored one
NO_BODY = FullBody(b"")
# Fields of an entry that an answer shows. An entry that was fetched again differs in `created`, to the microsecond.
_shown = attrgetter(
    "created", "upstream_s", "scope", "backend", "content_type", "input_tokens", "output_tokens", "cost_dollars"
)
NAME = "ExactFastPath"  # in `nearhit_step_failures_total`
STEPS = ["exact"]  # timings of a hit that took no other step


@dataclass(slots=True)
class _CachedHit:
    """A request that ended in an exact hit, and its answer in the form in which it went out."""

    table: RouteTable
    entry: Entry
    lifetime: Lifetime  # of the entry, under the policy
    dialect: Dialect
    client: Client
    route: str
    facts: TrafficFacts | None
    series: RequestSeries
    provenance: Provenance
    headers: HeaderTemplate
    form: bytes  # %-format of head and body
    body: bytes | None  # None if it is the entry's own body and the entry is not in memory
    length: int  # bytes of the body
    as_stored: bool  # the body is the stored one, byte for byte
    size: int  # bytes that only this cache refers to

    def matches(self, entry: Entry) -> bool:
        """Return whether `entry` equals the entry of the remembered answer in every field that the answer shows."""
        return _shown(entry) == _shown(self.entry) and not entry.streamed and len(entry.payload[0]) == self.length

    def without_body(self) -> _CachedHit:
        """Return a copy without the large parts, for an entry that is not in memory."""
        return replace(self, entry=replace(self.entry, payload=(), question=None), body=None)

    def wire(self, request: RequestContext, body: bytes, freshness: Freshness, seconds: float) -> bytes:
        """Return the bytes of the response. A request id has no line break, so it adds no header."""
        headers, date = self.headers, rfc822_formatted_time().encode()
        identity = request.id.encode()
        if headers.ids == 1 and headers.times:
            return self.form % (identity, freshness.ttl_s, freshness.age_s, 1e3 * seconds, len(body), date, body)
        values: list[Any] = [identity] * headers.ids
        if headers.explains:
            values += (freshness.ttl_s, freshness.age_s)
            if headers.times:
                values.append(1e3 * seconds)
        return self.form % (*values, len(body), date, body)


class ExactFastPath:
    """The first step of all. `table` returns the policy in force, which is compared by identity. `is_valid` tells
    whether a key is still known to be valid; if not, `Authenticate` looks it up. Without `inflight` the caller bounds
    the requests that wait. It contains its own failures, since a guard would cost each hit a call."""

    def __init__(
        self,
        inner: Handler,
        store: NearbyStore,
        table: Callable[[], RouteTable],
        observer: Observer,
        clock: Clock,
        is_valid: Callable[[Principal], bool],
        inflight: Inflight | None,
        failures: StepFailures,
    ) -> None:
        self._inner = inner
        self._failures = failures
        self._store = store
        self._table = table
        self._observer = observer
        self._start_trace = observer.start_trace
        self._clock = clock
        self._is_valid = is_valid
        self._inflight = inflight
        self._hits: BoundedCache[Hashable, _CachedHit] = BoundedCache(MAX_KNOWN, max_weight=MAX_BYTES, weigh=_size)
        self._seen_once: set[int] = set()  # hashes of requests that were a hit once: the second hit is remembered

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        body = request.body_source.buffered_body
        if not request.head.digest or body is None or len(body) > MAX_BODY:
            return self._inner(request)
        table = self._table()
        try:
            key = _key(table, request, body) if table.traced_matches else (request.head.digest, body)
            cached_hit = self._hits.get(key)
            if cached_hit is not None:
                answer = self._replay(request, table, key, cached_hit)
                if answer is not None:
                    return answer
        except Exception as error:
            self._failures.record(NAME, error)
        request.on_written = partial(self._remember, table)
        return self._inner(request)

    def _replay(
        self, request: RequestContext, table: RouteTable, key: Hashable, cached_hit: _CachedHit
    ) -> Response | Awaitable[Response] | None:
        """Return None if the request has to be parsed."""
        if cached_hit.table is table:
            entry = self._store.peek(cached_hit.entry.fingerprint)
            if entry is cached_hit.entry and cached_hit.body is not None:
                return self._answer_hit(request, cached_hit, cached_hit.body)
            if entry is None and cached_hit.as_stored and not (self._inflight is not None and self._inflight.full):
                if cached_hit.body is not None:
                    cached_hit = cached_hit.without_body()
                    self._hits.put(key, cached_hit)
                return self._from_store(request, table, key, cached_hit)
        self._hits.pop(key)  # another policy, or the entry was fetched again
        return None

    async def _from_store(
        self, request: RequestContext, table: RouteTable, key: Hashable, cached_hit: _CachedHit
    ) -> Response:
        """Answer from the store: the entry was evicted from memory."""
        try:
            entry = await self._store.get(cached_hit.entry.fingerprint)
        except StoreUnavailable:  # the later steps meet the error and report it
            entry = None
        except Exception as error:
            self._failures.record(NAME, error)
            entry = None
        except BaseException:
            if self._start_trace is not None:
                self._start_trace(request)
            request.dialect, request.route, request.client = cached_hit.dialect, cached_hit.route, cached_hit.client
            self._observer.on_end(request, CLIENT_CLOSED, None)
            raise
        if entry is None or cached_hit.table is not self._table() or not cached_hit.matches(entry):
            self._hits.pop(key)
        else:
            try:
                answer = self._answer_hit(request, cached_hit, entry.payload[0])
            except Exception as error:
                self._failures.record(NAME, error)
                answer = None
            if answer is not None:
                return answer
        request.on_written = partial(self._remember, table)
        return await resolve_response(self._inner(request))

    def _answer_hit(self, request: RequestContext, cached_hit: _CachedHit, body: bytes) -> Response | None:
        """Return None if the hit may not be served: the later steps then report why."""
        entry = cached_hit.entry
        permit = cached_hit.client.permit
        if permit is not None and not self._is_valid(permit):
            return None
        freshness = freshness_of(entry, cached_hit.lifetime, NO_DIRECTIVES, self._clock.wall())
        if not freshness.fresh:
            return None
        request.dialect, request.route, request.client = cached_hit.dialect, cached_hit.route, cached_hit.client
        request.model = entry.model
        if cached_hit.facts is not None:
            request.traffic = TrafficNotes(cached_hit.facts)
        if self._start_trace is not None:
            self._start_trace(request)
        seconds = request.since("exact", request.received) - request.received
        traced, provenance = request.traced, cached_hit.provenance
        if traced is not None:
            traced.operation, traced.model = entry.operation, entry.model
        if request.traffic is not None or (traced is not None and self._observer.exports(request, 200, seconds)):
            provenance = provenance_of(entry, freshness, Verdict.EXACT)  # the traffic log and the trace show its age
        self._observer.whole(request, 200, provenance, cached_hit.series)
        return Response(200, (), NO_BODY, provenance, cached_hit.wire(request, body, freshness, seconds))

    # Remember hits

    def _remember(
        self,
        table: RouteTable,
        request: RequestContext,
        response: Response,
        headers: HeaderTemplate,
        form: bytes,
        data: bytes,
    ) -> None:
        """Remember a request with its second answer, if both were exact hits and took no other step. `form` is a format
        for the values of the headers, the length of the body, the date and the body. `data` is the body. `table` was in
        force when the request came. If the request met a later one, nothing is found under the former."""
        try:
            self._remember_hit(table, request, response, headers, form, data)
        except Exception as error:
            self._failures.record(NAME, error)

    def _remember_hit(
        self,
        table: RouteTable,
        request: RequestContext,
        response: Response,
        headers: HeaderTemplate,
        form: bytes,
        data: bytes,
    ) -> None:
        provenance, body, served = response.provenance, request.body_source.buffered_body, request.served
        if provenance.verdict is not Verdict.EXACT or served is None or body is None:
            return
        entry, lifetime = served
        if [*request.timings] != STEPS or request.headers.get("cache-control") is not None:
            return
        as_stored, in_memory = data is entry.payload[0], self._store.peek(entry.fingerprint) is entry
        if not (as_stored or (in_memory and len(data) <= MAX_FORMED)) or self._is_first(request.head.digest, body):
            return
        assert request.dialect is not None
        cached_hit = _CachedHit(
            table=table,
            entry=entry,
            lifetime=lifetime,
            dialect=request.dialect,
            client=request.client,
            route=request.route,
            facts=None if request.traffic is None else request.traffic.facts,
            series=self._observer.series(request, 200, provenance),
            provenance=provenance,
            headers=headers,
            form=form,
            body=data,
            length=len(data),
            as_stored=as_stored,
            size=len(body) + (0 if as_stored else len(data)),
        )
        self._hits.put(_key(table, request, body), cached_hit if in_memory else cached_hit.without_body())

    def _is_first(self, digest: bytes, body: bytes) -> bool:
        mark = hash((digest, body))
        if mark in self._seen_once:
            return False
        if len(self._seen_once) >= MAX_KNOWN:
            self._seen_once.clear()
        self._seen_once.add(mark)
        return True


def _key(table: RouteTable, request: RequestContext, body: bytes) -> Hashable:
    """Return the key with the headers that a route matches on and the digest leaves out."""
    return (request.head.digest, body, *[request.headers.get(name) for name in table.traced_matches])


def _size(cached_hit: _CachedHit) -> int:
    return cached_hit.size
