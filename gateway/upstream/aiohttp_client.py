"""aiohttp's client as that of an HTTP backend."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from functools import partial

import aiohttp
from yarl import URL

from gateway.upstream.aiohttp_session import ASKED, Connection, Session
from gateway.upstream.http1.errors import Broken, ConnectFailed, ConnectTimedOut, ExchangeFailed, TimedOut
from gateway.upstream.http1.headers import NOTED
from gateway.upstream.http_client import HttpAnswer, Outward

TCP_QUICKACK = getattr(socket, "TCP_QUICKACK", None)  # Linux


class AiohttpClient:
    """Implements `HttpClient`."""

    def __init__(self, origin: str, session: Session) -> None:
        self._origin = origin
        self._session = session

    async def ask(self, request: Outward, due: float) -> HttpAnswer:
        headers, body = [*request.headers, *request.more], request.body
        if request.length is not None and not isinstance(body, bytes):
            headers.append(("Content-Length", str(request.length)))
        url, connection = URL(self._origin + request.target, encoded=True), Connection()
        attempt = partial(
            self._session.get().request, request.method, url, headers=headers, data=body or None, allow_redirects=False
        )
        ASKED.set(connection)
        try:
            async with asyncio.timeout_at(due):
                try:
                    return _Answer(await attempt())
                except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionResetError):
                    if not request.repeatable or not isinstance(body, bytes) or not connection.kept:
                        raise
                    return _Answer(await attempt())
        except aiohttp.ConnectionTimeoutError:
            raise ConnectTimedOut("no connection in time") from None
        except TimeoutError:
            raise TimedOut("nothing came in time") from None
        except aiohttp.ClientConnectorError as error:
            raise ConnectFailed(type(error).__name__) from None
        except (aiohttp.ClientError, OSError) as error:
            raise ExchangeFailed(type(error).__name__) from None

    async def close(self) -> None:
        await self._session.close()


class _Answer:
    """Implements `HttpAnswer`."""

    memo = None

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._content = response.content
        self.status = response.status
        self.headers = tuple(response.headers.items())

        noted = {name.lower(): value for name, value in self.headers if name.lower() in NOTED}
        self.noted = noted if "connection" not in noted else noted | {"connection": self._all("connection")}

    def _all(self, name: str) -> str:
        return ", ".join(self._response.headers.getall(name))

    @property
    def whole(self) -> bool:
        return self._content.is_eof() and self._content.exception() is None

    @property
    def at_end(self) -> bool:
        return self._content.at_eof()

    def take(self) -> bytes:
        return self._content.read_nowait(-1)

    async def read(self, due: float) -> bytes:
        try:
            if self.whole:
                return self.take()
            self._acknowledge()
            async with asyncio.timeout_at(due):
                return await self._content.readany()
        except TimeoutError:
            raise TimedOut("nothing came in time") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Broken(type(error).__name__) from None

    def close(self) -> None:
        if self.at_end:
            self._response.release()
        else:
            self._response.close()

    def _acknowledge(self) -> None:
        """See `gateway.upstream.http1.connection`."""
        connection = self._response.connection
        transport = None if connection is None else connection.transport
        opened = None if transport is None else transport.get_extra_info("socket")
        if opened is not None and TCP_QUICKACK is not None:
            with contextlib.suppress(OSError):
                opened.setsockopt(socket.IPPROTO_TCP, TCP_QUICKACK, 1)
