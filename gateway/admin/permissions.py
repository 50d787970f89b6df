"""Who may ask what of the admin port: the one table. What is not in it is nobody's (`gateway.admin.middleware`)."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.roles import Role

USE, OPERATE, ADMIN = Role.USE, Role.OPERATE, Role.ADMIN

ROLES: Mapping[str, Role] = {
    "GET /metrics": OPERATE,
    "GET /admin/whoami": USE,
    "GET /admin/stats": OPERATE,
    "GET /admin/backends": OPERATE,
    "GET /admin/history": OPERATE,
    "GET /admin/decisions": OPERATE,
    "GET /admin/limits": OPERATE,
    "GET /admin/quality": OPERATE,
    "POST /admin/quality/reset": OPERATE,
    "GET /admin/routing": OPERATE,
    "POST /admin/routing/reset": OPERATE,
    "POST /admin/explain": OPERATE,
    "POST /admin/cache/explain": OPERATE,
    "GET /admin/cache/entries": OPERATE,
    "GET /admin/cache/entries/{fingerprint}": OPERATE,
    "GET /admin/cache/top": OPERATE,
    "POST /admin/cache/purge": OPERATE,
    "GET /admin/cache/export": ADMIN,  # every tenant's questions and answers
    "POST /admin/cache/import": ADMIN,
    "GET /admin/jobs": OPERATE,
    "GET /admin/jobs/{job}": OPERATE,
    "POST /admin/jobs/retry": OPERATE,
    "POST /admin/jobs/drop": OPERATE,
    "GET /admin/policy": OPERATE,
    "POST /admin/policy": ADMIN,
    "POST /admin/policy/validate": OPERATE,
    "GET /admin/policy/history": OPERATE,
    "GET /admin/policy/history/{version}": OPERATE,
    "POST /admin/policy/rollback": ADMIN,
    "GET /admin/keys": ADMIN,
    "POST /admin/keys": ADMIN,
    "GET /admin/keys/{key}": ADMIN,
    "POST /admin/keys/{key}": ADMIN,
    "POST /admin/keys/{key}/rotate": ADMIN,
    "POST /admin/keys/{key}/revoke": ADMIN,
    "POST /admin/simulate": OPERATE,
    "GET /admin/audit": ADMIN,
}
# What only looks, though its method is one that acts; and what acts, though it is a GET.
LOOKS = frozenset(
    {"POST /admin/explain", "POST /admin/cache/explain", "POST /admin/policy/validate", "POST /admin/simulate"}
)
TAKES = frozenset({"GET /admin/cache/export"})


def acts(endpoint: str) -> bool:
    """Whether it belongs into the audit trail."""
    return endpoint in TAKES or not (endpoint.startswith("GET ") or endpoint in LOOKS)
