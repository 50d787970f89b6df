"""Who asks: every request gets the tenant whose answers it may see."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from gateway.errors import Unauthorized
from gateway.messages import Request, Response
from gateway.pipeline import Handler

ANONYMOUS = "anonymous"


def credential_of(headers: Mapping[str, str]) -> str | None:
    """The client's key, in the headers that model endpoints use."""
    authorization = headers.get("authorization")
    if authorization is not None:
        scheme, _, value = authorization.partition(" ")
        return value.strip() if scheme.lower() == "bearer" else authorization
    return headers.get("x-api-key") or headers.get("api-key")


class Passthrough:
    """The backend judges the credentials; their full hash is the tenant, so that only who shows the same ones again
    gets answers that were made with them."""

    async def __call__(self, request: Request, forward: Handler) -> Response:
        credential = credential_of(request.headers)
        tenant = (
            ANONYMOUS
            if credential is None
            else hashlib.sha256(b"tenant/" + credential.encode("utf-8", "surrogateescape")).hexdigest()
        )
        request.trace.tenant = tenant
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
