"""Send requests to one origin over pooled connections."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable

from gateway.upstream.http1.errors import Disconnected, ExchangeFailed
from gateway.upstream.http1.headers import Origin
from gateway.upstream.http1.pool import ConnectionPool, Connector
from gateway.upstream.http1.response import HttpResponse

IDLE_S = 15.0  # Python servers close an idle connection after 5 to 75 seconds


class Client:
    """`Client` sends HTTP/1.1 requests to one origin.

    `connect_s` is the timeout of a new connection in seconds. `tls` defaults to a context with the system's
    authorities.
    """

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
        may_resend: Callable[[], bool] = lambda: True,
    ) -> HttpResponse:
        """Send a request and return its response once the head has arrived.

        `head` comes from `headers.request_head`. `length` is the Content-Length of a streamed body, or None for
        chunks. The response to a HEAD (`is_head_request`) has no body. `deadline` is the event-loop time by which the
        head must arrive. If a reused connection closes before the first byte of the response, a `repeatable` request is
        sent once more. It goes over a new connection, unless `may_resend` refuses. A streamed body is never repeated.

        Raise `ExchangeFailed`, and whatever `body` raises.
        """
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
                if not repeatable or not may_resend():
                    raise
            except BaseException:
                answer.close()
                raise
            repeatable = False
            try:
                connection = await self.pool.acquire(deadline)
            except ExchangeFailed as error:
                raise error.after_resend() from None

    async def close(self) -> None:
        await self.pool.close()
