"""The connections of the data port: each begins as a plain one, and becomes aiohttp's where a request is not plain.

aiohttp itself waits for the head of a connection's first request for as long as a connection may idle, 75 s: enough for
a few clients to hold many connections. Here both kinds give up after `head_timeout_s`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from gateway.config.schema import Server as ServerConfig
from gateway.http_server.connection import Connection
from gateway.http_server.heads import Heads
from gateway.http_server.plain_connection import MAX_BODY, PlainConnection
from gateway.http_server.service import Service


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
