"""Encodes answers as bytes, so that head and body are one write.

aiohttp's `web.Response` spends about 12 us an answer on header maps and checks that a finished answer does not need. It
stays in use for HTTP/1.0, which this module does not support.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from http import HTTPStatus

from aiohttp import web
from aiohttp.helpers import rfc822_formatted_time

Headers = Sequence[tuple[str, str]]
MAX_STARTS = 1024  # cached heads of up to some kB
BODILESS = frozenset({204, 304, *range(100, 200)})
REASONS = {status.value: status.phrase for status in HTTPStatus}
LAST_CHUNK = b"0\r\n\r\n"
# Answers of which clients read each part as it comes: OpenAI's and Anthropic's, Ollama's, and Bedrock's.
LIVE = ("text/event-stream", "application/x-ndjson", "application/jsonl", "application/vnd.amazon.eventstream")
NO_BUFFERING = ("X-Accel-Buffering", "no")  # https://nginx.org/en/docs/http/ngx_http_proxy_module.html
CLOSES = b"\r\nConnection: close"  # added after another line of the head


class Prebuilt:
    """A finished answer with the interface that aiohttp's server needs: `prepare`, `write_eof`, `keep_alive`."""

    __slots__ = ("_answer", "body_length", "keep_alive", "status")

    def __init__(self, status: int, answer: bytes, body_length: int, *, keep_alive: bool) -> None:
        self.status = status
        self.body_length = body_length
        self.keep_alive = keep_alive
        self._answer = answer

    async def prepare(self, request: web.BaseRequest) -> None:
        await request.writer.write(self._answer)

    async def write_eof(self) -> None:
        """Do nothing: `prepare` has written everything."""


def prebuilt(http: web.BaseRequest, status: int, headers: Headers, body: bytes) -> Prebuilt | web.Response:
    """Return an answer for aiohttp to send."""
    if http.version != (1, 1):
        return web.Response(status=status, headers=headers, body=body)
    keep_alive = bool(http.keep_alive)
    answer = encode_response(http.method, status, headers, body, keep_alive=keep_alive)
    return Prebuilt(status, answer, len(body), keep_alive=keep_alive)


def encode_response(method: str, status: int, headers: Headers, body: bytes, *, keep_alive: bool) -> bytes:
    """Return head and body of the answer to a `method` request, with these headers and the framing only. Raise
    `ValueError` if a header contains a line break."""
    fields, length = sized_headers(method, status, headers, len(body))
    length_field = encode_length(length)
    date, connection_field = rfc822_formatted_time().encode(), b"" if keep_alive else CLOSES
    data = b"" if is_bodiless(method, status) else body
    return b"%b%b%bDate: %b%b\r\n\r\n%b" % (
        STATUS_LINES[status],
        encode_headers(fields),
        length_field,
        date,
        connection_field,
        data,
    )


def is_bodiless(method: str, status: int) -> bool:
    """Return whether an answer has no body, regardless of its headers (RFC 9112 section 6.3)."""
    return method == "HEAD" or status in BODILESS


def sized_headers(method: str, status: int, headers: Headers, length: int) -> tuple[Headers, int | None]:
    """Return the headers of an answer with a whole body, and its `Content-Length`, or None to add none. The answer to a
    HEAD has the length of the body that is not sent."""
    if is_bodiless("", status):
        return _without_length(headers), None
    if method == "HEAD":
        is_present = any(name.lower() == "content-length" for name, _ in headers)
        return headers, None if is_present else length
    return _without_length(headers), length


def encode_length(length: int | None) -> bytes:
    return b"" if length is None else b"Content-Length: %d\r\n" % length


@lru_cache(maxsize=MAX_STARTS)
def encode_start(status: int, headers: tuple[tuple[str, str], ...]) -> bytes:
    """Return the status line and the headers of an answer with a body, without its length. Cached, since backends
    answer with the same few headers again and again. Raise `ValueError`."""
    return STATUS_LINES[status] + encode_headers(_without_length(headers))


def stream_headers(method: str, status: int, headers: Headers) -> tuple[Headers, bool]:
    """Return the headers of an answer whose body arrives in pieces, and whether to send it in chunks. It is chunked if
    its total length is unknown."""
    names = {name.lower() for name, _ in headers}
    has_no_body = is_bodiless(method, status)
    retained = _without_length(headers) if status == 204 or status < 200 else headers
    if not has_no_body and "content-type" not in names:
        retained = [*retained, ("Content-Type", "application/octet-stream")]  # RFC 9110 section 8.3
    return unbuffered(retained), not has_no_body and "content-length" not in names


def unbuffered(headers: Headers) -> Headers:
    """Return the headers of a live answer; those of events and lines ask a proxy in front to pass each on at once.

    nginx holds back what its buffer takes, and so do the ingress controllers that are built on it.
    """
    kinds = [value for name, value in headers if name.lower() == "content-type"]
    if not any(kind.lower().startswith(LIVE) for kind in kinds):
        return headers
    named = any(name.lower() == NO_BUFFERING[0].lower() for name, _ in headers)
    return headers if named else [*headers, NO_BUFFERING]


def chunk_of(piece: bytes) -> bytes:
    """Encode a piece as a chunk. It must not be empty: an empty chunk ends the body."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


class _StatusLines(dict[int, bytes]):
    """Status lines by status, built at first use; a thousand at most."""

    def __missing__(self, status: int) -> bytes:
        line = self[status] = f"HTTP/1.1 {status} {REASONS.get(status, '')}\r\n".encode()
        return line


STATUS_LINES = _StatusLines()


def encode_headers(headers: Headers) -> bytes:
    """Encode headers, each with its line end. Raise `ValueError` on a line break, which could split the response."""
    text = "".join([f"{name}: {value}\r\n" for name, value in headers])
    if text.count("\r") != len(headers) or text.count("\n") != len(headers):
        raise ValueError("a header contains a line break")
    return text.encode("utf-8", "surrogateescape")


def _without_length(headers: Headers) -> Headers:
    return [header for header in headers if header[0].lower() != "content-length"]
