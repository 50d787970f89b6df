"""Sees every outcome once, when the last byte of its answer has gone or its client has left."""

from __future__ import annotations

from collections.abc import Awaitable

from gateway.context import Handler, RequestContext
from gateway.messages import ByteStream, EventStream, FullBody, Response, Tunnel
from gateway.observability.observer import CLIENT_CLOSED, Observer
from gateway.streams import BufferedStream, ClosingDuplex, StreamObserver, tapped


class Observe:
    def __init__(self, inner: Handler, observer: Observer) -> None:
        self._inner = inner
        self._observer = observer
        self._begin = observer.begin

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        if self._begin is not None:
            self._begin(request)
        answer = self._inner(request)
        return self._seen(request, answer) if isinstance(answer, Response) else self._awaited(request, answer)

    async def _awaited(self, request: RequestContext, answer: Awaitable[Response]) -> Response:
        try:
            response = await answer
        except BaseException:  # only a cancellation gets past `ErrorBoundary`
            self._observer.over(request, CLIENT_CLOSED, None)
            raise
        return self._seen(request, response)

    def _seen(self, request: RequestContext, response: Response) -> Response:
        if isinstance(response.body, FullBody):
            self._observer.whole(request, response.status, response.provenance)
            return response
        self._observer.first_byte(request)
        return Response(response.status, response.headers, self._until_its_end(request, response), response.provenance)

    def _until_its_end(self, request: RequestContext, response: Response) -> EventStream | ByteStream | Tunnel:
        body = response.body

        def over() -> None:
            self._observer.over(request, response.status, response.provenance)

        if isinstance(body, EventStream) and isinstance(
            body.events, BufferedStream
        ):  # it stays a body that is there at once
            return EventStream(BufferedStream(body.events.rest(), over))
        if isinstance(body, EventStream):
            return EventStream(tapped(body.events, StreamObserver(closed=over)))
        if isinstance(body, Tunnel):
            return Tunnel(ClosingDuplex(body.upstream, over))
        assert isinstance(body, ByteStream)
        return ByteStream(tapped(body.chunks, StreamObserver(closed=over)))
