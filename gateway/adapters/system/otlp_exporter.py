"""Sends spans with OpenTelemetry's exporter, in a separate thread. The event loop hands over finished spans and never
waits."""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceState

from gateway.observability.json_logging import RateLimitedLog
from gateway.observability.spans import Attribute, FinishedRequest, Span, spans_of
from gateway.observability.telemetry import Telemetry

LOG = logging.getLogger("nearhit.traces")
PATH = "/v1/traces"
BATCH = 128  # maximum number of spans in one request, unless one record has more
FLUSH_INTERVAL_S = 1.0  # how long a span waits at most for others
RETRY_STATUSES = frozenset({429, 502, 503, 504})  # statuses after which OTLP requires a retry
# While the thread builds spans and messages it holds the GIL; after this many spans it yields to other threads.
YIELD_EVERY, YIELD_S = 8, 0.0002
CLOSE_TIMEOUT_S = 2.0  # limit for sending queued spans when the gateway stops

SCOPE = InstrumentationScope("nearhit")
FAILED, UNSET = Status(StatusCode.ERROR), Status()


@dataclass(frozen=True, slots=True)
class SpanReceiver:
    """The receiver of spans. `url` is its base URL or ends in /v1/traces; `timeout_s` covers one batch with all
    attempts."""

    url: str
    headers: Mapping[str, str]
    timeout_s: float


class SpanBatch(list[ReadableSpan]):
    """A list of spans whose iteration yields to other threads now and then: the SDK's encoder takes 44 us per span."""

    def __iter__(self) -> Iterator[ReadableSpan]:
        for taken, span in enumerate(super().__iter__()):
            if taken % YIELD_EVERY == 0:
                time.sleep(YIELD_S)
            yield span


class OtlpExporter:
    """`OtlpExporter` sends spans. `resource` describes their origin. If more than `max_spans` would wait, new spans are
    dropped and counted."""

    def __init__(
        self, receiver: SpanReceiver, resource: Mapping[str, Attribute], max_spans: int, telemetry: Telemetry
    ) -> None:
        self._endpoint = receiver.url
        self._resource = Resource(resource)
        self._max_spans = max_spans
        self._telemetry = telemetry
        self._log = RateLimitedLog()
        self._status: int | None = None  # of the last response
        self._exporter = self._create_exporter(receiver)
        self._queue: deque[FinishedRequest] = deque()
        self._offered = self._taken = 0  # numbers of spans, each written by only one thread
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nearhit-traces", daemon=True)
        self._thread.start()

    def offer(self, finished: FinishedRequest) -> None:
        """Queue a finished request's spans, from the event loop."""
        waiting, size = self._offered - self._taken, finished.size
        if waiting + size > self._max_spans or self._closing.is_set():
            self._count("queue-full", size)
            return
        self._offered += size
        self._queue.append(finished)
        if waiting < BATCH <= waiting + size:
            self._wake.set()

    def close(self) -> None:
        """Send queued spans within `CLOSE_TIMEOUT_S`. Blocks: call it in a thread."""
        self._closing.set()
        self._wake.set()
        self._thread.join(CLOSE_TIMEOUT_S)
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _create_exporter(self, receiver: SpanReceiver) -> OTLPSpanExporter:
        session = requests.Session()
        session.trust_env = False  # no proxy and no password from the environment, as with all other clients
        session.hooks["response"].append(self._on_response)
        url = receiver.url.rstrip("/")
        authorities = ssl.get_default_verify_paths()  # the system's certificates, or the library's if there are none
        return OTLPSpanExporter(
            endpoint=url if url.endswith(PATH) else url + PATH,
            certificate_file=authorities.cafile or authorities.capath,
            headers=receiver.headers,
            timeout=receiver.timeout_s,
            session=session,
        )

    def _on_response(self, answer: requests.Response, *_: object, **__: object) -> None:
        self._status = answer.status_code

    def _run(self) -> None:
        while not self._closing.is_set():
            full = self._wake.wait(FLUSH_INTERVAL_S)
            self._wake.clear()
            self._drain(BATCH if full else 1)
        self._drain(1)

    def _drain(self, minimum: int) -> None:
        """Send while at least `minimum` spans wait. A request alone takes 1.5 ms of CPU, so spans are batched."""
        while self._offered - self._taken >= minimum:
            spans = self._batch()
            self._status = None
            self._exporter.export(spans)
            self._count_outcome(len(spans))

    def _batch(self) -> SpanBatch:
        spans, taken = SpanBatch(), 0
        while self._queue and len(spans) < BATCH:
            finished = self._queue.popleft()
            spans += to_readable_spans(finished, self._resource)
            self._taken += finished.size
            taken += 1
            if taken % YIELD_EVERY == 0:
                time.sleep(YIELD_S)
        return spans

    def _count_outcome(self, spans: int) -> None:
        """Count the outcome of the last response. The exporter itself does not distinguish a refusal from a failure."""
        status = self._status
        if status is not None and status < 300:
            self._count("exported", spans)
            return
        self._count("failed" if status is None or status in RETRY_STATUSES else "refused", spans)
        why = "it does not answer" if status is None else f"it answers {status}"
        fields = {"endpoint": self._endpoint, "error": why}
        self._log.warn(LOG, "the receiver of traces does not accept spans (telemetry.traces.endpoint)", fields)

    def _count(self, outcome: str, spans: int) -> None:
        self._telemetry.spans.add(outcome, amount=spans)


def to_readable_spans(finished: FinishedRequest, resource: Resource) -> Iterator[ReadableSpan]:
    """Yield the spans of a request as SDK objects."""
    parent = finished.traced.parent
    state = TraceState.from_header([parent.state]) if parent is not None and parent.state else None
    for span in spans_of(finished):
        yield ReadableSpan(
            span.name,
            SpanContext(int(span.trace_id, 16), int(span.span_id, 16), is_remote=False, trace_state=state),
            _parent_of(span),
            resource,
            span.attributes,
            links=[Link(SpanContext(int(trace, 16), int(own, 16), is_remote=False)) for trace, own in span.links],
            kind=SpanKind[span.kind.upper()],
            status=FAILED if span.failed else UNSET,
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=SCOPE,
        )


def _parent_of(span: Span) -> SpanContext | None:
    if not span.parent_id:
        return None
    return SpanContext(int(span.trace_id, 16), int(span.parent_id, 16), is_remote=span.kind in ("server", "consumer"))
