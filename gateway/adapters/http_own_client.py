"""`gateway.http1` as the client of an HTTP backend."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable

from gateway.adapters.http_client import HttpAnswer, Outward
from gateway.http1.answer import Answer
from gateway.http1.client import Client
from gateway.http1.heads import framing_of, request_head
from gateway.http1.origin import Origin

MAX_HEADS = 1024  # that are remembered: clients send the same few, but for what traces a request


class OwnClient:
    """Implements `HttpClient`."""

    def __init__(
        self, origin: str, *, connect_s: float, max_connections: int, tls: ssl.SSLContext | None = None
    ) -> None:
        self.client = Client(Origin.of(origin), connect_s=connect_s, max_connections=max_connections, tls=tls)
        self.authority = self.client.origin.authority
        self._heads: dict[tuple[object, ...], bytes] = {}  # of `written`, by what they are made of, without framing

    def ask(self, request: Outward, due: float) -> Awaitable[HttpAnswer]:
        method, target, headers, body, length, repeatable = request
        if isinstance(body, bytes):
            length = len(body)
        head = request_head(method, target, self.authority, headers, framing_of(method, length))
        return self.client.ask(head, body, length=length, headless=method == "HEAD", repeatable=repeatable, due=due)

    def written(self, request: Outward) -> bytes:
        """A request whose body is at hand, and not empty, as `ask` writes it. Raises `ValueError`."""
        method, target, headers, body, _, _ = request
        assert isinstance(body, bytes)
        made_of = (method, target, *headers)
        head = self._heads.get(made_of)
        if head is None:
            if len(self._heads) >= MAX_HEADS:
                self._heads.clear()
            head = self._heads[made_of] = request_head(method, target, self.authority, headers, "")[:-2]
        return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)

    def resumed(self, answer: Answer, request: Outward, due: float) -> Awaitable[HttpAnswer]:
        """See `Client.resumed`. `request`: the one that was sent, whose body is at hand."""
        method, target, headers, body, _, repeatable = request
        assert isinstance(body, bytes)
        head = request_head(method, target, self.authority, headers, framing_of(method, len(body)))
        return self.client.resumed(answer, head, body, headless=False, repeatable=repeatable, due=due)

    async def close(self) -> None:
        await self.client.close()
