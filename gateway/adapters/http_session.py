"""The HTTP client of one upstream, and what is known of the connections it keeps."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import aiohttp


@dataclass(slots=True)
class Connection:
    """What is known of the connection that a request goes over."""

    kept: bool = False  # it had served another request before


async def _kept(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
    if isinstance(context.trace_request_ctx, Connection):
        context.trace_request_ctx.kept = True


def open_session(connect_timeout_s: float, max_connections: int) -> aiohttp.ClientSession:
    """A session of one backend. Bodies are left as they are: no decompression, no cookies, no redirects."""
    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(_kept)
    return aiohttp.ClientSession(
        trace_configs=[trace],
        connector=aiohttp.TCPConnector(limit=max_connections, keepalive_timeout=15.0, ttl_dns_cache=60),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        # The client's headers are sent as they are, and none in its name.
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        trust_env=False,
    )
