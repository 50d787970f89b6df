"""Decode response bodies that a server has compressed although it was asked for none of it (RFC 9110 section 8.4)."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Mapping
from typing import Protocol

import brotli

from gateway.errors import UpstreamStreamError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# Bytes that one read of a body may expand to. A read has at most some 256 kB.
MAX_EXPANDED_BYTES = 16 * 1024 * 1024

GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS  # the header tells which one
RAW = -zlib.MAX_WBITS  # deflate without a header, which some servers send as `deflate`
GZIP_START, ZSTD_START = 0x1F, 0x28  # the first byte of each member or frame: a body may have several
WINDOW_LOG_MAX = 23  # RFC 9659 allows windows of 8 MB


class _Decompressor(Protocol):
    """The interface of zlib's decompressor, as far as it is used."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes:
        """The data behind the end."""

    @property
    def unconsumed_tail(self) -> object:
        """True if the last result was as long as allowed, and there is more."""

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Brotli:
    unused_data = b""

    def __init__(self) -> None:
        self._decoder = brotli.Decompressor()

    @property
    def eof(self) -> bool:
        return bool(self._decoder.is_finished())

    @property
    def unconsumed_tail(self) -> bool:
        return not self.eof and not self._decoder.can_accept_more_data()

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        return bytes(self._decoder.process(data, output_buffer_limit=max_length))


class _Zstd:
    def __init__(self) -> None:
        self._decoder = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: WINDOW_LOG_MAX})

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    @property
    def unused_data(self) -> bytes:
        return self._decoder.unused_data if self.eof else b""

    @property
    def unconsumed_tail(self) -> bool:
        return not self.eof and not self._decoder.needs_input

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        return self._decoder.decompress(data, max_length)


def _gunzip() -> _Decompressor:
    return zlib.decompressobj(GZIP_OR_ZLIB)


_DECOMPRESSORS: Mapping[str, Callable[[], _Decompressor]] = {
    "gzip": _gunzip,
    "x-gzip": _gunzip,
    "deflate": _gunzip,
    "br": _Brotli,
    "zstd": _Zstd,
}
CODINGS = frozenset(_DECOMPRESSORS)
_INVALID = (zlib.error, brotli.error, zstd.ZstdError, EOFError)


def coding_of(header_map: Mapping[str, str]) -> str:
    """Return the coding of a body, in lower case; it is empty if there is none."""
    coding = header_map.get("content-encoding", "").strip().lower()
    return "" if coding == "identity" else coding


class ContentDecoder:
    """`ContentDecoder` decodes a body in pieces. `coding` is one of `CODINGS`."""

    def __init__(self, coding: str) -> None:
        self._head: bytes | None = b"" if coding == "deflate" else None  # the start of a body whose form is not known
        self._open = _DECOMPRESSORS[coding]
        self._decoder = self._open()

    def decode(self, piece: bytes) -> bytes:
        """Return what the next piece expands to. Raise `UpstreamStreamError`."""
        if self._head is not None:
            piece = self._head + piece
            self._head = piece if len(piece) < 2 else None
            if self._head is not None:
                return b""
            if not _has_zlib_header(piece):
                self._decoder = zlib.decompressobj(RAW)
        parts, size = [], 0
        while piece:
            if self._decoder.eof:
                if piece[0] not in (GZIP_START, ZSTD_START):
                    break  # padding
                self._decoder = self._open()
            try:
                parts.append(self._decoder.decompress(piece, max(1, MAX_EXPANDED_BYTES - size)))
            except _INVALID as error:
                raise UpstreamStreamError(f"the response is not in its Content-Encoding ({error})") from None
            size += len(parts[-1])
            if self._decoder.unconsumed_tail:
                raise UpstreamStreamError(f"a compressed part of the response exceeds {MAX_EXPANDED_BYTES} bytes")
            piece = self._decoder.unused_data
        return b"".join(parts)

    @property
    def is_complete(self) -> bool:
        """Whether the compressed data has ended."""
        return self._decoder.eof


def _has_zlib_header(data: bytes) -> bool:
    """Return whether data begins with the header of RFC 1950, section 2.2."""
    return data[0] & 15 == zlib.DEFLATED and (data[0] << 8 | data[1]) % 31 == 0


def decode_whole(data: bytes, coding: str) -> bytes | None:
    """Return a whole body decoded, or None if it cannot be decoded or becomes too large."""
    decoder = ContentDecoder(coding)
    try:
        decoded = decoder.decode(data)
    except UpstreamStreamError:
        return None
    return decoded if decoder.is_complete else None
