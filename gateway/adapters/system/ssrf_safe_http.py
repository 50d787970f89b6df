"""HTTP to hosts that clients name, but not to private addresses.

The resolved address is checked where the socket is created. So a name that resolves differently the second time (DNS
rebinding) cannot reach a private address either.
"""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver

from gateway.adapters.system.ssrf_guard import is_allowed, is_public

MAX_CONNECTIONS = 32


class AddressRefused(OSError):
    """A name resolves to an address that is not public."""


class SsrfSafeSessions:
    """`SsrfSafeSessions` provides HTTP sessions that refuse private addresses.

    `allowed` lists hosts, as `host` or `host:port`, that may be private. `resolver` replaces aiohttp's own in tests.
    Times are in seconds.
    """

    def __init__(
        self, allowed: frozenset[str], *, connect_s: float, total_s: float, resolver: AbstractResolver | None = None
    ) -> None:
        self._allowed = allowed
        self._timeout = aiohttp.ClientTimeout(total=total_s, sock_connect=connect_s)
        self._resolver = resolver
        self._guarded: aiohttp.ClientSession | None = None
        self._unguarded: aiohttp.ClientSession | None = None

    def of(self, url: str) -> aiohttp.ClientSession:
        """Return the session for a URL that `gateway.adapters.system.ssrf_guard.check_url` has accepted. Do not follow
        redirects: their targets were not checked."""
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
        """Close the sessions. The object may be used again."""
        sessions, self._guarded, self._unguarded = (self._guarded, self._unguarded), None, None
        for session in sessions:
            if session is not None:
                await session.close()

    def _create_session(self, factory: Any) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=MAX_CONNECTIONS,
            force_close=True,  # each connection must have been checked for this URL
            use_dns_cache=False,
            resolver=self._resolver,
            socket_factory=factory,
        )
        # No proxy from the environment, which would resolve the name itself; no cookies shared between targets.
        return aiohttp.ClientSession(
            connector=connector, timeout=self._timeout, trust_env=False, cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )  # fmt: skip


def guarded_socket(info: Any) -> socket.socket:
    """Return a socket for exactly that address. Raise `AddressRefused`."""
    family, kind, protocol, _, address = info
    if not is_public(str(address[0])):
        raise AddressRefused("not a public address")
    return socket.socket(family, kind, protocol)
