"""The connections of the data port: each begins as a plain one, and becomes aiohttp's where a request is not plain.

aiohttp itself waits for the head of a connection's first request for as long as a connection may idle, 75 s: enough for
a few clients to hold many connections. Here both kinds give up after `head_timeout_s`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NamedTuple

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from gateway.config.schema import Server as ServerConfig
from gateway.dialects.openai import OpenAI
from gateway.http_server.heads import Heads
from gateway.http_server.plain_connection import MAX_BODY, PlainConnection
from gateway.http_server.service import Service


# The last answer on a connection: to what cannot be read, or could not be handled.
class Refused(NamedTuple):
    status: int
    headers: tuple[tuple[str, str], ...]
    data: bytes


def refused(status: int, message: str) -> Refused:
    body = OpenAI().error("invalid_request_error" if status < 500 else "internal_error", message)
    return Refused(status, (("Content-Type", "application/json"), ("Server", "nearhit")), body)


# A client's connection, as far as aiohttp says too much about it: it quotes a malformed request, credentials included,
# in its log and in its answer.
LOG = logging.getLogger("nearhit")


class Connection(RequestHandler):
    def data_received(self, data: bytes) -> None:
        """aiohttp drops what comes once the connection is to end, the rest of the request that is being read with it:
        that would be waited for in vain, for as long as a stop may take. What comes behind the request is not taken
        up."""
        ends = self._close, self._force_close
        if not any(ends) or self._current_request is None:
            super().data_received(data)
            return
        self._close = self._force_close = False
        try:
            super().data_received(data)
        finally:
            self._close, self._force_close = self._close or ends[0], self._force_close or ends[1]

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Refuses what the parser could not read. Nobody knows where the next request starts, so this was the last."""
        LOG.info("malformed request", extra={"fields": {"status": status, "error": type(exc).__name__}})
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun: it can only be cut")
        # The parser's messages name the fault first and quote what was sent behind a colon.
        fault = (message or "").partition("\n")[0].partition(":")[0]
        return refusal(status, f"malformed request: {fault}" if fault else "the request cannot be handled")


def refusal(status: int, message: str) -> web.Response:
    """The last answer on its connection."""
    answer = refused(status, message)
    response = web.Response(status=status, headers=answer.headers, body=answer.data)
    response.force_close()
    return response


# The connections of the data port: each begins as a plain one, and becomes aiohttp's where a request is not plain.
#
# aiohttp itself waits for the head of a connection's first request for as long as a connection may idle, 75 s: enough for
# a few clients to hold many connections. Here both kinds give up after `head_timeout_s`.


class Connections(web.Server):
    """`handler` answers what aiohttp reads."""

    def __init__(self, handler: Any, service: Service, config: ServerConfig, **options: Any) -> None:
        super().__init__(
            handler,
            request_factory=self._first_head_came,
            keepalive_timeout=config.idle_timeout,
            max_line_size=config.max_header,
            max_field_size=config.max_header,
            **options,
        )
        self.service = service
        self.heads = Heads(config.max_header)
        self.head_timeout_s, self.idle_timeout_s = config.header_timeout, config.idle_timeout
        self.max_plain_body = min(MAX_BODY, config.max_body)
        self.plainly = True  # off: all are aiohttp's, which is how tests know that both answer alike
        self.leaving = False  # whoever asks now is told that its connection ends with the answer
        self._lost = asyncio.Event()
        self._plain: set[PlainConnection] = set()
        self._timers: dict[RequestHandler, asyncio.TimerHandle] = {}

    def __call__(self) -> Any:
        return PlainConnection(self, self._loop) if self.plainly else self._full()

    # Plain ones

    def opened(self, connection: PlainConnection) -> None:
        self._plain.add(connection)

    def closed(self, connection: PlainConnection) -> None:
        self._plain.discard(connection)
        self._lost.set()

    def hand_over(self, transport: asyncio.Transport, data: bytes) -> None:
        """Makes a connection aiohttp's, which is given all that has not been answered."""
        handler = self._full()
        transport.set_protocol(handler)
        handler.connection_made(transport)
        handler.data_received(data)

    def _full(self) -> Connection:
        return Connection(self, loop=self._loop, **self._kwargs)

    # aiohttp's

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._timers[handler] = self._loop.call_later(self.head_timeout_s, transport.abort)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        self._stop_timer(handler)
        super().connection_lost(handler, exc)
        self._lost.set()

    def _first_head_came(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        if self._timers:
            self._stop_timer(protocol)
        if self.leaving:
            message = message._replace(should_close=True)
        return self._make_request(message, payload, protocol, writer, task)

    def _stop_timer(self, handler: RequestHandler) -> None:
        timer = self._timers.pop(handler, None)
        if timer is not None:
            timer.cancel()

    # All of them

    async def emptied(self) -> None:
        """Returns once no connection is open."""
        while self.connections or self._plain:
            self._lost.clear()
            await self._lost.wait()

    def pre_shutdown(self) -> None:
        super().pre_shutdown()
        for connection in tuple(self._plain):
            connection.finish()

    async def shutdown(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as `web.Server` has it
        plain = [connection.ended(timeout) for connection in self._plain]
        await asyncio.gather(super().shutdown(timeout), *plain)
