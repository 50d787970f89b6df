"""Exact hits, answered without reading the request again.

The very same bytes from the very same client were read, routed and answered a moment ago: as long as the policy is the
same object and the entry is still the same and fresh, every decision would come out the same. The key holds everything
that decides: the body, a digest of method, target and all headers but those that only trace the request, and of those
that trace it the ones that a route matches on. Limits and observation hold here as in the steps behind. The answer is
bytes: a head whose few changing values are filled in, and the body.

Measured (`make bench`, exact hit; `python -m bench.calls`): docs/performance.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from aiohttp.helpers import rfc822_formatted_time

from gateway.bounded_cache import BoundedCache
from gateway.cache.freshness import Freshness, freshness_of
from gateway.cache.hits import provenance_of
from gateway.context import Handler, RequestContext, resolve_response
from gateway.errors import StoreUnavailable
from gateway.messages import (
    NO_DIRECTIVES,
    Dialect,
    Entry,
    FullBody,
    Lifetime,
    Provenance,
    Response,
    TrafficFacts,
    Verdict,
)
from gateway.observability.access_log import RequestSeries
from gateway.observability.observer import CLIENT_CLOSED, Observer
from gateway.observability.response_headers import HeaderTemplate
from gateway.ports import Clock, NearbyStore
from gateway.principal import Principal
from gateway.steps.error_boundary import Inflight
from gateway.steps.parse_and_route import RouteTable

MAX_KNOWN = 4096
# Of requests, and of answers in a form that is not the stored one: streams, and wholes put together from them. What
# else they refer to lies in memory anyway.
MAX_BYTES = 32 * 1024 * 1024
MAX_BODY = 64 * 1024  # of a request: to hash one takes a tenth of the time to parse it
MAX_FORMED = 512 * 1024  # of an answer
NO_BODY = FullBody(b"")
# Fields of an entry that an answer shows. One that was fetched anew differs in `created`, to the microsecond.
_shown = attrgetter(
    "created", "upstream_s", "scope", "backend", "content_type", "input_tokens", "output_tokens", "cost_dollars"
)
STEPS = ["exact"]  # of a hit that took no others


@dataclass(slots=True)
class _CachedHit:
    """A request that ended in an exact hit, and its answer in the form in which it went out."""

    table: RouteTable
    entry: Entry
    lifetime: Lifetime  # that the policy holds it to
    dialect: Dialect
    tenant: str
    route: str
    permit: Principal | None
    facts: TrafficFacts | None
    series: RequestSeries
    provenance: Provenance
    headers: HeaderTemplate
    form: bytes  # of head and body
    body: bytes | None  # None: the entry's own, which does not lie in memory
    length: int  # of it, in bytes
    as_stored: bool  # the answer is what the store has, byte for byte
    size: int  # bytes that lie here alone

    def matches(self, entry: Entry) -> bool:
        """Whether this is the entry of the remembered answer, as far as the answer shows."""
        return _shown(entry) == _shown(self.entry) and not entry.streamed and len(entry.payload[0]) == self.length

    def without_body(self) -> _CachedHit:
        """Without what is large, for an entry that does not lie in memory."""
        return replace(self, entry=replace(self.entry, payload=(), question=None), body=None)

    def wire(self, request: RequestContext, body: bytes, freshness: Freshness, seconds: float) -> bytes:
        """A request's id has no line break."""
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
    """First of all steps. `table` returns the policy in force; it is compared by identity. `is_valid`: whether a key is
    still as good as when it was looked at; where that is not known, `Authenticate` asks. `inflight` None: the
    caller bounds what waits."""

    def __init__(
        self,
        inner: Handler,
        store: NearbyStore,
        table: Callable[[], RouteTable],
        observer: Observer,
        clock: Clock,
        is_valid: Callable[[Principal], bool],
        inflight: Inflight | None,
    ) -> None:
        self._inner = inner
        self._store = store
        self._table = table
        self._observer = observer
        self._start_trace = observer.start_trace
        self._clock = clock
        self._is_valid = is_valid
        self._inflight = inflight
        self._hits: BoundedCache[Hashable, _CachedHit] = BoundedCache(MAX_KNOWN, max_weight=MAX_BYTES, weigh=_size)
        self._seen_once: set[int] = (
            set()
        )  # hashes of requests that were hits once: one that comes again is worth a place

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        body = request.body_source.buffered_body
        if not request.head_digest or body is None or len(body) > MAX_BODY:
            return self._inner(request)
        key = self._key(request, body) if self._table().traced_matches else (request.head_digest, body)
        cached_hit = self._hits.get(key)
        if cached_hit is not None:
            answer = self._replay(request, key, cached_hit)
            if answer is not None:
                return answer
        request.on_written = self._remember
        return self._inner(request)

    def _key(self, request: RequestContext, body: bytes) -> Hashable:
        """What a route matches on and the digest leaves out is added."""
        extra = self._table().traced_matches
        return (request.head_digest, body, *[request.headers.get(name) for name in extra])

    def _replay(
        self, request: RequestContext, key: Hashable, cached_hit: _CachedHit
    ) -> Response | Awaitable[Response] | None:
        """None where the request has to be read."""
        if cached_hit.table is self._table():
            entry = self._store.peek(cached_hit.entry.fingerprint)
            if entry is cached_hit.entry and cached_hit.body is not None:
                return self._answer_hit(request, cached_hit, cached_hit.body)
            if entry is None and cached_hit.as_stored and not (self._inflight is not None and self._inflight.full):
                if cached_hit.body is not None:
                    cached_hit = cached_hit.without_body()
                    self._hits.put(key, cached_hit)
                return self._from_store(request, key, cached_hit)
        self._hits.pop(key)  # another policy; or it was fetched anew
        return None

    async def _from_store(self, request: RequestContext, key: Hashable, cached_hit: _CachedHit) -> Response:
        """From the store: its entry has made room for others."""
        try:
            entry = await self._store.get(cached_hit.entry.fingerprint)
        except StoreUnavailable:  # the steps find out, and say so
            entry = None
        except BaseException:
            if self._start_trace is not None:
                self._start_trace(request)
            request.dialect, request.route, request.tenant = cached_hit.dialect, cached_hit.route, cached_hit.tenant
            self._observer.on_end(request, CLIENT_CLOSED, None)
            raise
        if entry is None or cached_hit.table is not self._table() or not cached_hit.matches(entry):
            self._hits.pop(key)
        else:
            answer = self._answer_hit(request, cached_hit, entry.payload[0])
            if answer is not None:
                return answer
        request.on_written = self._remember
        return await resolve_response(self._inner(request))

    def _answer_hit(self, request: RequestContext, cached_hit: _CachedHit, body: bytes) -> Response | None:
        """None where it may not be served: the steps say why."""
        entry = cached_hit.entry
        if cached_hit.permit is not None and not self._is_valid(cached_hit.permit):
            return None
        freshness = freshness_of(entry, cached_hit.lifetime, NO_DIRECTIVES, self._clock.wall())
        if not freshness.fresh:
            return None
        request.dialect, request.route, request.tenant = cached_hit.dialect, cached_hit.route, cached_hit.tenant
        request.permit, request.facts = cached_hit.permit, cached_hit.facts
        if self._start_trace is not None:
            self._start_trace(request)
        seconds = request.since("exact", request.received) - request.received
        traced, provenance = request.traced, cached_hit.provenance
        if traced is not None:
            traced.operation, traced.model = entry.operation, entry.model
        if request.facts is not None or (traced is not None and self._observer.exports(request, 200, seconds)):
            provenance = provenance_of(entry, freshness, Verdict.EXACT)  # they tell of its age
        self._observer.whole(request, 200, provenance, cached_hit.series)
        return Response(200, (), NO_BODY, provenance, cached_hit.wire(request, body, freshness, seconds))

    # What becomes a hit

    def _remember(
        self, request: RequestContext, response: Response, headers: HeaderTemplate, form: bytes, data: bytes
    ) -> None:
        """Remembers a request with its second answer, if both were exact hits and nothing else. `form`: head and body
        as a format, which the headers' values, the body's length, the date and the body complete; `data`: the body."""
        provenance, body, served = response.provenance, request.body_source.buffered_body, request.served
        if provenance.verdict is not Verdict.EXACT or served is None or body is None:
            return
        entry, lifetime = served
        if [*request.timings] != STEPS or request.headers.get("cache-control") is not None:
            return
        as_stored, in_memory = data is entry.payload[0], self._store.peek(entry.fingerprint) is entry
        if not (as_stored or (in_memory and len(data) <= MAX_FORMED)) or self._is_first(request.head_digest, body):
            return
        assert request.dialect is not None
        cached_hit = _CachedHit(
            table=request.table,
            entry=entry,
            lifetime=lifetime,
            dialect=request.dialect,
            tenant=request.tenant,
            route=request.route,
            permit=request.permit,
            facts=request.facts,
            series=self._observer.series(request, 200, provenance),
            provenance=provenance,
            headers=headers,
            form=form,
            body=data,
            length=len(data),
            as_stored=as_stored,
            size=len(body) + (0 if as_stored else len(data)),
        )
        self._hits.put(self._key(request, body), cached_hit if in_memory else cached_hit.without_body())

    def _is_first(self, digest: bytes, body: bytes) -> bool:
        mark = hash((digest, body))
        if mark in self._seen_once:
            return False
        if len(self._seen_once) >= MAX_KNOWN:
            self._seen_once.clear()
        self._seen_once.add(mark)
        return True


def _size(cached_hit: _CachedHit) -> int:
    return cached_hit.size
