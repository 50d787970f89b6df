"""Parses the heads of plain requests, each only once. Pure.

A request is plain if its framing can be read in one way only. It is HTTP/1.1 with a path as target, has no header
twice, only `Content-Length` says where it ends, and all of it is printable ASCII. This parser is at least as strict as
aiohttp, which reads or refuses everything else (`gateway.http_server.aiohttp_edge`).

Clients send the same head again and again, except for its length and its tracing headers. A cache finds a known head by
its bytes. Another cache finds a head that differs only in those headers, by the bytes without them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import NamedTuple

from multidict import CIMultiDict, CIMultiDictProxy

from gateway.bounded_cache import BoundedCache
from gateway.context import HeadMemo
from gateway.credentials import TRACING
from gateway.dialects.targets import target_of

MAX_HEAD = 16 * 1024  # bytes; aiohttp reads longer heads, up to `server.max_header`
MAX_LINES = 100  # aiohttp refuses more than 128
MAX_KNOWN = 4096
MAX_KNOWN_BYTES = 8 * 1024 * 1024
METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
# Headers that change the framing, encode the body, or ask for another protocol or an interim answer.
NOT_PLAIN = frozenset(
    {"content-encoding", "expect", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
)  # fmt: skip
# Headers with a different value in each request: a head with one of them is not worth caching.
UNIQUE_FIELDS = frozenset({b"baggage", b"traceparent", b"tracestate", b"x-request-id"})
_REQUEST_LINE = re.compile(rb"([A-Z]{3,7}) (/[-A-Za-z0-9._~:/?\[\]@!$&'()*+,;=%]*) HTTP/1\.1\r\n")
_FIELDS = re.compile(rb"(?:[-!#$%&'*+.^_`|~0-9A-Za-z]+:[\t -~]*\r\n)*")
_VARYING_FIELDS = re.compile(
    rb"\r\n(content-length|baggage|traceparent|tracestate|x-request-id|x-stainless-retry-count):([^\r\n]*)",
    re.IGNORECASE,
)
_VALUE = re.compile(rb"[\t -~]*")
_DIGITS = re.compile(rb"[0-9]{1,15}")


class RequestHead(NamedTuple):
    """The head of a plain request. `length` is the size of the body in bytes. `closes` tells that the request is the
    last one on its connection."""

    method: str
    path: str  # as sent, still percent-encoded, without the query
    query: str  # as sent, without "?"
    headers: CIMultiDictProxy[str]
    length: int
    closes: bool
    size: int  # bytes of the head itself
    memo: HeadMemo  # shared by heads that differ only in length and tracing headers
    trace_headers: tuple[tuple[str, str], ...] = ()  # its tracing headers, in order


class _FixedHead(NamedTuple):
    """A head without the headers that vary."""

    method: str
    path: str
    query: str
    headers: CIMultiDict[str]
    closes: bool
    size: int
    memo: HeadMemo


class RequestHeads:
    """Parses heads and caches recent ones. `max_field` bounds a header value in bytes, as configured in aiohttp."""

    def __init__(self, max_field: int) -> None:
        self._max_field = max_field
        self._heads: BoundedCache[bytes, RequestHead] = BoundedCache(MAX_KNOWN, max_weight=MAX_KNOWN_BYTES, weigh=_size)
        self._fixed_heads: BoundedCache[bytes, _FixedHead] = BoundedCache(
            MAX_KNOWN, max_weight=MAX_KNOWN_BYTES, weigh=_size
        )

    def read(self, head: bytes) -> RequestHead | None:
        """Parse a head, or None if the request is not plain. `head` includes the empty line at its end."""
        return self._heads.get(head) or self._read(head)

    def _read(self, head: bytes) -> RequestHead | None:
        pieces = _VARYING_FIELDS.split(head)  # text, name, value, text, ...
        stem_bytes = b"".join(pieces[::3])
        stem = self._fixed_heads.get(stem_bytes)
        if stem is None:
            stem = _fixed_head_of(stem_bytes, self._max_field)
            if stem is None:
                return None
            self._fixed_heads.put(stem_bytes, stem)
        headers, length, unique, trace_headers = stem.headers.copy(), 0, False, []
        for raw_name, raw_value in zip(pieces[1::3], pieces[2::3], strict=True):
            name, value = raw_name.decode(), raw_value.strip(b"\t ")
            if name in headers or len(value) > self._max_field or _VALUE.fullmatch(value) is None:
                return None
            headers[name] = text = value.decode()
            low = raw_name.lower()
            unique = unique or low in UNIQUE_FIELDS
            if low == b"content-length":
                if _DIGITS.fullmatch(value) is None:
                    return None
                length = int(value)
            else:
                trace_headers.append((name, text))
        read = RequestHead(
            stem.method, stem.path, stem.query, CIMultiDictProxy(headers), length, stem.closes,
            len(head), stem.memo, tuple(trace_headers),
        )  # fmt: skip
        if not unique:
            self._heads.put(head, read)
        return read


def head_digest(method: str, target: str, headers: Iterable[tuple[str, str]]) -> bytes | None:
    """Return a digest of the parts of a head that may decide the answer, or None if the headers are not plain. It
    leaves out the length of the body, `Connection`, and the tracing headers."""
    parts = [method, target]
    for name, value in headers:
        low = name.lower()
        if low in NOT_PLAIN or (low == "connection" and value.lower() not in ("close", "keep-alive")):
            return None
        if low not in TRACING and low not in ("connection", "content-length"):
            parts.append(f"{name}:{value}")
    # No part contains a line break, so different parts give different text.
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).digest()


def _fixed_head_of(head: bytes, max_field: int) -> _FixedHead | None:
    start = _REQUEST_LINE.match(head)
    if start is None or _FIELDS.fullmatch(head, start.end(), len(head) - 2) is None:
        return None
    method, target = start[1].decode(), start[2].decode()
    lines = head[start.end() : -4].decode().split("\r\n") if start.end() < len(head) - 2 else []
    if method not in METHODS or len(lines) > MAX_LINES or start.end() > max_field:
        return None
    headers: CIMultiDict[str] = CIMultiDict()
    for line in lines:
        name, _, value = line.partition(":")
        if name in headers or len(value) > max_field:
            return None
        headers[name] = value.strip("\t ")
    digest = head_digest(method, target, headers.items())
    if digest is None or "host" not in headers:
        return None
    path, query = target_of(method, target)
    closes = headers.get("connection", "").lower() == "close"
    memo = HeadMemo(b"" if closes else digest)  # an answer that closes its connection says so
    return _FixedHead(method, path, query, headers, closes, len(head), memo)


def _size(head: RequestHead | _FixedHead) -> int:
    return head.size
