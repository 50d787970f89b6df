"""The keyed digests of the traffic log: what stands there for tenants, users, questions and answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache

DIGEST_BYTES = 16

Digest = Callable[[bytes | str], bytes]


def digest_of(key: bytes) -> Digest:
    """Return a keyed digest function. Without the key, which stays with the log, digests reveal nothing."""

    def digest(value: bytes | str) -> bytes:
        return hashlib.blake2b(as_bytes(value), key=key, digest_size=DIGEST_BYTES).digest()

    return digest


def tenant_digests(digest: Digest) -> Digest:
    """Return a digest function for tenants that caches its results: there are few tenants."""
    return lru_cache(maxsize=1024)(lambda value: digest(b"tenant/" + as_bytes(value)))


def as_bytes(value: bytes | str | None) -> bytes:
    """Return the bytes of a text that may have lone surrogates."""
    return value if isinstance(value, bytes) else (value or "").encode("utf-8", "surrogatepass")
