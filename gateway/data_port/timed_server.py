"""aiohttp's low-level server with a limit on how long a client may take for its first request's head.

aiohttp itself waits for as long as a connection may idle, 75 s: enough for a few clients to hold many connections.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from gateway.data_port.connection import Connection


class TimedServer(web.Server):
    """Closes connections that have sent no complete head within `head_timeout_s` of being opened."""

    def __init__(self, handler: Any, *, head_timeout_s: float, **options: Any) -> None:
        super().__init__(handler, request_factory=self._first_head_came, **options)
        self._head_timeout_s = head_timeout_s
        self._lost = asyncio.Event()
        self.leaving = False  # whoever asks now is told that its connection ends with the answer
        self._timers: dict[RequestHandler, asyncio.TimerHandle] = {}

    def __call__(self) -> RequestHandler:
        return Connection(self, loop=self._loop, **self._kwargs)

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        loop = asyncio.get_running_loop()
        self._timers[handler] = loop.call_later(self._head_timeout_s, transport.abort)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        self._stop_timer(handler)
        super().connection_lost(handler, exc)
        self._lost.set()

    async def emptied(self) -> None:
        """Returns once no connection is open."""
        while self.connections:
            self._lost.clear()
            await self._lost.wait()

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
