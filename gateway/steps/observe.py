"""Reports every outcome to the observer once: when the last byte was sent, or the client has left."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace

from gateway.context import Handler, RequestContext
from gateway.messages import ByteStream, EventStream, FullBody, Response, Tunnel
from gateway.observability.observer import CLIENT_CLOSED, Observer
from gateway.streams import BufferedStream, ClosingDuplex, StreamObserver, with_observer
from gateway.upstream.header_filter import UPSTREAM_REQUEST_ID


class Observe:
    def __init__(self, inner: Handler, observer: Observer) -> None:
        self._inner = inner
        self._observer = observer
        self._start_trace = observer.start_trace

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        if self._start_trace is not None:
            self._start_trace(request)
        answer = self._inner(request)
        return self._observe(request, answer) if isinstance(answer, Response) else self._await_answer(request, answer)

    async def _await_answer(self, request: RequestContext, answer: Awaitable[Response]) -> Response:
        try:
            response = await answer
        except BaseException:  # only a cancellation gets past `ErrorBoundary`
            self._observer.on_end(request, CLIENT_CLOSED, None)
            raise
        return self._observe(request, response)

    def _observe(self, request: RequestContext, response: Response) -> Response:
        for name, value in response.headers:
            if name is UPSTREAM_REQUEST_ID:
                response = _log_provider_id(request, response, value)
                break
        if isinstance(response.body, FullBody):
            self._observer.whole(request, response.status, response.provenance)
            return response
        self._observer.first_byte(request)
        return Response(response.status, response.headers, self._observed_body(request, response), response.provenance)

    def _observed_body(self, request: RequestContext, response: Response) -> EventStream | ByteStream | Tunnel:
        body = response.body

        def on_end() -> None:
            self._observer.on_end(request, response.status, response.provenance)

        if isinstance(body, EventStream) and isinstance(body.events, BufferedStream):  # it stays a buffered body
            body.events.observe_close(on_end)
            return body
        if isinstance(body, EventStream):
            return EventStream(with_observer(body.events, StreamObserver(on_close=on_end)))
        if isinstance(body, Tunnel):
            return replace(body, upstream=ClosingDuplex(body.upstream, on_end))
        assert isinstance(body, ByteStream)
        return ByteStream(with_observer(body.chunks, StreamObserver(on_close=on_end)))


def _log_provider_id(request: RequestContext, response: Response, value: str) -> Response:
    """Keep the provider's id for the log. A route without `expose_headers` hides it from the client."""
    request.upstream_request_id = value
    if request.exposure.headers:
        return response
    headers = tuple(header for header in response.headers if header[0] is not UPSTREAM_REQUEST_ID)
    return Response(response.status, headers, response.body, response.provenance)
