"""Write request heads as bytes, and read response headers. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from yarl import URL

from gateway.upstream.http1.errors import MalformedAnswer


@dataclass(frozen=True, slots=True)
class Origin:
    """An origin, to which requests are sent: scheme, host and port."""

    host: str  # an ASCII name, or an address without brackets
    port: int
    tls: bool
    authority: str  # the value of Host; it has the port only if that is not the scheme's default

    @classmethod
    def of(cls, url: str) -> Origin:
        """Parse the origin of `url`. Raise `ValueError` unless it is an absolute http or https URL."""
        parsed = URL(url)
        if parsed.scheme not in ("http", "https") or not parsed.raw_host or parsed.port is None:
            raise ValueError("expected an absolute http or https URL")
        authority = parsed.host_port_subcomponent or parsed.raw_host
        return cls(parsed.raw_host.rstrip("."), parsed.port, parsed.scheme == "https", authority)


# A token and a target (RFC 9112 section 3). Neither can contain a line end.
REQUEST_LINE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+ [!-~\x80-\U0010ffff]+")

# RFC 9110 section 8.6: these methods send no Content-Length when they have no body.
BODILESS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})

FORBIDDEN_CHARACTERS = "the request's method, target or headers contain characters that HTTP/1.1 does not allow"

CHUNKED = b"Transfer-Encoding: chunked\r\n"

MAX_NAMES = 1024  # remembered names; only a server that invents names exceeds this


def request_head(method: str, target: str, authority: str, headers: Iterable[tuple[str, str]], framing: bytes) -> bytes:
    """Return the whole head. `framing` comes from `framing_lines`. Raise `ValueError` if a part contains a line end."""
    return b"%b%b\r\n" % (request_opening(method, target, authority, headers), framing)


def request_opening(method: str, target: str, authority: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """Return the head up to the framing lines.

    `target` is path and query, percent-encoded; `headers` lack Host and framing. Raise `ValueError`.
    """
    start = f"{method} {target}"
    if REQUEST_LINE.fullmatch(start) is None:
        raise ValueError(FORBIDDEN_CHARACTERS)
    opening = f"{start} HTTP/1.1\r\nHost: {authority}\r\n".encode("utf-8", "surrogateescape")
    return opening + header_lines(headers)


def header_lines(headers: Iterable[tuple[str, str]]) -> bytes:
    """Return the header lines, each with CRLF. Raise `ValueError` if a header contains a line end.

    Bytes that are not UTF-8 (`surrogateescape`) are sent unchanged.
    """
    lines = [f"{name}: {value}\r\n" for name, value in headers]
    text = "".join(lines)
    if text.count("\n") != len(lines) or text.count("\r") != len(lines) or "\0" in text:
        raise ValueError(FORBIDDEN_CHARACTERS)
    return text.encode("utf-8", "surrogateescape")


def framing_lines(method: str, length: int | None) -> bytes:
    """Return the lines that delimit the body, each with CRLF. `length` is in bytes, or None for chunks."""
    if length is None:
        return CHUNKED
    return b"" if length == 0 and method in BODILESS else b"Content-Length: %d\r\n" % length


# Response headers that matter for framing or connection reuse, or that the gateway looks up by name.
MAPPED_HEADERS = frozenset(
    {"connection", "content-encoding", "content-length", "content-type", "keep-alive", "transfer-encoding"}
)


class HeaderNames(dict[bytes, tuple[str, str | None]]):
    """`HeaderNames` maps header names as received to (text, lower-case text if it is in `MAPPED_HEADERS`, else None).

    It remembers them, because servers send the same few names with every response.
    """

    def __missing__(self, name: bytes) -> tuple[str, str | None]:
        text = name.decode("ascii", "replace")  # llhttp accepts only tokens
        low = text.lower()
        entry = text, (low if low in MAPPED_HEADERS else None)
        if len(self) >= MAX_NAMES:
            self.clear()
        self[name] = entry
        return entry


def check_coding(transfer_encoding: str) -> None:
    """Raise `MalformedAnswer` unless the response is just chunked.

    llhttp itself refuses two lengths, and a length together with chunks. It accepts `gzip, chunked`, which would need
    decoding, and codings that end with the connection.
    """
    if transfer_encoding.lower() != "chunked":
        raise MalformedAnswer("the response's Transfer-Encoding is not supported: expected chunked alone")


def keep_alive_s(keep_alive: str | None, max_idle_s: float) -> float:
    """Return the seconds that a connection may be idle: 0 if it may not be reused.

    The bound is `max_idle_s`, or one second less than the server's `Keep-Alive: timeout=5`. The margin keeps a request
    from meeting the server's close.
    """
    for part in (keep_alive or "").split(","):
        name, _, value = part.partition("=")
        value = value.strip().strip('"')
        if name.strip().lower() == "timeout" and value.isascii() and value.isdigit():
            return max(0.0, min(max_idle_s, int(value[:9]) - 1.0))
    return max_idle_s
