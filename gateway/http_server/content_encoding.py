"""Decode request bodies by their Content-Encoding (RFC 9110 section 8.4), bounded in size. Pure."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Mapping, Sequence

import brotli

from gateway.errors import BadRequest, PayloadTooLarge, UnsupportedEncoding

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_CODINGS = 3  # one after the other: each costs time and memory up to the bound of the body
# RFC 9659 allows windows of 8 MB. A frame whose content is smaller than the bound may be a single window.
MIN_WINDOW_LOG, MAX_WINDOW_LOG = 23, 27

Decode = Callable[[bytes, int], tuple[bytes, bool, bytes]]
"""Takes a body and the most bytes to return. Returns (the content, whether it is complete, the data behind it); more
bytes than the most if the content is larger. Raises an error of `_INVALID`."""


def content_codings(lines: Sequence[str]) -> list[str]:
    """Return the codings that the `Content-Encoding` lines of a request name, in the order in which they were applied.

    `identity` is none. Raise `UnsupportedEncoding`.
    """
    named = [coding.strip().lower() for line in lines for coding in line.split(",")]
    codings = [coding for coding in named if coding not in ("", "identity")]
    for coding in codings:
        if coding not in _DECODERS:
            raise UnsupportedEncoding(f"Content-Encoding {coding[:40]!r} is not supported: expected {_EXPECTED}")
    if len(codings) > MAX_CODINGS:
        raise UnsupportedEncoding(f"the body has {len(codings)} content codings: expected at most {MAX_CODINGS}")
    return codings


def decode_content(body: bytes, codings: Sequence[str], limit: int) -> bytes:
    """Return the body without its codings. Raise `BadRequest`, or `PayloadTooLarge` if any step has more than `limit`
    bytes."""
    for coding in reversed(codings):
        try:
            body, complete, rest = _DECODERS[coding](body, limit)
        except _INVALID:
            raise BadRequest(f"the body is not valid {coding}") from None
        if len(body) > limit:
            raise PayloadTooLarge(f"the decoded body is larger than {limit} bytes (server.max_body)")
        if not complete:
            raise BadRequest(f"the {coding} body is cut short")
        if rest:  # readers disagree on such data, and would see different bodies
            raise BadRequest(f"there is data after the {coding} body")
    return body


def _gunzip(body: bytes, most: int) -> tuple[bytes, bool, bytes]:
    return _inflate_as(31, body, most)


def _inflate(body: bytes, most: int) -> tuple[bytes, bool, bytes]:
    """Decode `deflate`, with the header of zlib or, as some clients send it, without."""
    has_header = len(body) > 1 and body[0] & 15 == zlib.DEFLATED and int.from_bytes(body[:2]) % 31 == 0
    return _inflate_as(15 if has_header or not body else -15, body, most)


def _inflate_as(window_bits: int, body: bytes, most: int) -> tuple[bytes, bool, bytes]:
    decoder = zlib.decompressobj(window_bits)
    decoded = decoder.decompress(body, most + 1)
    return decoded, decoder.eof, decoder.unused_data


def _unbrotli(body: bytes, most: int) -> tuple[bytes, bool, bytes]:
    """Decode brotli, whose decoder itself refuses data behind the body."""
    decoder = brotli.Decompressor()
    decoded = decoder.process(body, output_buffer_limit=most + 1)
    while not decoder.can_accept_more_data() and not decoder.is_finished() and len(decoded) <= most:
        decoded += decoder.process(b"", output_buffer_limit=most + 1)
    return decoded, decoder.is_finished(), b""


def _unzstd(body: bytes, most: int) -> tuple[bytes, bool, bytes]:
    window_log = min(max(MIN_WINDOW_LOG, most.bit_length()), MAX_WINDOW_LOG)
    decoder = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: window_log})
    decoded = decoder.decompress(body, most + 1)
    return decoded, decoder.eof, decoder.unused_data if decoder.eof else b""


_DECODERS: Mapping[str, Decode] = {
    "gzip": _gunzip,
    "x-gzip": _gunzip,
    "deflate": _inflate,
    "br": _unbrotli,
    "zstd": _unzstd,
}
_INVALID = (zlib.error, brotli.error, zstd.ZstdError, EOFError)
_EXPECTED = "gzip, deflate, br, zstd or identity"
