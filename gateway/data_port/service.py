"""What the data port does with a request, whoever reads it off the wire and writes the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import orjson

from gateway.bodies import Ready
from gateway.config.schema import Server as ServerConfig
from gateway.data_port.compression import compressed
from gateway.data_port.cors import CrossOrigin
from gateway.messages import Body, ByteStream, EventStream, Request, Response, Whole
from gateway.observing.request_ids import RequestIds
from gateway.observing.trace import Trace
from gateway.pipeline import Handler
from gateway.ports import BodySource, Clock

Health = Callable[[], Awaitable[tuple[bool, dict[str, Any]]]]


class Service:
    """`health` answers /readyz: whether it is ready, and what it looked at. `beside`: requests that are being answered
    at other ports; None: there are none. `handler` is set before the first request."""

    handler: Handler

    def __init__(
        self, config: ServerConfig, clock: Clock, health: Health, beside: Callable[[], int] | None = None
    ) -> None:
        self.config = config
        self.beside = beside
        self.inflight = 0
        self.draining = False
        self.stopping = asyncio.Event()
        self._clock = clock
        self._health = health
        self._ids = RequestIds()
        self._cors = CrossOrigin(config.cors)
        self.fits = bool(config.cors.origins) or config.compress

    @property
    def full(self) -> bool:
        """Whether one request more is shed."""
        inflight = self.inflight if self.beside is None else self.inflight + self.beside()
        return inflight >= self.config.max_inflight

    def request(
        self, method: str, path: str, query: str, headers: Mapping[str, str], source: BodySource, peer: str
    ) -> Request:
        """One that has just come."""
        return Request(
            id=self._ids.of(headers),
            method=method,
            path=path,
            query=query,
            headers=headers,
            source=source,
            received=self._clock.monotonic(),
            trace=Trace(self._clock),
            peer=peer,
        )

    async def early(self, method: str, path: str, headers: Mapping[str, str]) -> Response | None:
        """The answer to what no stage is asked about; POST is none of it."""
        if path in ("/healthz", "/readyz") and method in ("GET", "HEAD"):
            return await self._report(path)
        preflight = self._cors.preflight(method, headers) if method == "OPTIONS" else None
        return None if preflight is None else Response(204, (("Server", "nearhit"), *preflight), Whole(b""))

    def answer(self, request: Request) -> Awaitable[Response]:
        """As this client may and can take it."""
        return self._fitting(request) if self.fits else self.handler(request)

    async def _fitting(self, request: Request) -> Response:
        response = await self.handler(request)
        headers = self._cors.added(request.headers, response.headers)
        if headers is not None:
            response = replace(response, headers=tuple(headers))
        return await compressed(request.headers, response) if self.config.compress else response

    async def _report(self, path: str) -> Response:
        if path == "/healthz":
            status, body, kind = 200, b"ok\n", "text/plain; charset=utf-8"
        else:
            ready, seen = (False, {"draining": True}) if self.draining else await self._health()
            status, body, kind = 200 if ready else 503, orjson.dumps({"ready": ready, **seen}), "application/json"
        return Response(status, (("Content-Type", kind), ("Server", "nearhit")), Whole(body))


def at_hand(body: Body) -> bytes | None:
    """All that goes over the wire, where it is all there: then its length is said and it is written at once, which
    costs a fifth of one write an event."""
    if isinstance(body, Whole):
        return body.data
    if isinstance(body, EventStream) and isinstance(body.events, Ready):
        return b"".join([event.frame() for event in body.events.items])
    return None


async def pieces_of(body: Body) -> AsyncIterator[bytes]:
    """What goes over the wire of a stream, as it comes; no piece is empty."""
    if isinstance(body, EventStream):
        async for event in body.events:
            yield event.frame()
    elif isinstance(body, ByteStream):
        async for piece in body.chunks:
            if piece:
                yield piece
