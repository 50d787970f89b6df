"""Compute the cache keys, which determine the requests that may share an answer. Pure.

The exact key is the full SHA-256 of everything that determines the answer. The scope is that of everything but the
question. Both begin with the owner, so two tenants never share a key or a partition of the index. Each part is prefixed
with its length, so no two requests have the same concatenation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256

from gateway.calls import Call
from gateway.config.policy.model import VERSION_HEADERS
from gateway.entries import CacheKeys

SHARE_GLOBAL = "*"
MAX_CLIENTS_KEPT = 4096  # clients whose digest is remembered
MAX_CACHED_FRAME = 640  # characters; a client chooses the user's name and the query, which may be long


def owner_of(share: str, tenant: str, user: str | None) -> str:
    """Return the owner of a key. `share` is the policy's `user`, `tenant` or `global`.

    With `user`, requests without a user in the body share among themselves: the tenant's anonymous users.
    """
    if share == "global":
        return SHARE_GLOBAL
    return f"{tenant}\0{user or ''}" if share == "user" else tenant


def variant_of(headers: Mapping[str, str], names: Sequence[str], generation: str = "") -> str:
    """Return the headers of `names` with their values, and the generation of the route's answers, as one text; empty if
    there is nothing of them.

    The division of a list into lines does not matter (RFC 9110, section 5.3), nor does the order of beta features.
    """
    lines = [f"{name}:{_list_of(headers, name)}" for name in names if name in headers]
    return "\n".join([*lines, generation] if generation else lines)


def _list_of(headers: Mapping[str, str], name: str) -> str:
    parts = [part.strip() for key, value in headers.items() if key.lower() == name for part in value.split(",")]
    return ",".join(sorted(set(parts)) if name in VERSION_HEADERS else parts)


@lru_cache(maxsize=MAX_CLIENTS_KEPT)
def client_of(tenant: str, key: str) -> str:
    """Return the digest of a client's credential, 16 hex digits: of its tenant and the id of its API key, if any."""
    return asker_digest(tenant, key)[:16]


def asker_digest(*texts: str) -> str:
    """Return the digest of the texts that tell a client from others, 64 hex digits."""
    return sha256(b"nearhit/1/asker" + framed(texts)).hexdigest()


def framed(texts: Iterable[str]) -> bytes:
    """Return the texts as bytes, each with its length before it."""
    return b"".join([len(part).to_bytes(8, "big") + part for part in map(_encode, texts)])


def keys_of(owner: str, route: str, call: Call, query: str = "", variant: str = "") -> CacheKeys:
    """Return the keys of a call.

    `query` is the query string of the request's target. It goes to the backend, may select a version or carry a
    credential, and is therefore part of both keys. So is `variant` (see `variant_of`). Requests without them keep the
    keys that they had.
    """
    more = (query, variant) if variant else (query,) if query else ()
    return CacheKeys(*frame_of(owner, route, call.dialect.name, call.operation, *more).keys_of(call), variant)


class KeyFrame:
    """The common part of the keys for one owner, route, dialect, operation and query string."""

    __slots__ = ("_exact", "_scope")

    def __init__(self, *texts: str) -> None:
        frame = framed(texts)
        self._scope, self._exact = b"nearhit/1/scope" + frame, b"nearhit/1/exact" + frame

    def keys_of(self, call: Call) -> tuple[str, str]:
        """Return scope and fingerprint."""
        decisive = call.decisive
        context, canonical = decisive.context, decisive.canonical
        return (
            sha256(b"%b%b%b" % (self._scope, len(context).to_bytes(8, "big"), context)).hexdigest(),
            sha256(b"%b%b%b" % (self._exact, len(canonical).to_bytes(8, "big"), canonical)).hexdigest(),
        )


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # bytes of a header that are not UTF-8 are lone surrogates


def frame_of(owner: str, *texts: str) -> KeyFrame:
    cacheable = len(owner) + sum(map(len, texts)) <= MAX_CACHED_FRAME
    return (cached_frame if cacheable else KeyFrame)(owner, *texts)


cached_frame = lru_cache(maxsize=1024)(KeyFrame)
