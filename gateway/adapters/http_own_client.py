"""`gateway.http1` as the client of an HTTP backend."""

from __future__ import annotations

import ssl

from gateway.adapters.http_client import HttpAnswer, Outward
from gateway.http1.client import Client
from gateway.http1.heads import framing_of, request_head
from gateway.http1.origin import Origin


class OwnClient:
    """Implements `HttpClient`."""

    def __init__(
        self, origin: str, *, connect_s: float, max_connections: int, tls: ssl.SSLContext | None = None
    ) -> None:
        self.client = Client(Origin.of(origin), connect_s=connect_s, max_connections=max_connections, tls=tls)

    async def ask(self, request: Outward, due: float) -> HttpAnswer:
        method, body = request.method, request.body
        length = len(body) if isinstance(body, bytes) else request.length
        framing = framing_of(method, length)
        head = request_head(method, request.target, self.client.origin.authority, request.headers, framing)
        return await self.client.ask(
            head, body, length=length, headless=method == "HEAD", repeatable=request.repeatable, due=due
        )

    async def close(self) -> None:
        await self.client.close()
