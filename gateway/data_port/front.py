"""Exact hits that are in process memory, answered without reading the request again.

The very same bytes from the very same client were read, routed and answered a moment ago: as long as the policy is the
same object and the entry still lies in memory and is fresh, every decision would come out the same. Everything that
decides is in the key: path, all headers but those that only trace the request, body. Limits and observation hold here
as on the stages' path.

Measured (`make bench`, exact hit): docs/performance.md.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from gateway.access.permits import Permit
from gateway.bodies import Ready
from gateway.cache.directives import NONE
from gateway.cache.freshness import Lifetime, freshness_of
from gateway.cache.hits import provenance_of
from gateway.data_port.wire import Prebuilt, whole
from gateway.messages import Entry, EventStream, Request, Response, Verdict, Whole
from gateway.observing.observer import Observer
from gateway.observing.trace import Trace
from gateway.ports import Clock, Dialect, NearStore
from gateway.response_headers import answer_headers
from gateway.traffic.facts import Facts

MAX_KNOWN = 4096  # of some kB each, and what they refer to lies in the front store anyway
MAX_BODY = 64 * 1024  # longer requests cost more to hash than they save
# Of answers in a form that is not the stored one, which lie here alone: streams, and wholes put together from them.
MAX_FORMED_BYTES = 32 * 1024 * 1024
MAX_FORMED = 512 * 1024  # of one of them
# They differ from request to request and decide nothing.
TRACING = frozenset({b"x-request-id", b"traceparent", b"tracestate", b"baggage", b"x-stainless-retry-count"})


@dataclass(frozen=True, slots=True)
class _Known:
    """A request that ended in an exact hit, and its answer in the form in which it went out."""

    table: object
    entry: Entry
    lifetime: Lifetime
    dialect: Dialect
    route: str
    tenant: str
    expose_headers: bool
    facts: Facts | None
    headers: tuple[tuple[str, str], ...]
    body: bytes
    permit: Permit | None

    @property
    def formed(self) -> int:
        """Bytes that the store's own copy does not have."""
        return 0 if self.body is self.entry.payload[0] else len(self.body)


class Front:
    """`table` returns the policy in force; it is compared by identity. `holds`: whether a key is still as good as when
    it was looked at; where that is not known, the stages ask."""

    def __init__(
        self,
        store: NearStore,
        table: Callable[[], object],
        observer: Observer,
        clock: Clock,
        holds: Callable[[Permit], bool],
    ) -> None:
        self._holds = holds
        self._store = store
        self._table = table
        self._observer = observer
        self._clock = clock
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._formed_bytes = 0

    def key(self, http: web.BaseRequest, body: bytes) -> bytes | None:
        """Of a request and its whole body; None where this path does not apply."""
        if http.method != "POST" or len(body) > MAX_BODY:
            return None
        # No header can contain a line break, so the parts cannot run into each other.
        parts = [http.raw_path.encode("utf-8", "surrogateescape")]
        parts += [name + b":" + value for name, value in http.raw_headers if name.lower() not in TRACING]
        parts += [b"", body]
        return hashlib.sha256(b"\n".join(parts)).digest()

    def answer(self, http: web.BaseRequest, key: bytes, request_id: str, path: str) -> Prebuilt | web.Response | None:
        known = self._known.get(key)
        if known is None:
            return None
        received = self._clock.monotonic()
        entry = self._store.peek(known.entry.fingerprint)
        if known.table is not self._table() or entry is not known.entry:
            self._forget(key)
            return None
        if known.permit is not None and not self._holds(known.permit):
            return None
        freshness = freshness_of(entry, known.lifetime, NONE, self._clock.wall())
        if not freshness.fresh:
            return None
        trace = Trace(self._clock)
        trace.dialect, trace.route, trace.tenant = known.dialect, known.route, known.tenant
        trace.expose_headers, trace.facts, trace.permit = known.expose_headers, known.facts, known.permit
        provenance = provenance_of(entry, freshness, Verdict.EXACT)
        self._observer.begin(trace, http.headers)
        if trace.traced is not None:
            trace.traced.operation, trace.traced.model = entry.operation, entry.model
        trace.since("exact", received)
        self._observer.first_byte(received, trace)
        self._observer.over(
            request_id=request_id,
            method="POST",
            path=path,
            received=received,
            trace=trace,
            status=200,
            provenance=provenance,
        )
        return whole(http, 200, answer_headers(known.headers, request_id, trace, provenance), known.body)

    def learn(self, key: bytes, table: object, request: Request, response: Response) -> None:
        """Remembers a request that has just ended in an exact hit on the stages' path, under the policy `table`."""
        trace, served = request.trace, request.trace.served
        if served is None or trace.dialect is None:
            return
        if response.provenance.verdict is not Verdict.EXACT or request.headers.get("cache-control") is not None:
            return
        body = _bytes_of(response)
        if body is None:
            return
        entry, lifetime = served
        if body is not entry.payload[0] and len(body) > MAX_FORMED:
            return
        self._forget(key)
        known = self._known[key] = _Known(
            table=table,
            entry=entry,
            lifetime=lifetime,
            dialect=trace.dialect,
            route=trace.route,
            tenant=trace.tenant,
            expose_headers=trace.expose_headers,
            facts=trace.facts,
            headers=response.headers,
            body=body,
            permit=trace.permit,
        )
        self._formed_bytes += known.formed
        while len(self._known) > MAX_KNOWN or self._formed_bytes > MAX_FORMED_BYTES:
            self._forget(next(iter(self._known)))

    def _forget(self, key: bytes) -> None:
        known = self._known.pop(key, None)
        if known is not None:
            self._formed_bytes -= known.formed


def _bytes_of(response: Response) -> bytes | None:
    """What goes over the wire of an answer that is all there: a stream is one burst."""
    body = response.body
    if isinstance(body, Whole):
        return body.data
    if not isinstance(body, EventStream) or not isinstance(body.events, Ready):
        return None
    burst = b"".join(event.frame() for event in body.events.items)
    return burst if len(burst) <= MAX_FORMED else None
