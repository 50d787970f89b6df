"""Sends spans to a receiver of OpenTelemetry's protocol over HTTP, in a thread of its own: the event loop hands over
what is finished and never waits for it."""

from __future__ import annotations

import http.client
import logging
import ssl
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from gateway.adapters.system.otlp_encoding import encoded, export_request
from gateway.observability.spans import Attribute, Finished, spans_of
from gateway.observability.telemetry import Telemetry

LOG = logging.getLogger("nearhit.traces")
PATH = "/v1/traces"
BATCH = 512  # spans at most in one request, or those of one notebook
EVERY_S = 1.0  # how long a span waits at most for others
ATTEMPTS, PAUSE_S, MAX_PAUSE_S = 3, 0.5, 5.0
AGAIN = frozenset({429, 502, 503, 504})  # the statuses after which OTLP wants a request repeated
# While the thread makes messages it holds the interpreter's lock: after so many notebooks it lets others run.
STRIDE, BREATH_S = 8, 0.0002
CLOSING_S = 2.0  # what is held is sent within it when the gateway stops
COMPLAIN_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class Receiver:
    """`url` is its base, or ends in /v1/traces; `timeout_s` of each step: connect, write, read."""

    url: str
    headers: Mapping[str, str]
    timeout_s: float


class OtlpExporter:
    """`resource`: what the spans are of. Beyond `max_spans` that wait they are dropped and counted."""

    def __init__(
        self, receiver: Receiver, resource: Mapping[str, Attribute], max_spans: int, telemetry: Telemetry
    ) -> None:
        self._receiver = receiver
        self._resource = resource
        self._max_spans = max_spans
        self._telemetry = telemetry
        self._queue: deque[Finished] = deque()
        self._put = self._gone = 0  # spans, each written by one thread alone
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._connection: http.client.HTTPConnection | None = None
        self._complained = -COMPLAIN_EVERY_S
        self._thread = threading.Thread(target=self._run, name="nearhit-traces", daemon=True)
        self._thread.start()

    def offer(self, finished: Finished) -> None:
        """From the event loop."""
        waiting, size = self._put - self._gone, finished.size
        if waiting + size > self._max_spans or self._closing.is_set():
            self._telemetry.spans.add("queue-full", amount=size)
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

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait(EVERY_S)
            self._wake.clear()
            self._drain()
        self._drain()
        self._disconnect()

    def _drain(self) -> None:
        while self._queue:
            spans = self._batch()
            try:
                self._send(export_request(self._resource, spans), len(spans))
            except Exception:  # whatever a receiver may do: the next batch is another one
                LOG.exception("spans were not sent")
                self._count("failed", len(spans))

    def _batch(self) -> list[bytes]:
        spans: list[bytes] = []
        taken = 0
        while self._queue and len(spans) < BATCH:
            finished = self._queue.popleft()
            spans += map(encoded, spans_of(finished))
            self._gone += finished.size
            taken += 1
            if taken % STRIDE == 0:
                time.sleep(BREATH_S)
        return spans

    def _send(self, body: bytes, count: int) -> None:
        pause_s, why = PAUSE_S, ""
        for attempt in range(ATTEMPTS):
            if attempt and self._closing.wait(pause_s):
                break  # no time left for another attempt
            pause_s = min(2 * pause_s, MAX_PAUSE_S)
            try:
                status, retry_after_s = self._post(body)
            except (OSError, http.client.HTTPException) as error:
                self._disconnect()
                why = f"it cannot be reached ({type(error).__name__})"
                continue
            if status < 300:
                self._count("exported", count)
                return
            why = f"it answers {status}"
            if status not in AGAIN:
                self._complain(why)
                self._count("refused", count)
                return
            pause_s = min(retry_after_s or pause_s, MAX_PAUSE_S)
        self._complain(why)
        self._count("failed", count)

    def _post(self, body: bytes) -> tuple[int, float | None]:
        """-> (status, seconds of its Retry-After)."""
        url = urlsplit(self._receiver.url)
        if self._connection is None:
            self._connection = self._connect()
        target = url.path.rstrip("/")
        target = target if target.endswith(PATH) else target + PATH
        headers = {"Content-Type": "application/x-protobuf", "User-Agent": "nearhit", **self._receiver.headers}
        self._connection.request("POST", target, body, headers)
        answer = self._connection.getresponse()
        answer.read(65536)
        if not answer.isclosed():  # more than a receiver has to say
            self._disconnect()
        told = answer.getheader("Retry-After", "")
        return answer.status, float(told) if told.isdigit() else None

    def _connect(self) -> http.client.HTTPConnection:
        url, timeout_s = urlsplit(self._receiver.url), self._receiver.timeout_s
        assert url.hostname is not None  # the configuration has looked
        if url.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(url.hostname, url.port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(url.hostname, url.port, timeout=timeout_s)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _count(self, outcome: str, spans: int) -> None:
        self._telemetry.spans.add(outcome, amount=spans)

    def _complain(self, why: str) -> None:
        now = time.monotonic()
        if now - self._complained >= COMPLAIN_EVERY_S:
            self._complained = now
            fields = {"endpoint": self._receiver.url, "error": why}
            LOG.warning("the receiver of traces takes no spans (telemetry.traces.endpoint)", extra={"fields": fields})
