"""Requests to one origin, each over a connection of its pool."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator

from gateway.upstream.http1.errors import Disconnected
from gateway.upstream.http1.headers import Origin
from gateway.upstream.http1.pool import ConnectionPool, Connector
from gateway.upstream.http1.response import HttpResponse

IDLE_S = 15.0  # servers in Python close a kept connection after five seconds to 75


class Client:
    """`connect_s`: seconds for a new connection. `tls`: the system's authorities unless another context is given."""

    def __init__(
        self,
        origin: Origin,
        *,
        connect_s: float,
        max_connections: int,
        idle_s: float = IDLE_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.origin = origin
        self.pool = ConnectionPool(Connector(origin, connect_s, tls), max_connections=max_connections, idle_s=idle_s)

    async def send(
        self,
        head: bytes,
        body: bytes | AsyncIterator[bytes] = b"",
        *,
        length: int | None = None,
        is_head_request: bool = False,
        repeatable: bool,
        deadline: float,
    ) -> HttpResponse:
        """The answer, once its head is here. `head`: see `headers.request_head`; `length`: of a body that streams, as
        its head says it; None: in chunks. `is_head_request`: the answer has no body (HEAD). `deadline`: time of the
        event loop for all of it. `repeatable`: where a kept connection ends before a byte of the answer, the request is
        sent once more, over a new one; a body that streams is never.

        Raises `ExchangeFailed`, and what `body` raises."""
        connection = self.pool.pop_idle() or await self.pool.acquire(deadline)
        while True:
            repeatable = repeatable and connection.exchange_count > 0 and isinstance(body, bytes)
            answer = connection.send(head, body, length=length, is_head_request=is_head_request)
            try:
                while not answer.status:
                    if answer.error is not None:
                        raise answer.error
                    await connection.wait(deadline)
                return answer
            except Disconnected:
                if not repeatable:
                    raise
            except BaseException:
                answer.close()
                raise
            repeatable, connection = False, await self.pool.acquire(deadline)

    async def close(self) -> None:
        await self.pool.close()
