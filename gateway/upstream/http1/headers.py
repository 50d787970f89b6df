"""Heads of requests as bytes, and what is read of the heads of answers. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from yarl import URL

from gateway.upstream.http1.errors import MalformedAnswer


# Where requests go: scheme, host and port. Pure.
@dataclass(frozen=True, slots=True)
class Origin:
    host: str  # a name in ASCII, or an address without brackets
    port: int
    tls: bool
    authority: str  # what the header Host says: the port only where it is not the scheme's

    @classmethod
    def of(cls, url: str) -> Origin:
        """Raises `ValueError` where `url` is no absolute one of http or https."""
        parsed = URL(url)
        if parsed.scheme not in ("http", "https") or not parsed.raw_host or parsed.port is None:
            raise ValueError("expected an absolute URL of http or https")
        authority = parsed.host_port_subcomponent or parsed.raw_host
        return cls(parsed.raw_host.rstrip("."), parsed.port, parsed.scheme == "https", authority)


# A token and a target (RFC 9112 section 3): nothing that would end the line early.
REQUEST_LINE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+ [!-~\x80-\U0010ffff]+")

# RFC 9110 section 8.6: to these a request without a body says no length.
BODILESS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})

FORBIDDEN_CHARACTERS = "a request's method, target or headers have signs in them that HTTP/1.1 does not allow"

CHUNKED = b"Transfer-Encoding: chunked\r\n"

MAX_NAMES = 1024  # that are remembered; more come only from a server that invents them


def request_head(method: str, target: str, authority: str, headers: Iterable[tuple[str, str]], framing: bytes) -> bytes:
    """All of a head. `framing`: as `framing_lines` has it. Raises `ValueError` where a part would end its line
    early."""
    return b"%b%b\r\n" % (request_opening(method, target, authority, headers), framing)


def request_opening(method: str, target: str, authority: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """The lines of a head up to those that say how the body is delimited. `target`: path and query, still
    percent-encoded; `headers` without Host and framing. Raises `ValueError`."""
    start = f"{method} {target}"
    if REQUEST_LINE.fullmatch(start) is None:
        raise ValueError(FORBIDDEN_CHARACTERS)
    opening = f"{start} HTTP/1.1\r\nHost: {authority}\r\n".encode("utf-8", "surrogateescape")
    return opening + header_lines(headers)


def header_lines(headers: Iterable[tuple[str, str]]) -> bytes:
    """Each with its CRLF. What came as bytes that are no UTF-8 (`surrogateescape`) goes out as it came. Raises
    `ValueError`."""
    lines = [f"{name}: {value}\r\n" for name, value in headers]
    text = "".join(lines)
    if text.count("\n") != len(lines) or text.count("\r") != len(lines) or "\0" in text:
        raise ValueError(FORBIDDEN_CHARACTERS)
    return text.encode("utf-8", "surrogateescape")


def framing_lines(method: str, length: int | None) -> bytes:
    """The lines that say how the body is delimited, each with its CRLF. `length` in bytes; None: it comes in chunks."""
    if length is None:
        return CHUNKED
    return b"" if length == 0 and method in BODILESS else b"Content-Length: %d\r\n" % length


# What of an answer's head matters to its framing and to the life of its connection, or is asked for by name.
MAPPED_HEADERS = frozenset(
    {"connection", "content-encoding", "content-length", "content-type", "keep-alive", "transfer-encoding"}
)


class HeaderNames(dict[bytes, tuple[str, str | None]]):
    """Names of headers as they come -> (the name as text, the same in small letters if it is `MAPPED_HEADERS`).
    Remembered: servers say the same few with every answer."""

    def __missing__(self, name: bytes) -> tuple[str, str | None]:
        text = name.decode("ascii", "replace")  # llhttp lets only tokens pass
        low = text.lower()
        entry = text, (low if low in MAPPED_HEADERS else None)
        if len(self) >= MAX_NAMES:
            self.clear()
        self[name] = entry
        return entry


def check_coding(transfer_encoding: str) -> None:
    """llhttp refuses two lengths, and a length beside chunks. What it lets pass: `gzip, chunked`, which would have to
    be decoded, and what ends with the connection. Raises `MalformedAnswer`."""
    if transfer_encoding.lower() != "chunked":
        raise MalformedAnswer("Transfer-Encoding: expected chunked alone")


def keep_alive_s(keep_alive: str | None, max_idle_s: float) -> float:
    """For how long a connection may lie idle, by the server's `Keep-Alive: timeout=5` and our own bound: a second less
    than it says, so that a request does not meet its end. 0: it is not to be kept."""
    for part in (keep_alive or "").split(","):
        name, _, value = part.partition("=")
        value = value.strip().strip('"')
        if name.strip().lower() == "timeout" and value.isascii() and value.isdigit():
            return max(0.0, min(max_idle_s, int(value[:9]) - 1.0))
    return max_idle_s
