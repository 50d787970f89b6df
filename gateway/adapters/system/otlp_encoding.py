"""Spans as OpenTelemetry's protocol has them (opentelemetry-proto, trace/v1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Status
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Encoded

from gateway.observability.spans import Attribute, Span

KINDS = {
    "internal": Encoded.SPAN_KIND_INTERNAL,
    "server": Encoded.SPAN_KIND_SERVER,
    "client": Encoded.SPAN_KIND_CLIENT,
    "consumer": Encoded.SPAN_KIND_CONSUMER,
}

VARY = frozenset({"nearhit.request_id"})  # from span to span: not worth to be kept


def export_request(resource: Mapping[str, Attribute], spans: Sequence[bytes]) -> bytes:
    """The body of `POST /v1/traces`. `spans`: see `encoded`."""
    attributes = [_pair(name, value) for name, value in resource.items()]
    of: bytes = ResourceSpans(resource=Resource(attributes=attributes)).SerializeToString()
    scope: bytes = ScopeSpans(scope=InstrumentationScope(name="nearhit")).SerializeToString()
    scope += b"".join(_framed(ScopeSpans.SPANS_FIELD_NUMBER, span) for span in spans)
    of += _framed(ResourceSpans.SCOPE_SPANS_FIELD_NUMBER, scope)
    return _framed(ExportTraceServiceRequest.RESOURCE_SPANS_FIELD_NUMBER, of)


def encoded(span: Span) -> bytes:
    """Attributes are the most of it, and the same again and again: their bytes are kept. Messages one after the other
    are one message, with all that is repeated in them (protobuf.dev/programming-guides/encoding)."""
    head: bytes = Encoded(
        trace_id=bytes.fromhex(span.trace_id),
        span_id=bytes.fromhex(span.span_id),
        parent_span_id=bytes.fromhex(span.parent_id),
        trace_state=span.state,
        name=span.name,
        kind=KINDS[span.kind],
        start_time_unix_nano=span.start_ns,
        end_time_unix_nano=span.end_ns,
        links=[Encoded.Link(trace_id=bytes.fromhex(trace), span_id=bytes.fromhex(own)) for trace, own in span.links],
        status=Status(code=Status.STATUS_CODE_ERROR) if span.failed else None,
    ).SerializeToString()
    said = [
        (_attribute if name in VARY or isinstance(value, float) else _kept)(name, value)
        for name, value in span.attributes.items()
    ]
    return head + b"".join(said)


def _framed(field: int, message: bytes) -> bytes:
    """`message` as a field of another one: tag and length as varints (protobuf.dev/programming-guides/encoding)."""
    head = bytearray([field << 3 | 2])  # 2: with its length before it; fields up to 15 have a tag of one byte
    length = len(message)
    while length > 127:
        head.append(length & 127 | 128)
        length >>= 7
    head.append(length)
    return bytes(head) + message


def _pair(name: str, value: Attribute) -> KeyValue:
    if isinstance(value, bool):
        return KeyValue(key=name, value=AnyValue(bool_value=value))
    if isinstance(value, int):
        return KeyValue(key=name, value=AnyValue(int_value=value))
    if isinstance(value, float):
        return KeyValue(key=name, value=AnyValue(double_value=value))
    return KeyValue(key=name, value=AnyValue(string_value=value))


def _attribute(name: str, value: Attribute) -> bytes:
    """A span with this attribute and nothing else."""
    alone: bytes = Encoded(attributes=[_pair(name, value)]).SerializeToString()
    return alone


_kept = lru_cache(maxsize=2048, typed=True)(_attribute)
