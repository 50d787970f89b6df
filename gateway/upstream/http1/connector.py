"""New connections to an origin: its addresses, TCP, TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

from aiohappyeyeballs import start_connection

from gateway.upstream.http1.connection import Connection
from gateway.upstream.http1.errors import ConnectFailed, ConnectTimedOut
from gateway.upstream.http1.origin import Origin

HAPPY_EYEBALLS_DELAY_S = 0.25  # RFC 8305 section 5: before the next address is tried beside the first
ADDRESSES_KEPT_S = 60.0
TLS_SHUTDOWN_S = 2.0  # for a goodbye that a server does not return

Made = Callable[[], Connection]
PLAIN = (), (0, 0)  # behind an address's host and port: nothing, or IPv6's without a flow and a zone


def client_context() -> ssl.SSLContext:
    """Certificates are checked against the system's authorities (or `SSL_CERT_FILE`), names too."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class Connector:
    """`timeout_s` for all of it together. `tls`: of an origin of https."""

    def __init__(self, origin: Origin, timeout_s: float, tls: ssl.SSLContext | None = None) -> None:
        self._origin = origin
        self._timeout_s = timeout_s
        self._tls = (tls or client_context()) if origin.tls else None
        self._looking = asyncio.Lock()
        self._addresses: list[Any] = []
        self._known_until = 0.0  # time of the event loop

    async def open(self, made: Made, due: float) -> Connection:
        """`due`: time of the event loop, by which it is wanted. Raises `ConnectFailed`."""
        try:
            async with asyncio.timeout_at(min(due, asyncio.get_running_loop().time() + self._timeout_s)):
                return await self._open(made)
        except TimeoutError:
            raise ConnectTimedOut("no connection in time") from None
        except OSError as error:  # ssl.SSLError and socket.gaierror among them
            self._addresses = []
            raise ConnectFailed(_said(error)) from None

    async def _open(self, made: Made) -> Connection:
        loop = asyncio.get_running_loop()
        begun: list[Connection] = []

        def making() -> Connection:
            begun.append(made())
            return begun[0]

        addresses = await self._known()
        to: dict[str, Any] = {}
        opened: socket.socket | None = None
        if len(addresses) == 1 and addresses[0][4][2:] in PLAIN:  # uvloop connects to it in a third of the time
            to["host"], to["port"] = addresses[0][4][:2]
        else:
            to["sock"] = opened = await start_connection(
                addresses, happy_eyeballs_delay=HAPPY_EYEBALLS_DELAY_S, interleave=1, loop=loop
            )
        if self._tls is not None:
            to |= {
                "ssl": self._tls, "server_hostname": self._origin.host, "ssl_shutdown_timeout": TLS_SHUTDOWN_S,
            }  # fmt: skip
        try:
            if opened is not None:
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _, connection = await loop.create_connection(making, **to)
        except BaseException:
            if opened is not None:
                opened.close()
            for connection in begun:
                connection.dropped()
            raise
        return connection

    async def _known(self) -> list[Any]:
        """The origin's addresses. Who comes while they are looked up waits for that."""
        loop = asyncio.get_running_loop()
        async with self._looking:
            if not self._addresses or loop.time() >= self._known_until:
                found = await loop.getaddrinfo(self._origin.host, self._origin.port, type=socket.SOCK_STREAM)
                self._addresses, self._known_until = list(found), loop.time() + ADDRESSES_KEPT_S
            self._addresses.append(self._addresses.pop(0))  # each connection begins with the next one
            return list(self._addresses)


def _said(error: OSError) -> str:
    """Words for it that name no address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        if error.reason == "WRONG_VERSION_NUMBER":
            return "it does not speak TLS: is its url http:// rather than https://?"
        return f"no TLS: {error.reason or 'the handshake failed'}"
    if isinstance(error, socket.gaierror):
        return "its name is not known"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return f"no connection ({type(error).__name__})"
