"""Spans as OpenTelemetry's protocol has them (opentelemetry-proto, trace/v1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Status
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Encoded

from gateway.observing.spans import Attribute, Span

KINDS = {
    "internal": Encoded.SPAN_KIND_INTERNAL,
    "server": Encoded.SPAN_KIND_SERVER,
    "client": Encoded.SPAN_KIND_CLIENT,
    "consumer": Encoded.SPAN_KIND_CONSUMER,
}


def export_request(resource: Mapping[str, Attribute], spans: Iterable[Encoded]) -> bytes:
    """The body of `POST /v1/traces`."""
    scope = ScopeSpans(scope=InstrumentationScope(name="nearhit"), spans=spans)
    attributes = [_pair(name, value) for name, value in resource.items()]
    whole = ResourceSpans(resource=Resource(attributes=attributes), scope_spans=[scope])
    body: bytes = ExportTraceServiceRequest(resource_spans=[whole]).SerializeToString()
    return body


def encoded(span: Span) -> Encoded:
    return Encoded(
        trace_id=bytes.fromhex(span.trace_id),
        span_id=bytes.fromhex(span.span_id),
        parent_span_id=bytes.fromhex(span.parent_id),
        trace_state=span.state,
        name=span.name,
        kind=KINDS[span.kind],
        start_time_unix_nano=span.start_ns,
        end_time_unix_nano=span.end_ns,
        attributes=[
            _known(name, value) if isinstance(value, str) else _pair(name, value)
            for name, value in span.attributes.items()
        ],
        links=[Encoded.Link(trace_id=bytes.fromhex(trace), span_id=bytes.fromhex(own)) for trace, own in span.links],
        status=Status(code=Status.STATUS_CODE_ERROR) if span.failed else None,
    )


def _pair(name: str, value: Attribute) -> KeyValue:
    if isinstance(value, bool):
        return KeyValue(key=name, value=AnyValue(bool_value=value))
    if isinstance(value, int):
        return KeyValue(key=name, value=AnyValue(int_value=value))
    if isinstance(value, float):
        return KeyValue(key=name, value=AnyValue(double_value=value))
    return KeyValue(key=name, value=AnyValue(string_value=value))


@lru_cache(maxsize=1024)
def _known(name: str, value: str) -> KeyValue:
    """Routes, verdicts, backends, models: the same again and again."""
    return _pair(name, value)
