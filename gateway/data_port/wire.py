"""Whole answers as bytes: head and body built at once and written at once.

aiohttp's `web.Response` costs about 12 us an answer in header maps and checks that a finished answer does not need;
it stays in use where it knows more than this does: HTTP/1.0, HEAD, bodiless statuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

from aiohttp import web
from aiohttp.helpers import rfc822_formatted_time

Headers = Sequence[tuple[str, str]]
REASONS = {status.value: status.phrase for status in HTTPStatus}


class Prebuilt:
    """What aiohttp's server asks of a response: `prepare`, `write_eof`, `keep_alive`."""

    __slots__ = ("_data", "body_length", "keep_alive", "status")

    def __init__(self, status: int, headers: Headers, body: bytes, *, keep_alive: bool) -> None:
        self.status = status
        self.body_length = len(body)
        self.keep_alive = keep_alive
        self._data = head_of(status, headers, len(body), keep_alive=keep_alive) + body

    async def prepare(self, request: web.BaseRequest) -> None:
        await request.writer.write(self._data)

    async def write_eof(self) -> None:
        """All was written by `prepare`."""


def whole(http: web.BaseRequest, status: int, headers: Headers, body: bytes) -> Prebuilt | web.Response:
    """The cheapest response object that says this correctly."""
    if http.version != (1, 1) or http.method == "HEAD" or status < 200 or status in (204, 304):
        return web.Response(status=status, headers=headers, body=body)
    return Prebuilt(status, headers, body, keep_alive=bool(http.keep_alive))


def head_of(status: int, headers: Headers, length: int, *, keep_alive: bool) -> bytes:
    """Raises `ValueError` on a header that would end its line: an answer cannot be split in two."""
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, '')}"]
    lines += [f"{name}: {value}" for name, value in headers]
    lines.append(f"Content-Length: {length}")
    lines.append(f"Date: {rfc822_formatted_time()}")
    if not keep_alive:
        lines.append("Connection: close")
    text = "\r\n".join(lines)
    if text.count("\r") != len(lines) - 1 or text.count("\n") != len(lines) - 1:
        raise ValueError("a header contains a line break")
    return text.encode("utf-8", "surrogateescape") + b"\r\n\r\n"
