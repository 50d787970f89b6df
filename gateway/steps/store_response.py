"""Stores responses that may be stored, before the flight ends, so that the next request finds them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.bounded_cache import BoundedCache
from gateway.cache.admission import HitForMiss, UseCounts, admit_response, refuse_request, roles_of
from gateway.cache.freshness import longest_lifetime_s
from gateway.cache.index_additions import add_to_index, is_allowed
from gateway.cache.inflight_questions import build_entry
from gateway.cache.response_directives import ResponseDirectives, directives_of, forbidden_by
from gateway.cache.schema_checks import SchemaChecks, Validity
from gateway.cache.tool_calls import ToolCallRule, refuse_tool_calls
from gateway.calls import Call, Inspection
from gateway.config.policy.model import Route
from gateway.context import Handler, RequestContext
from gateway.dialects.sse import SSEParser
from gateway.dialects.structured_answers import FORM_FIELDS
from gateway.entries import Entry, Vector
from gateway.errors import StoreUnavailable, UpstreamStreamError
from gateway.messages import ByteStream, Event, EventStream, FullBody, Provenance, Response, media_type
from gateway.observability.telemetry import Telemetry
from gateway.outcomes import Admission, Bypass
from gateway.ports import Clock, NearbyStore, VectorIndex
from gateway.prices import UNPRICED, Tariff
from gateway.request_fields import InspectedAnswer
from gateway.streams import StreamObserver, with_observer
from gateway.tasks import spawn

if TYPE_CHECKING:  # absent without a route that compares questions
    from gateway.cache.late_vectors import LateVectors
    from gateway.cache.placement import Placement

LOG = logging.getLogger("nearhit.store")


# Writes that no client waits for, of one route. Beyond it clients wait for theirs.
MAX_WRITES_BEHIND = 1_024


class CacheWriter:
    """Puts entries into the store and the index. `stored` is called with every stored entry. `unstorable` has the
    fingerprints whose answers may not be stored; a stored entry removes its fingerprint from them. `late` adds the
    vector to entries that are stored before their question is embedded. It is None on a route without semantic lookups.

    With `behind` the store may be far away, so a client does not wait for it if memory has the entry. The next request
    to this gateway finds it there. Requests to other gateways wait for the lease, which the write ends."""

    def __init__(
        self,
        store: NearbyStore,
        index: VectorIndex | None,
        clock: Clock,
        telemetry: Telemetry,
        route: Route,
        unstorable: HitForMiss,
        stored: Callable[[RequestContext, Entry], None],
        late: LateVectors | None,
        *,
        behind: bool = False,
    ) -> None:
        self._behind = behind
        self._store = store
        self._index = index
        self._clock = clock
        self._telemetry = telemetry
        self._route = route.name
        self._unstorable = unstorable
        self._stored = stored
        self._late = late
        self._puts: set[asyncio.Task[bool]] = set()

    async def put(self, request: RequestContext, entry: Entry) -> bool:
        """Store an entry; return whether it can be found from now on."""
        vector = self._vector(request, entry)
        if self._is_banned(entry, vector):
            return False
        started = self._clock.monotonic()
        try:
            if self._behind and len(self._puts) < MAX_WRITES_BEHIND:
                return await self._write_behind(request, entry, vector)
            return await self._write(request, entry, vector)
        except asyncio.CancelledError:
            # The client has left. The store may have the entry while the index does not, so no lookup in other words
            # would find it. Storing it twice has the same result as storing it once.
            spawn(self._puts, self._write(request, entry, vector))
            raise
        finally:
            request.since("store", started)

    async def _write_behind(self, request: RequestContext, entry: Entry, vector: Vector | None) -> bool:
        """Send an entry to the store, and return once this gateway finds it."""
        write = spawn(self._puts, self._write(request, entry, vector, behind=True))
        await asyncio.sleep(0)  # it sends the entry, or fails at once
        is_resident = not write.done() and self._store.peek(entry.fingerprint) is not None
        if not is_resident and not await asyncio.shield(write):
            return False
        if vector is not None and self._index is not None and not self._index.shared:
            try:
                await self._index.add(entry.fingerprint, entry.scope, vector, entry.expires)
            except StoreUnavailable as error:
                self._record_failure(request, error)
                return False
        if request.lease is not None:
            request.lease.writing = write
        self._record_stored(request, entry)
        return True

    async def _write(
        self, request: RequestContext, entry: Entry, vector: Vector | None, *, behind: bool = False
    ) -> bool:
        """Write an entry to the store and the index. With `behind` the caller does what this gateway needs to find
        it."""
        lease = request.lease
        try:
            stored = await self._store.put(entry, vector, 0 if lease is None else lease.token)
            stored = stored and await self._is_allowed(entry, vector, behind=behind)
        except StoreUnavailable as error:
            self._record_failure(request, error)
            return False
        if stored and not behind:
            self._record_stored(request, entry)
        elif not stored and lease is not None and lease.token:
            self._telemetry.crowds.add("superseded")
        if stored and self._late is not None and _lacks_vector(request, entry):
            self._late.add(entry, request.owner)
        elif stored and self._late is not None and request.embedding is None and entry.question is not None:
            self._late.left(entry.fingerprint)  # the embedder failed a moment ago
        return stored

    async def _is_allowed(self, entry: Entry, vector: Vector | None, *, behind: bool) -> bool:
        """Add a stored entry to the index; return whether it may be found, as no ban came in between. With `behind`,
        an index of this process has it already."""
        if self._index is None or vector is None:
            return await is_allowed(self._store, entry, vector)
        indexed = behind and not self._index.shared
        return await add_to_index(self._store, self._index, entry, vector, indexed=indexed)

    def _record_failure(self, request: RequestContext, error: StoreUnavailable) -> None:
        self._telemetry.store_errors.add()
        fields = {**request.log_fields, "error": str(error)}
        self._telemetry.store_warnings.warn(LOG, "an answer was not stored", fields)

    def _record_stored(self, request: RequestContext, entry: Entry) -> None:
        request.stored = entry
        self._unstorable.discard(entry.fingerprint)
        self._stored(request, entry)

    def _vector(self, request: RequestContext, entry: Entry) -> Vector | None:
        """Return the vector for semantic lookups, or None if the entry is for exact lookups only, at least for now."""
        if self._late is None:
            return None
        if request.embedding is None:
            request.embedding = self._late.take(entry.fingerprint)
        embedding = request.embedding
        return None if embedding is None or embedding.partial else embedding.vector

    def _is_banned(self, entry: Entry, vector: Vector | None) -> bool:
        banned = self._store.banned(entry, vector, self._clock.monotonic() - entry.upstream_s)
        self._telemetry.admissions.add(self._route, Admission.PURGED if banned else Admission.STORED)
        return banned


def _lacks_vector(request: RequestContext, entry: Entry) -> bool:
    """Return whether an entry may get its vector later. An embedder that failed a moment ago is left alone."""
    return request.embedding is None and entry.question is not None and request.note is not Bypass.EMBEDDER


MAX_TAGS, MAX_TAG_LENGTH = 32, 128

MAX_PROVENANCES = 64


class StoreResponse:
    """Stores the answers of one route. `unstorable` receives the fingerprints of answers that may not be stored. Inputs
    of one request that no cache has go to the backend in one call: `request.work.batch` passes them on together.
    `placement` is None if answers do not say who may share them."""

    def __init__(
        self,
        inner: Handler,
        writer: CacheWriter,
        clock: Clock,
        telemetry: Telemetry,
        route: Route,
        *,
        max_entry: int,
        prices: Mapping[str, Tariff],
        unstorable: HitForMiss,
        frequency: UseCounts,
        schemas: SchemaChecks,
        placement: Placement | None = None,
    ) -> None:
        self._inner = inner
        self._schemas = schemas
        self._writer = writer
        self._clock = clock
        self._telemetry = telemetry
        self._route = route
        self._rules = route.admission
        self._tools = route.of(ToolCallRule)
        self._max_entry = min(max_entry, route.admission.max_size or max_entry)
        self._prices = prices
        self._unstorable = unstorable
        self._frequency = frequency
        self._placement = placement
        self._lifetime_s = longest_lifetime_s(route)
        # Whether admission depends on the request; usually it does not.
        self._checks_request = route.admission.max_temperature is not None or route.admission.roles is not None
        self._stored: BoundedCache[int, tuple[Provenance, Provenance]] = BoundedCache(MAX_PROVENANCES)

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        call = request.call
        if call is None or not request.keys.fingerprint:
            return self._inner(request)
        started = self._clock.monotonic()
        answer = self._inner(request) if request.work.batch is None else request.work.batch.join(request, self._inner)
        return self._store_later(request, call, answer, started)

    async def _store_later(
        self, request: RequestContext, call: Call, answer: Response | Awaitable[Response], started: float
    ) -> Response:
        response = answer if isinstance(answer, Response) else await answer
        if call.dialect.relays and (response.status != 200 or isinstance(response.body, ByteStream)):
            # It is addressed to one client, so those that wait for the same answer make their own calls.
            response = replace(response, provenance=response.provenance.as_exclusive())
        if request.client.read_only:
            self._count(Admission.READ_ONLY)
            return response
        if response.status != 200:
            self._refuse(request, Admission.ERROR_STATUS)
            return response
        directives, body = directives_of(response.headers), response.body
        limited = directives.no_store or directives.private or directives.vary
        if limited and (forbidden := forbidden_by(directives, self._route, request)) is not None:
            self._refuse(request, forbidden)
            return Response(response.status, response.headers, body, response.provenance.as_exclusive())
        if not self._is_cacheable(request, call):
            return response
        if isinstance(body, FullBody):
            entry = self._make_entry(
                request, call, directives, (body.data,), response.provenance, started, streamed=False
            )
            if entry is None or (not FORM_FIELDS.isdisjoint(call.body) and await self._is_misfit(request, call, entry)):
                return response
            if not await self._writer.put(request, entry):
                return response
        elif isinstance(body, EventStream):
            recording = self._stream_recorder(request, call, directives, response.provenance, started)
            # Whether the stream is stored is known at its end, long after its head.
            return Response(
                response.status,
                response.headers,
                EventStream(with_observer(body.events, StreamObserver(*recording))),
                response.provenance,
            )
        elif isinstance(body, ByteStream) and call.dialect.relays:
            relayed = self._relay_recorder(request, call, directives, response.provenance, started)
            return replace(response, body=ByteStream(with_observer(body.chunks, relayed)))
        else:
            is_stream = media_type(response.content_type) == "text/event-stream"
            self._refuse(request, Admission.MALFORMED if is_stream else Admission.TOO_LARGE)
            return response
        return Response(response.status, response.headers, body, self._as_stored(response.provenance))

    def _as_stored(self, provenance: Provenance) -> Provenance:
        """Return the provenance with `stored` set. It is cached, since `Dispatch` shares one object among answers."""
        cached = self._stored.get(id(provenance))
        if cached is None or cached[0] is not provenance:
            cached = provenance, provenance.as_stored()
            self._stored.put(id(provenance), cached)
        return cached[1]

    def _is_cacheable(self, request: RequestContext, call: Call) -> bool:
        """Return whether the policy admits this request and a question this frequent."""
        reason = (
            refuse_request(self._rules, call.settings.get("temperature"), roles_of(call))
            if self._checks_request
            else None
        )
        if reason is not None:
            self._refuse(request, reason)
            return False
        if self._rules.after == 1 or request.directives.no_cache:  # `no-cache` replaces the stored answer
            return True
        is_frequent = self._frequency.add(request.keys.fingerprint) >= self._rules.after
        if not is_frequent:
            self._count(Admission.RARE)  # not `unstorable`: the next one may be stored
        return is_frequent

    def _stream_recorder(
        self, request: RequestContext, call: Call, directives: ResponseDirectives, origin: Provenance, started: float
    ) -> tuple[Callable[[Sequence[Event]], Sequence[Event]], Callable[[], Awaitable[None]]]:
        """Return two functions of an observer. The first keeps events up to `max_entry` bytes, the second stores them
        at the end of the stream."""
        payload: list[bytes] = []
        size = 0

        def on_items(events: Sequence[Event]) -> Sequence[Event]:
            nonlocal size
            for event in events:
                size += len(event.data)
                if size <= self._max_entry:
                    payload.append(event.data)
                elif size - len(event.data) <= self._max_entry:  # refused now: followers need not wait for its end
                    payload.clear()
                    self._refuse(request, Admission.TOO_LARGE)
            return events

        async def on_complete() -> None:
            if size <= self._max_entry:
                entry = self._make_entry(request, call, directives, tuple(payload), origin, started, streamed=True)
                if entry is None or (
                    not FORM_FIELDS.isdisjoint(call.body) and await self._is_misfit(request, call, entry)
                ):
                    return
                await self._writer.put(request, entry)

        return on_items, on_complete

    def _relay_recorder(
        self, request: RequestContext, call: Call, directives: ResponseDirectives, origin: Provenance, started: float
    ) -> StreamObserver[bytes]:
        """Return an observer that reads the events of a stream which is relayed byte for byte, and stores them."""
        record, store = self._stream_recorder(request, call, directives, origin, started)
        parser, readable = SSEParser(self._max_entry), True

        def on_items(chunks: Sequence[bytes]) -> Sequence[bytes]:
            nonlocal readable
            try:
                for chunk in chunks if readable else ():
                    record(parser.feed(chunk))
            except UpstreamStreamError:  # an event that is too large to be stored
                readable = False
                self._refuse(request, Admission.TOO_LARGE)
            return chunks

        async def on_complete() -> None:
            if readable:
                record(parser.close())
                await store()

        return StreamObserver(on_items, on_complete)

    def _make_entry(
        self,
        request: RequestContext,
        call: Call,
        directives: ResponseDirectives,
        payload: tuple[bytes, ...],
        origin: Provenance,
        started: float,
        *,
        streamed: bool,
    ) -> Entry | None:
        """Return the entry for a complete answer, or None if the rules refuse it. `started` is the monotonic time
        before the backend call."""
        inspection = call.dialect.inspect(call, payload, streamed)
        dollars, size = self._cost(request, origin, inspection), sum(map(len, payload))
        seconds = self._clock.monotonic() - started
        if request.traffic is not None:
            request.traffic.inspected = InspectedAnswer(inspection, dollars, size, seconds)
        tools = self._tools is not None
        admission = admit_response(self._rules, inspection, dollars, size, self._max_entry, tools=tools)
        if admission is Admission.STORED and inspection.admission is Admission.TOOLS:
            admission = refuse_tool_calls(self._tools, call, payload, streamed) or admission
        now, keys, lifetime_s = self._clock.wall(), None, self._lifetime_s
        if admission is Admission.STORED and self._placement is not None and self._placement.applies(request):
            private = directives.private or any(map(request.client.credentials.rules.sign_of, directives.vary))
            placed = self._placement.place(request, call, inspection, private=private, request_time=now - seconds)
            admission, lifetime_s, keys = placed.admission, min(lifetime_s, placed.ttl_s), placed.keys
        if admission is not Admission.STORED:
            self._refuse(request, admission)
            return None
        tags = request.headers.get("cache-tag")
        entry = build_entry(
            request,
            streamed=streamed,
            payload=payload,
            content_type=directives.content_type,
            created=now,
            expires=now + lifetime_s,
            backend=origin.backend or "",
            input_tokens=inspection.input_tokens,
            output_tokens=inspection.output_tokens,
            cost_dollars=dollars,
            upstream_s=seconds,
            # The backend's tags come first, so that a client cannot push them out of the bound.
            tags=() if tags is None and not directives.tags else tags_of(*directives.tags, tags),
        )
        return entry if keys is None else replace(entry, scope=keys.scope, fingerprint=keys.fingerprint)

    async def _is_misfit(self, request: RequestContext, call: Call, entry: Entry) -> bool:
        """Return whether an answer fails the schema of its request. Then it is not stored."""
        fit = await self._schemas.fit(request.route, call, entry.payload, entry.streamed)
        if fit is Validity.INVALID:
            self._refuse(request, Admission.SCHEMA)
        return fit is Validity.INVALID

    def _cost(self, request: RequestContext, origin: Provenance, inspection: Inspection) -> float:
        """Return the cost in dollars of all calls that were made for the answer."""
        price = self._prices.get(origin.backend or "", UNPRICED).price(request.model)
        dollars = price.of_answer(request.path, inspection.tokens, *(inspection.billed or ()))
        for usage in origin.other_usage:
            dollars += self._prices.get(usage.backend, UNPRICED).price(request.model).of(*usage.tokens)
        return dollars

    def _refuse(self, request: RequestContext, admission: Admission) -> None:
        self._unstorable.add(request.keys.fingerprint)
        self._count(admission)

    def _count(self, admission: Admission) -> None:
        self._telemetry.admissions.add(self._route.name, admission)


def tags_of(*headers: str | None) -> tuple[str, ...]:
    """Return the tags of `Cache-Tag` headers, at most `MAX_TAGS`; longer tags than `MAX_TAG_LENGTH` are dropped."""
    tags: list[str] = []
    for header in headers:
        if header:
            tags += [tag.strip() for tag in header.split(",")]
    if not tags:
        return ()
    return tuple(dict.fromkeys(tag for tag in tags if 0 < len(tag) <= MAX_TAG_LENGTH))[:MAX_TAGS]
