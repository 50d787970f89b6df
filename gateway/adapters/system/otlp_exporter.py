"""Sends spans with OpenTelemetry's exporter, in a thread of its own: the event loop hands over what is finished and
never waits for it."""

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
from gateway.observability.spans import Attribute, Finished, Span, spans_of
from gateway.observability.telemetry import Telemetry

LOG = logging.getLogger("nearhit.traces")
PATH = "/v1/traces"
BATCH = 128  # spans at most in one request, or those of one notebook
EVERY_S = 1.0  # how long a span waits at most for others
AGAIN = frozenset({429, 502, 503, 504})  # the statuses after which OTLP wants a request repeated
# While the thread makes spans and messages it holds the interpreter's lock: after so many spans it lets others run.
STRIDE, BREATH_S = 8, 0.0002
CLOSING_S = 2.0  # what is held is sent within it when the gateway stops

SCOPE = InstrumentationScope("nearhit")
FAILED, UNSET = Status(StatusCode.ERROR), Status()


@dataclass(frozen=True, slots=True)
class SpanReceiver:
    """`url` is its base, or ends in /v1/traces; `timeout_s` of one batch, with all attempts."""

    url: str
    headers: Mapping[str, str]
    timeout_s: float


class SpanBatch(list[ReadableSpan]):
    """Whoever walks it lets others run now and then: the SDK's encoder takes 44 us a span."""

    def __iter__(self) -> Iterator[ReadableSpan]:
        for taken, span in enumerate(super().__iter__()):
            if taken % STRIDE == 0:
                time.sleep(BREATH_S)
            yield span


class OtlpExporter:
    """`resource`: what the spans are of. Beyond `max_spans` that wait they are dropped and counted."""

    def __init__(
        self, receiver: SpanReceiver, resource: Mapping[str, Attribute], max_spans: int, telemetry: Telemetry
    ) -> None:
        self._endpoint = receiver.url
        self._resource = Resource(resource)
        self._max_spans = max_spans
        self._telemetry = telemetry
        self._seldom = RateLimitedLog()
        self._status: int | None = None  # of the last answer
        self._exporter = self._opened(receiver)
        self._queue: deque[Finished] = deque()
        self._put = self._gone = 0  # spans, each written by one thread alone
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nearhit-traces", daemon=True)
        self._thread.start()

    def offer(self, finished: Finished) -> None:
        """From the event loop."""
        waiting, size = self._put - self._gone, finished.size
        if waiting + size > self._max_spans or self._closing.is_set():
            self._count("queue-full", size)
            return
        self._put += size
        self._queue.append(finished)
        if waiting < BATCH <= waiting + size:
            self._wake.set()

    def close(self) -> None:
        """Sends what is held, within `CLOSING_S`. Blocks: to be called in a thread."""
        self._closing.set()
        self._wake.set()
        self._thread.join(CLOSING_S)
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _opened(self, receiver: SpanReceiver) -> OTLPSpanExporter:
        session = requests.Session()
        session.trust_env = False  # no proxy and no password of the environment, as with all other clients
        session.hooks["response"].append(self._answered)
        url = receiver.url.rstrip("/")
        authorities = ssl.get_default_verify_paths()  # the system's; where it has none those of the library
        return OTLPSpanExporter(
            endpoint=url if url.endswith(PATH) else url + PATH,
            certificate_file=authorities.cafile or authorities.capath,
            headers=receiver.headers,
            timeout=receiver.timeout_s,
            session=session,
        )

    def _answered(self, answer: requests.Response, *_: object, **__: object) -> None:
        self._status = answer.status_code

    def _run(self) -> None:
        while not self._closing.is_set():
            full = self._wake.wait(EVERY_S)
            self._wake.clear()
            self._drain(BATCH if full else 1)
        self._drain(1)

    def _drain(self, least: int) -> None:
        """Sends while `least` spans wait. A request takes 1.5 ms of CPU by itself: few spans wait for others."""
        while self._put - self._gone >= least:
            spans = self._batch()
            self._status = None
            self._exporter.export(spans)
            self._settle(len(spans))

    def _batch(self) -> SpanBatch:
        spans, taken = SpanBatch(), 0
        while self._queue and len(spans) < BATCH:
            finished = self._queue.popleft()
            spans += readable(finished, self._resource)
            self._gone += finished.size
            taken += 1
            if taken % STRIDE == 0:
                time.sleep(BREATH_S)
        return spans

    def _settle(self, spans: int) -> None:
        """Counts what the last answer says. The exporter does not tell a refusal from a failure."""
        status = self._status
        if status is not None and status < 300:
            self._count("exported", spans)
            return
        self._count("failed" if status is None or status in AGAIN else "refused", spans)
        why = "it does not answer" if status is None else f"it answers {status}"
        fields = {"endpoint": self._endpoint, "error": why}
        self._seldom.warn(LOG, "the receiver of traces takes no spans (telemetry.traces.endpoint)", fields)

    def _count(self, outcome: str, spans: int) -> None:
        self._telemetry.spans.add(outcome, amount=spans)


def readable(finished: Finished, resource: Resource) -> Iterator[ReadableSpan]:
    """The spans of a request as the SDK has them."""
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
