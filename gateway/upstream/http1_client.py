"""`gateway.http1` as the client of an HTTP backend."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable

from gateway.upstream.http1.client import Client
from gateway.upstream.http1.headers import framing_of, header_lines, request_opening
from gateway.upstream.http1.origin import Origin
from gateway.upstream.http_client import HttpAnswer, Outward


class OwnClient:
    """Implements `HttpClient`."""

    def __init__(
        self, origin: str, *, connect_s: float, max_connections: int, tls: ssl.SSLContext | None = None
    ) -> None:
        self.client = Client(Origin.of(origin), connect_s=connect_s, max_connections=max_connections, tls=tls)
        self.authority = self.client.origin.authority

    def ask(self, request: Outward, due: float) -> Awaitable[HttpAnswer]:
        method, target, headers, body, length, repeatable, more, opening = request
        written = None if opening is None else opening.written
        if written is None:
            written = request_opening(method, target, self.authority, headers)
            if opening is not None:
                opening.written = written
        if isinstance(body, bytes):
            length = len(body)
        lines = header_lines(more) if more else b""
        if length:
            head = b"%b%bContent-Length: %d\r\n\r\n" % (written, lines, length)
        else:
            head = b"%b%b%b\r\n" % (written, lines, framing_of(method, length))
        return self.client.ask(head, body, length=length, headless=method == "HEAD", repeatable=repeatable, due=due)

    async def close(self) -> None:
        await self.client.close()
