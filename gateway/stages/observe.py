"""Outermost: sees every outcome once, when the last byte of its answer has gone or its client has left."""

from __future__ import annotations

from dataclasses import replace

from gateway.bodies import Ending, Ready
from gateway.flow import Tap, tapped
from gateway.messages import ByteStream, EventStream, Provenance, Request, Response, Tunnel, Whole
from gateway.observing.observer import Observer
from gateway.pipeline import Handler

CLIENT_CLOSED = 499  # nginx's status for a client that left before it got an answer


class Observe:
    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    async def __call__(self, request: Request, forward: Handler) -> Response:
        self._observer.begin(request.trace, request.headers, kind="consumer" if request.patient else "server")
        try:
            response = await forward(request)
        except BaseException:  # only a cancellation gets past `Protect`
            self._over(request, CLIENT_CLOSED, None)
            raise
        self._observer.first_byte(request.received, request.trace)
        body = response.body
        if isinstance(body, Whole):
            self._over(request, response.status, response.provenance)
            return response

        def done() -> None:
            self._over(request, response.status, response.provenance)

        if isinstance(body, EventStream) and isinstance(body.events, Ready):  # still there at once for who writes it
            return replace(response, body=EventStream(Ready(body.events.rest(), done)))
        if isinstance(body, EventStream):
            return replace(response, body=EventStream(tapped(body.events, Tap(closed=done))))
        if isinstance(body, Tunnel):
            return replace(response, body=Tunnel(Ending(body.upstream, done)))
        return replace(response, body=ByteStream(tapped(body.chunks, Tap(closed=done))))

    def _over(self, request: Request, status: int, provenance: Provenance | None) -> None:
        self._observer.over(
            request_id=request.id,
            method=request.method,
            path=request.path,
            received=request.received,
            trace=request.trace,
            status=status,
            provenance=provenance,
        )
