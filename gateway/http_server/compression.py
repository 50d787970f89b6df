"""Whole answers in less bytes, for clients that take them so (RFC 9110 section 12.5.3). Streams go out as they come:
what a compressor holds back is time to the first token."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Mapping

from gateway.messages import FullBody, Response

MIN_BYTES = 1024  # below it the packet is sent anyway
THREAD_BYTES = 128 * 1024  # from here on it takes milliseconds (12 ns a byte measured): not on the event loop
LEVEL = 1  # a JSON answer shrinks to 35 % of its size, at level 6 to 31 % for three times the time
Headers = tuple[tuple[str, str], ...]
TEXTUAL = ("application/json", "text/", "application/x-ndjson", "application/xml")


def compressed(headers: Mapping[str, str], response: Response) -> Response | Awaitable[Response]:
    """`headers`: the request's. To be awaited where the answer is large."""
    body = response.body
    if not isinstance(body, FullBody) or len(body.data) < MIN_BYTES or not response.content_type.startswith(TEXTUAL):
        return response
    if response.status in (204, 206, 304) or _has(response, "content-encoding") or _has(response, "etag"):
        return response  # a strong ETag names the bytes as they are
    varied = (*response.headers, ("Vary", "Accept-Encoding"))
    if not takes_gzip(headers.get("accept-encoding", "")):
        return Response(response.status, varied, body, response.provenance)
    if len(body.data) >= THREAD_BYTES:
        return _compressed_in_thread(response, varied, body.data)
    return _gzipped(response, varied, gzip.compress(body.data, LEVEL, mtime=0))


async def _compressed_in_thread(response: Response, headers: Headers, data: bytes) -> Response:
    return _gzipped(response, headers, await asyncio.to_thread(gzip.compress, data, LEVEL, mtime=0))


def _gzipped(response: Response, headers: Headers, data: bytes) -> Response:
    return Response(response.status, (*headers, ("Content-Encoding", "gzip")), FullBody(data), response.provenance)


def takes_gzip(accepted: str) -> bool:
    """By `Accept-Encoding`: `gzip` or `*` named, and not with a weight of 0."""
    weights: dict[str, float] = {}
    for part in accepted.lower().split(","):
        name, *parameters = part.replace(" ", "").split(";")
        weight = next((value[2:] for value in parameters if value.startswith("q=")), "1")
        try:
            weights[name] = float(weight)
        except ValueError:
            weights[name] = 0.0
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0))) > 0


def _has(response: Response, name: str) -> bool:
    return any(key.lower() == name for key, _ in response.headers)
