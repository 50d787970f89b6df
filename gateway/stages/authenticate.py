"""Who asks: every request gets the tenant whose answers it may see."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from gateway.errors import Unauthorized
from gateway.messages import Request, Response
from gateway.pipeline import Handler

ANONYMOUS = "anonymous"
CREDENTIALS = frozenset({"authorization", "x-api-key", "api-key"})


def credential_of(headers: Mapping[str, str]) -> str | None:
    """The client's key, in the headers that model endpoints use."""
    authorization = headers.get("authorization")
    if authorization is not None:
        scheme, _, value = authorization.partition(" ")
        return value.strip() if scheme.lower() == "bearer" else authorization
    return headers.get("x-api-key") or headers.get("api-key")


def tenant_of(headers: Mapping[str, str]) -> str:
    """A hash of all credentials that were shown: which of them the backend goes by is not ours to know."""
    shown = [(low, value) for name, value in headers.items() if (low := name.lower()) in CREDENTIALS]
    if not shown:
        return ANONYMOUS
    # No value can contain a line break. A lone key counts the same in whichever header it comes.
    text = (credential_of(headers) or "") if len(shown) == 1 else "\n".join(f"{name}: {value}" for name, value in shown)
    return hashlib.sha256(b"tenant/" + text.encode("utf-8", "surrogateescape")).hexdigest()


class Passthrough:
    """The backend judges the credentials; their full hash is the tenant, so that only who shows the same ones again
    gets answers that were made with them."""

    async def __call__(self, request: Request, forward: Handler) -> Response:
        request.trace.tenant = tenant_of(request.headers)
        return await forward(request)


class Keys:
    """The gateway judges the credentials: SHA-256 of a key -> tenant."""

    def __init__(self, tenants: Mapping[str, str]) -> None:
        self._tenants = dict(tenants)

    async def __call__(self, request: Request, forward: Handler) -> Response:
        credential = credential_of(request.headers)
        if credential is None:
            raise Unauthorized("an API key is required: send it as 'Authorization: Bearer KEY'")
        digest = hashlib.sha256(credential.encode("utf-8", "surrogateescape")).hexdigest()
        tenant = self._tenants.get(digest)
        # A lookup by full hash: its timing tells nothing of a key.
        if tenant is None:
            raise Unauthorized("the API key is not known")
        request.trace.tenant = tenant
        return await forward(request)
