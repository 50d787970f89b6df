"""Who and what may share an answer. Pure.

The exact key is the full SHA-256 of everything that decides the answer; the scope that of everything but the
question. Both begin with the owner, so that no two tenants ever meet in one key or one partition of the index.
Each part is length-prefixed: no concatenation of two requests reads like another one.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

from gateway.messages import Call

SHARE_GLOBAL = "*"


def owner_of(share: str, tenant: str, user: str | None) -> str:
    """Who may share: `share` is the policy's `user`, `tenant` or `global`.

    `user` without a user named in the body falls back to nobody else: the tenant's anonymous users share.
    """
    if share == "global":
        return SHARE_GLOBAL
    return f"{tenant}\0{user or ''}" if share == "user" else tenant


def keys_of(owner: str, route: str, call: Call) -> tuple[str, str]:
    """-> (scope, fingerprint)"""
    frame = _frame(owner, route, call.dialect.name, call.operation)
    return _digest(b"scope", frame, call.context), _digest(b"exact", frame, call.canonical)


@lru_cache(maxsize=1024)
def _frame(*texts: str) -> bytes:
    """What both keys have in common: owner, route, dialect and operation."""
    return b"".join([len(part).to_bytes(8, "big") + part for part in map(str.encode, texts)])


def _digest(kind: bytes, frame: bytes, content: bytes) -> str:
    return hashlib.sha256(b"".join((b"nearhit/1/", kind, frame, len(content).to_bytes(8, "big"), content))).hexdigest()
