"""Decode response bodies that a server has compressed although it was asked for none of it (RFC 9110 section 8.4)."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from gateway.errors import UpstreamStreamError

# Bytes that one read of a body may expand to. A read has at most some 256 kB, and deflate expands at most 1032 times.
MAX_EXPANDED_BYTES = 16 * 1024 * 1024

GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS  # the header tells which one
GZIP_START = 0x1F  # the first byte of each member: a body may have several
RAW = -zlib.MAX_WBITS  # deflate without a header, which some servers send as `deflate`

CODINGS = frozenset({"gzip", "x-gzip", "deflate"})


def coding_of(header_map: Mapping[str, str]) -> str:
    """Return the coding of a body, in lower case; empty: it has none."""
    coding = header_map.get("content-encoding", "").strip().lower()
    return "" if coding == "identity" else coding


class ContentDecoder:
    """`ContentDecoder` decodes a body in pieces. `coding` is one of `CODINGS`."""

    def __init__(self, coding: str) -> None:
        self._head: bytes | None = b"" if coding == "deflate" else None  # the start of a body whose form is not known
        self._decoder = zlib.decompressobj(GZIP_OR_ZLIB)

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
                if piece[0] != GZIP_START:
                    break  # padding
                self._decoder = zlib.decompressobj(GZIP_OR_ZLIB)
            try:
                parts.append(self._decoder.decompress(piece, max(1, MAX_EXPANDED_BYTES - size)))
            except zlib.error as error:
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
    """Return a whole body decoded; None: it cannot be decoded, or becomes too large."""
    decoder = ContentDecoder(coding)
    try:
        decoded = decoder.decode(data)
    except UpstreamStreamError:
        return None
    return decoded if decoder.is_complete else None
