"""Handles the requests of the HTTP port: request id, context, pipeline, CORS and compression."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import orjson

from gateway.config.schema import ServerConfig
from gateway.context import Handler, HeadMemo, RequestContext, resolve_response
from gateway.http_server.compression import compress_response
from gateway.http_server.cors import CrossOrigin
from gateway.messages import FullBody, Response
from gateway.observability.response_headers import ResponseHeaders
from gateway.ports import BodySource, Clock
from gateway.steps.error_boundary import Inflight

# A client's request id is used if it is harmless in a log and a header; else the gateway makes one.
SAFE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")

ID_BYTES = 12

IDS_PER_READ = 256  # one read is a system call: 0.6 us, a hundredth of a hit


class RequestIds:
    """Finds or makes the id of a request. Ids that the gateway makes cannot be guessed, since a client that knows one
    may send feedback on its answer."""

    def __init__(self) -> None:
        self._random_hex = ""
        self._next = 0

    def of(self, headers: Mapping[str, str]) -> str:
        request_id = headers.get("x-request-id")
        if request_id is not None and SAFE_ID.fullmatch(request_id):
            return request_id
        if self._next >= len(self._random_hex):
            self._random_hex, self._next = os.urandom(ID_BYTES * IDS_PER_READ).hex(), 0
        start, self._next = self._next, self._next + 2 * ID_BYTES
        return self._random_hex[start : self._next]


LOG = logging.getLogger("nearhit")

Health = Callable[[], Awaitable[tuple[bool, dict[str, Any]]]]


class RequestService:
    """Answers requests through the pipeline, `handler`. `health` answers /readyz with readiness and the checks behind
    it. `inflight` counts the requests that wait, over all ports."""

    def __init__(
        self, config: ServerConfig, clock: Clock, handler: Handler, inflight: Inflight, health: Health
    ) -> None:
        self.config = config
        self.clock = clock
        self.inflight = inflight
        self.headers = ResponseHeaders()
        self.draining = False
        self.stopping = asyncio.Event()
        self._handler = handler
        self._health = health
        self._ids = RequestIds()
        self._cors = CrossOrigin(config.cors)
        self._compress = config.compress
        # Answers a request; the result is awaitable if the answer has to be waited for.
        self.answer: Handler = self._adapted_answer if config.cors.origins or config.compress else handler

    def request(
        self,
        method: str,
        path: str,
        query: str,
        headers: Mapping[str, str],
        body_source: BodySource,
        client_address: str,
        head: HeadMemo | None = None,
        trace_headers: Sequence[tuple[str, str]] | None = None,
    ) -> RequestContext:
        """Return the context of a request that has just arrived."""
        return RequestContext(
            request_id=self._ids.of(headers),
            method=method,
            path=path,
            query=query,
            headers=headers,
            body_source=body_source,
            clock=self.clock,
            client_address=client_address,
            head=head,
            trace_headers=trace_headers,
        )

    def direct(self, method: str, path: str, headers: Mapping[str, str]) -> Response | Awaitable[Response] | None:
        """Return the whole answer to a request that no step handles, with all of its headers, or None for the pipeline.
        No POST is answered here."""
        if path in ("/healthz", "/readyz") and method in ("GET", "HEAD"):
            return self._report(path)
        preflight = self._cors.preflight(method, headers) if method == "OPTIONS" else None
        return None if preflight is None else Response(204, (("Server", "nearhit"), *preflight), FullBody(b""))

    def _adapted_answer(self, request: RequestContext) -> Response | Awaitable[Response]:
        """Answer with CORS headers and compression for this client."""
        answer = self._handler(request)
        if not isinstance(answer, Response):
            return self._await_answer(request, answer)
        return answer if answer.wire is not None else self._adapt(request, answer)

    async def _await_answer(self, request: RequestContext, awaited: Awaitable[Response]) -> Response:
        response = await awaited
        if response.wire is not None:
            return response
        return await resolve_response(self._adapt(request, response))

    def _adapt(self, request: RequestContext, response: Response) -> Response | Awaitable[Response]:
        headers = self._cors.apply(request.headers, response.headers)
        if headers is not response.headers:
            response = Response(response.status, headers, response.body, response.provenance)
        return compress_response(request.headers, response) if self._compress else response

    async def _report(self, path: str) -> Response:
        if path == "/healthz":
            status, body, kind = 200, b"ok\n", "text/plain; charset=utf-8"
        else:
            ready, checks = (False, {"draining": True}) if self.draining else await self._health()
            status, body, kind = 200 if ready else 503, orjson.dumps({"ready": ready, **checks}), "application/json"
        return Response(status, (("Content-Type", kind), ("Server", "nearhit")), FullBody(body))
