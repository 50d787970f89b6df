"""Compresses whole answers for clients that accept it (RFC 9110 section 12.5.3). Streams are not compressed: a
compressor holds bytes back, which delays the first token."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Mapping

from gateway.messages import FullBody, Response

MIN_BYTES = 1024  # a smaller answer takes one packet anyway
THREAD_BYTES = 128 * 1024  # from this size on it takes milliseconds (12 ns a byte), too long for the event loop
LEVEL = 1  # JSON answers shrink to 35 % of their size; level 6 reaches 31 % in three times the time
Headers = tuple[tuple[str, str], ...]
TEXTUAL = ("application/json", "text/", "application/x-ndjson", "application/xml")


def compress_response(headers: Mapping[str, str], response: Response) -> Response | Awaitable[Response]:
    """Compress an answer if the request `headers` accept it. The result is awaitable for a large answer."""
    body = response.body
    if not isinstance(body, FullBody) or len(body.data) < MIN_BYTES or not response.content_type.startswith(TEXTUAL):
        return response
    if response.status in (204, 206, 304) or _has_header(response, "content-encoding") or _has_header(response, "etag"):
        return response  # a strong ETag names the exact bytes
    headers_with_vary = (*response.headers, ("Vary", "Accept-Encoding"))
    if not accepts_gzip(headers.get("accept-encoding", "")):
        return Response(response.status, headers_with_vary, body, response.provenance)
    if len(body.data) >= THREAD_BYTES:
        return _compress_in_thread(response, headers_with_vary, body.data)
    return _gzip_response(response, headers_with_vary, gzip.compress(body.data, LEVEL, mtime=0))


async def _compress_in_thread(response: Response, headers: Headers, data: bytes) -> Response:
    return _gzip_response(response, headers, await asyncio.to_thread(gzip.compress, data, LEVEL, mtime=0))


def _gzip_response(response: Response, headers: Headers, data: bytes) -> Response:
    return Response(response.status, (*headers, ("Content-Encoding", "gzip")), FullBody(data), response.provenance)


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether `Accept-Encoding` names `gzip` or `*` with a weight above 0."""
    weights: dict[str, float] = {}
    for part in accept_encoding.lower().split(","):
        name, *parameters = part.replace(" ", "").split(";")
        weight = next((value[2:] for value in parameters if value.startswith("q=")), "1")
        try:
            weights[name] = float(weight)
        except ValueError:
            weights[name] = 0.0
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0))) > 0


def _has_header(response: Response, name: str) -> bool:
    return any(key.lower() == name for key, _ in response.headers)
