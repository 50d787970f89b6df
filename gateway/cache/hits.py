"""A stored entry as an answer. Pure."""

from __future__ import annotations

from gateway.body_streams import Ready
from gateway.cache.freshness import Freshness
from gateway.context import RequestContext
from gateway.messages import Entry, EventStream, Provenance, Response, Verdict, Whole


def answer_from(
    request: RequestContext, entry: Entry, freshness: Freshness, verdict: Verdict, similarity: float | None = None
) -> Response:
    """In the form in which it was stored; `Render` turns it into the one the client wants."""
    call = request.call
    if entry.streamed and call is not None:
        body: Whole | EventStream = EventStream(Ready(tuple(call.dialect.event(call, data) for data in entry.payload)))
    else:
        body = Whole(entry.payload[0])
    headers = (("Content-Type", entry.content_type),)
    return Response(200, headers, body, provenance_of(entry, freshness, verdict, similarity))


def provenance_of(entry: Entry, freshness: Freshness, verdict: Verdict, similarity: float | None = None) -> Provenance:
    """Where a hit came from, and what it did not cost."""
    return Provenance(
        verdict,
        similarity=similarity,
        age_s=freshness.age_s,
        ttl_s=freshness.ttl_s,
        backend=entry.backend,
        saved_tokens=entry.input_tokens + entry.output_tokens,
        saved_dollars=entry.cost_dollars,
        output_tokens=entry.output_tokens,
        fingerprint=entry.fingerprint,
        upstream_s=entry.upstream_s,
    )
