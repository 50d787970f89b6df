"""Answers as bytes: heads built and written at once.

aiohttp's `web.Response` costs about 12 us an answer in header maps and checks that a finished answer does not need;
it stays in use for HTTP/1.0, where it knows more than this does.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

from aiohttp import web
from aiohttp.helpers import rfc822_formatted_time

Headers = Sequence[tuple[str, str]]
REASONS = {status.value: status.phrase for status in HTTPStatus}
LAST_CHUNK = b"0\r\n\r\n"


class Prebuilt:
    """What aiohttp's server asks of a response: `prepare`, `write_eof`, `keep_alive`."""

    __slots__ = ("_answer", "body_length", "keep_alive", "status")

    def __init__(self, status: int, answer: bytes, body_length: int, *, keep_alive: bool) -> None:
        self.status = status
        self.body_length = body_length
        self.keep_alive = keep_alive
        self._answer = answer

    async def prepare(self, request: web.BaseRequest) -> None:
        await request.writer.write(self._answer)

    async def write_eof(self) -> None:
        """All was written by `prepare`."""


def whole(http: web.BaseRequest, status: int, headers: Headers, body: bytes) -> Prebuilt | web.Response:
    """For aiohttp to send."""
    if http.version != (1, 1):
        return web.Response(status=status, headers=headers, body=body)
    keep_alive = bool(http.keep_alive)
    answer = whole_answer(http.method, status, headers, body, keep_alive=keep_alive)
    return Prebuilt(status, answer, len(body), keep_alive=keep_alive)


def whole_answer(method: str, status: int, headers: Headers, body: bytes, *, keep_alive: bool) -> bytes:
    """Head and body. `method`: of the request; the answer to a HEAD has the length of what is not sent. Raises
    `ValueError` on a header that would end its line."""
    if bodiless("", status):
        return head_of(status, _without_length(headers), keep_alive=keep_alive)
    if method == "HEAD":
        known = any(name.lower() == "content-length" for name, _ in headers)
        return head_of(status, headers, length=None if known else len(body), keep_alive=keep_alive)
    return head_of(status, _without_length(headers), length=len(body), keep_alive=keep_alive) + body


def bodiless(method: str, status: int) -> bool:
    """Whether an answer has no body, whatever its headers say (RFC 9112 section 6.3)."""
    return method == "HEAD" or status in (204, 304) or status < 200


def stream_head(method: str, status: int, headers: Headers, *, keep_alive: bool) -> tuple[bytes, bool]:
    """The head of a body that comes in pieces, and whether they go in chunks: they do where nobody has said how long
    they are together."""
    names = {name.lower() for name, _ in headers}
    none = bodiless(method, status)
    chunked = not none and "content-length" not in names
    added = [("Transfer-Encoding", "chunked")] if chunked else []
    if not none and "content-type" not in names:
        added.append(("Content-Type", "application/octet-stream"))  # RFC 9110 section 8.3
    kept = _without_length(headers) if status == 204 or status < 200 else headers
    return head_of(status, [*kept, *added], keep_alive=keep_alive), chunked


def chunk_of(piece: bytes) -> bytes:
    """`piece` is not empty: that would be the last one."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def head_of(status: int, headers: Headers, *, length: int | None = None, keep_alive: bool) -> bytes:
    """`length`: of the body, where that is how its end is found. Raises `ValueError` on a header that would end its
    line: an answer cannot be split in two."""
    ends = "" if length is None else f"Content-Length: {length}\r\n"
    closes = "" if keep_alive else "\r\nConnection: close"
    date = rfc822_formatted_time()
    return STATUS_LINES[status] + fields_of(headers) + f"{ends}Date: {date}{closes}\r\n\r\n".encode()


class _StatusLines(dict[int, bytes]):
    """There are a thousand at most."""

    def __missing__(self, status: int) -> bytes:
        line = self[status] = f"HTTP/1.1 {status} {REASONS.get(status, '')}\r\n".encode()
        return line


STATUS_LINES = _StatusLines()


def fields_of(headers: Headers) -> bytes:
    """Each with the end of its line. Raises `ValueError`."""
    text = "".join([f"{name}: {value}\r\n" for name, value in headers])
    if text.count("\r") != len(headers) or text.count("\n") != len(headers):
        raise ValueError("a header contains a line break")
    return text.encode("utf-8", "surrogateescape")


def _without_length(headers: Headers) -> Headers:
    return [(name, value) for name, value in headers if name.lower() != "content-length"]
