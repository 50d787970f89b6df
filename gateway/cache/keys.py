"""Who and what may share an answer. Pure.

The exact key is the full SHA-256 of everything that decides the answer; the scope that of everything but the
question. Both begin with the owner, so that no two tenants ever meet in one key or one partition of the index.
Each part is length-prefixed: no concatenation of two requests reads like another one.
"""

from __future__ import annotations

import hashlib

from gateway.messages import Call

SHARE_GLOBAL = "*"


def owner_of(share: str, tenant: str, user: str | None) -> str:
    """Who may share: `share` is the policy's `user`, `tenant` or `global`.

    `user` without a user named in the body falls back to nobody else: the tenant's anonymous users share.
    """
    if share == "global":
        return SHARE_GLOBAL
    return f"{tenant}\0{user or ''}" if share == "user" else tenant


def fingerprint_of(owner: str, route: str, call: Call) -> str:
    return _digest(b"exact", owner, route, call.dialect.name, call.operation, call.canonical)


def scope_of(owner: str, route: str, call: Call) -> str:
    return _digest(b"scope", owner, route, call.dialect.name, call.operation, call.context)


def _digest(kind: bytes, owner: str, route: str, dialect: str, operation: str, content: bytes) -> str:
    digest = hashlib.sha256(b"nearhit/1/" + kind)
    for part in (owner.encode(), route.encode(), dialect.encode(), operation.encode(), content):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()
