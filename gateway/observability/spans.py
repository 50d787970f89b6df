"""Builds the spans of a request from its `TraceRecorder` when it is over.

Names and attributes follow OpenTelemetry's semantic conventions 1.44 for generative AI and HTTP; other attributes are
`nearhit.*`. They contain no credential, query string or error message, and prompts and answers only where the policy of
a route asks for them (`trace`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from gateway.context import RequestContext
from gateway.messages import Provenance
from gateway.tracing import BROKEN, Mark, TraceRecorder, UpstreamCall, new_span_id

Attribute = str | int | float | bool
MAX_TEXT = 128  # characters of a name that a client chose
# Values of gen_ai.operation.name; other operations keep the name of the dialect.
OPERATIONS = {
    "chat.completions": "chat",
    "messages": "chat",
    "responses": "chat",
    "completions": "text_completion",
    "generate": "text_completion",
    "generateContent": "generate_content",
}
SKIPPED_STEP = "upstream"  # the spans of its calls show this step


class Span(NamedTuple):
    """One span. Ids are hex, times are nanoseconds since 1970. `kind` is `server`, `consumer`, `client` or
    `internal`."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Attribute]
    failed: bool = False
    links: tuple[tuple[str, str], ...] = ()


class Root(NamedTuple):
    """A request as a whole. Times are monotonic seconds."""

    name: str
    started: float
    ended: float
    attributes: Mapping[str, Attribute]
    failed: bool


class FinishedRequest(NamedTuple):
    """The data of a request for export. `root` is None for work that went on after the response. `offset` is the wall
    clock minus the monotonic clock, in seconds."""

    traced: TraceRecorder
    root: Root | None
    marks: tuple[Mark, ...]
    calls: tuple[UpstreamCall, ...]
    offset: float

    @property
    def size(self) -> int:
        """The largest possible number of spans."""
        return len(self.marks) + len(self.calls) + (self.root is not None)


def root_of(
    request: RequestContext, traced: TraceRecorder, *, ended: float, status: int, provenance: Provenance | None
) -> Root:
    """Return the root of a request. `ended` is in seconds of the monotonic clock. A path that no dialect has is left
    out, since it may contain anything."""
    dialect = request.dialect
    found_attributes: dict[str, Any] = {
        "http.request.method": request.method,
        "http.response.status_code": status,
        "nearhit.request_id": request.id,
        "nearhit.upstream_request_id": request.upstream_request_id,
        "nearhit.route": request.route,
        "nearhit.tenant": request.client.tenant[:12],
        "nearhit.complexity": request.estimates.complexity,
        "nearhit.note": request.note,
        "nearhit.spans_lost": traced.lost or None,
    }
    if dialect is not None:
        found_attributes["url.path"], found_attributes["nearhit.dialect"] = request.path[:MAX_TEXT], dialect.name
    if traced.operation:
        found_attributes["gen_ai.operation.name"] = OPERATIONS.get(traced.operation, traced.operation)
        found_attributes["gen_ai.request.model"] = traced.model[:MAX_TEXT]
    if traced.texts:
        found_attributes |= traced.texts
    if provenance is not None:
        found_attributes |= _origin(provenance)
    failed = traced.failed(status)
    if failed:
        found_attributes["error.type"] = BROKEN if status < 500 else str((provenance and provenance.reason) or status)
    name = request.method if dialect is None else f"{request.method} {request.path[:MAX_TEXT]}"
    return Root(name, request.received, ended, _without_empty(found_attributes), failed)


def _origin(provenance: Provenance) -> dict[str, Any]:
    return {
        "nearhit.verdict": str(provenance.verdict),
        "nearhit.reason": provenance.reason and str(provenance.reason),
        "nearhit.backend": provenance.backend,
        "nearhit.tier": provenance.tier,
        "nearhit.similarity": provenance.similarity,
        "nearhit.age_seconds": provenance.age_s,
        "nearhit.saved_tokens": provenance.saved_tokens or None,
    }


def spans_of(finished: FinishedRequest) -> Iterator[Span]:
    """Yield the span of the request, then those of its steps and calls, which are its children."""
    traced, offset, root = finished.traced, finished.offset, finished.root

    def span(
        name: str,
        kind: str,
        times: tuple[float, float],
        attributes: Mapping[str, Attribute],
        span_id: str,
        parent_id: str,
        *,
        failed: bool = False,
        links: tuple[tuple[str, str], ...] = (),
    ) -> Span:
        start, end = int(1e9 * (times[0] + offset)), int(1e9 * (times[1] + offset))
        return Span(name, kind, traced.trace_id, span_id, parent_id, start, end, attributes, failed, links)

    own = traced.span_id
    if root is not None:
        parent, links = "" if traced.parent is None else traced.parent.span_id, tuple(traced.links)
        times = (root.started, root.ended)
        yield span(root.name, traced.kind, times, root.attributes, own, parent, failed=root.failed, links=links)
    for name, started, ended, purpose in finished.marks:
        if name != SKIPPED_STEP:
            stage_attributes: dict[str, Attribute] = {"nearhit.stage": name}
            if purpose:
                stage_attributes["nearhit.purpose"] = purpose
            yield span(name, "internal", (started, ended), stage_attributes, new_span_id(), own)
    for call in finished.calls:
        times = (call.started, call.started if call.ended is None else call.ended)
        failed = call.error not in ("", "cancelled") or (call.status or 0) >= 400
        yield span(_name(call), "client", times, call_attributes(call), call.span_id, own, failed=failed)


def call_attributes(call: UpstreamCall) -> dict[str, Attribute]:
    model_call = call.call
    found_attributes: dict[str, Any] = {
        "gen_ai.provider.name": call.provider,
        "gen_ai.operation.name": OPERATIONS.get(model_call.operation, model_call.operation)
        if model_call is not None
        else None,
        "gen_ai.request.model": call.model[:MAX_TEXT] or None,
        "http.response.status_code": call.status,
        "http.request.resend_count": call.attempt - 1 or None,
        "error.type": call.error or (str(call.status) if (call.status or 0) >= 400 else None),
        "nearhit.backend": call.backend,
        "nearhit.purpose": call.purpose or None,
    }
    address = urlsplit(call.address)
    if address.hostname:
        found_attributes["server.address"] = address.hostname
        found_attributes["server.port"] = address.port or {"https": 443, "http": 80}.get(address.scheme)
    if model_call is not None:
        found_attributes["gen_ai.request.stream"] = model_call.stream or None
        found_attributes["gen_ai.request.max_tokens"] = model_call.max_tokens
    if call.first is not None and call.streamed:
        found_attributes["gen_ai.response.time_to_first_chunk"] = call.first - call.started
    input_tokens, output_tokens = call.usage
    if input_tokens or output_tokens:  # 0: the answer reports none
        found_attributes["gen_ai.usage.input_tokens"], found_attributes["gen_ai.usage.output_tokens"] = (
            input_tokens,
            output_tokens,
        )
    return _without_empty(found_attributes)


def _name(call: UpstreamCall) -> str:
    if call.call is None:
        return call.backend
    return f"{OPERATIONS.get(call.call.operation, call.call.operation)} {call.model[:MAX_TEXT]}".rstrip()


def _without_empty(found_attributes: Mapping[str, Any]) -> dict[str, Attribute]:
    return {name: value for name, value in found_attributes.items() if value is not None and value != ""}
