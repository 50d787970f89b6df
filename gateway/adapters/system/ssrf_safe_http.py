"""HTTP to hosts that others name, and to no private address: what a name resolves to is looked at where the socket is
made, so that a name which answers otherwise the second time (DNS rebinding) gets no further than one that is private
from the start."""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver

from gateway.adapters.system.ssrf_guard import is_allowed, is_public

MAX_CONNECTIONS = 32


class AddressRefused(OSError):
    """The name stands for an address that is not one of the public Internet."""


class SsrfSafeSessions:
    """`allowed`: hosts, as `host` or `host:port`, that may be private. `resolver`: aiohttp's own unless a test has one.
    Times are seconds."""

    def __init__(
        self, allowed: frozenset[str], *, connect_s: float, total_s: float, resolver: AbstractResolver | None = None
    ) -> None:
        self._allowed = allowed
        self._timeout = aiohttp.ClientTimeout(total=total_s, sock_connect=connect_s)
        self._resolver = resolver
        self._guarded: aiohttp.ClientSession | None = None
        self._unguarded: aiohttp.ClientSession | None = None

    def of(self, url: str) -> aiohttp.ClientSession:
        """For that URL, which `gateway.adapters.system.ssrf_guard.check_url` has let pass. Redirects are not to be
        followed: what they lead to was not checked."""
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        if is_allowed(parts.hostname or "", port, self._allowed):
            if self._unguarded is None:
                self._unguarded = self._create_session(None)
            return self._unguarded
        if self._guarded is None:
            self._guarded = self._create_session(guarded_socket)
        return self._guarded

    async def close(self) -> None:
        """It may be used again."""
        sessions, self._guarded, self._unguarded = (self._guarded, self._unguarded), None, None
        for session in sessions:
            if session is not None:
                await session.close()

    def _create_session(self, factory: Any) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=MAX_CONNECTIONS,
            force_close=True,  # each connection is one that was checked for this URL
            use_dns_cache=False,
            resolver=self._resolver,
            socket_factory=factory,
        )
        # No proxy of the environment, which would resolve the name itself; no cookies from one target to the next.
        return aiohttp.ClientSession(
            connector=connector, timeout=self._timeout, trust_env=False, cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )  # fmt: skip


def guarded_socket(info: Any) -> socket.socket:
    """A socket for that very address. Raises `AddressRefused`."""
    family, kind, protocol, _, address = info
    if not is_public(str(address[0])):
        raise AddressRefused("not an address of the public Internet")
    return socket.socket(family, kind, protocol)
