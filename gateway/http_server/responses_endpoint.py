"""The endpoint for WebSockets on `/v1/responses`. The code of their connections is imported with the first one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from importlib import import_module

from gateway.config.backends import BackendSection, OpenAIBackendConfig
from gateway.config.policy.parameters import untuned
from gateway.config.schema import ServerConfig
from gateway.context import Handler, RequestContext
from gateway.dialects.known import RESPONSES
from gateway.errors import Forbidden, TooManyInflight
from gateway.http_server.cors import CrossOrigin
from gateway.messages import Provenance, Response, Tunnel
from gateway.outcomes import Bypass, Verdict
from gateway.ports import Clock
from gateway.steps.error_boundary import Inflight
from gateway.steps.parse_and_route import RouteTable
from gateway.streams import ClosingDuplex

CONNECTION = "gateway.http_server.responses_socket"
PROVENANCE = Provenance(Verdict.BYPASS, reason=Bypass.WEBSOCKET, forwarded=False)


class ResponsesSockets:
    """The endpoint. `table` returns the policy in force. A backend of `responses_websocket: tunnel` gets the WebSocket
    itself. The pipeline is set by `connect`, since it contains this endpoint."""

    def __init__(
        self,
        table: Callable[[], RouteTable],
        backends: Mapping[str, BackendSection],
        clock: Clock,
        inflight: Inflight,
        config: ServerConfig,
    ) -> None:
        self._table = table
        self._origins = CrossOrigin(config.cors)
        self._inflight = inflight
        self._open = 0
        self._tunnels = {
            name
            for name, section in backends.items()
            if isinstance(section, OpenAIBackendConfig) and section.responses_websocket == "tunnel"
        }
        self._clock = clock
        self._max_body = config.max_body
        self._handler: Handler | None = None

    def connect(self, pipeline: Handler) -> Handler:
        """Set the pipeline that answers the messages, and return it."""
        self._handler = pipeline
        return pipeline

    def claims(self, request: RequestContext) -> bool:
        return request.opens_websocket and request.path == RESPONSES and not self._is_tunnel(request)

    async def answer(self, request: RequestContext) -> Response:
        """Accept the connection. Raise `TooManyInflight` if as many are open as requests may be in flight, and
        `Forbidden` for a page of another site."""
        assert self._handler is not None  # `connect` was called before any request
        if not self._origins.may_open(request.headers):
            origin = request.headers.get("origin", "")[:100]
            raise Forbidden(f"pages of {origin!r} may not open a WebSocket: expected one of server.cors.origins")
        if self._open >= self._inflight.limit:
            raise TooManyInflight
        self._open += 1
        connection = (await asyncio.to_thread(import_module, CONNECTION)).ResponsesSocket
        socket = connection(request, self._handler, self._clock, self._inflight, max_body=self._max_body)
        tunnel = Tunnel(ClosingDuplex(socket, self._on_close), carries_requests=True)
        return Response(101, (), tunnel, PROVENANCE)

    def _on_close(self) -> None:
        self._open -= 1

    def _is_tunnel(self, request: RequestContext) -> bool:
        if not self._tunnels:
            return False
        route = self._table().policy.match(request.path, "", request.client.tenant, request.headers)
        return any(untuned(name) in self._tunnels for name in route.target.members)
