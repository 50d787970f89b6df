"""Tells webhooks, and nobody else: the address that a name resolves to is looked at where the socket is made, so that a
name which answers otherwise the second time (DNS rebinding) gets no further than one that is private from the start."""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver

from gateway.jobs.deliveries import Told
from gateway.jobs.targets import TargetRefused, check_url, permitted, public

CONNECT_S, TOTAL_S = 5.0, 15.0  # the specification advises 15 to 30 seconds
MAX_CONNECTIONS = 32
READ_AT_MOST = 4096  # of an answer: only its status matters


class AddressRefused(OSError):
    """The name stands for an address that is not one of the public Internet."""


class WebhookClient:
    """`allowed`: hosts that may be private and asked by plain http. `resolver`: aiohttp's own unless a test has one."""

    def __init__(self, allowed: frozenset[str], resolver: AbstractResolver | None = None) -> None:
        self._allowed = allowed
        self._resolver = resolver
        self._checked: aiohttp.ClientSession | None = None
        self._free: aiohttp.ClientSession | None = None

    async def tell(self, url: str, headers: dict[str, str], payload: bytes) -> Told:
        try:
            check_url(url, self._allowed)  # the operator may have changed his mind since it was accepted
        except TargetRefused:
            return Told(None, "refused")
        try:
            async with self._session(url).post(
                url,
                data=payload,
                headers={**headers, "Content-Type": "application/json", "User-Agent": "nearhit-webhook"},
                allow_redirects=False,  # what it would lead to was not checked, and is not whom the client named
            ) as response:
                await response.content.read(READ_AT_MOST)
                return Told(response.status, f"status {response.status}")
        except aiohttp.ClientConnectorError as error:
            refused = isinstance(error.os_error, AddressRefused)
            return Told(None, "refused" if refused else "no connection")
        except TimeoutError:
            return Told(None, "too slow")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Told(None, type(error).__name__)

    async def close(self) -> None:
        for session in (self._checked, self._free):
            if session is not None:
                await session.close()

    def _session(self, url: str) -> aiohttp.ClientSession:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        if permitted(parts.hostname or "", port, self._allowed):
            if self._free is None:
                self._free = self._opened(None)
            return self._free
        if self._checked is None:
            self._checked = self._opened(checked_socket)
        return self._checked

    def _opened(self, factory: Any) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=MAX_CONNECTIONS,
            force_close=True,  # each connection is one that was checked for this URL
            use_dns_cache=False,
            resolver=self._resolver,
            socket_factory=factory,
        )
        timeout = aiohttp.ClientTimeout(total=TOTAL_S, sock_connect=CONNECT_S)
        # No proxy of the environment, which would resolve the name itself; no cookies from one target to the next.
        return aiohttp.ClientSession(
            connector=connector, timeout=timeout, trust_env=False, cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )  # fmt: skip


def checked_socket(info: Any) -> socket.socket:
    """A socket for that very address. Raises `AddressRefused`."""
    family, kind, protocol, _, address = info
    if not public(str(address[0])):
        raise AddressRefused("not an address of the public Internet")
    return socket.socket(family, kind, protocol)
