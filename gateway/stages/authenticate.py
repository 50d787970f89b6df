"""Who asks: every request gets the tenant whose answers it may see."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from gateway.credentials import key_of, tenant_of
from gateway.errors import Unauthorized
from gateway.messages import Request, Response
from gateway.pipeline import Handler


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
        credential = key_of(request.headers)
        if credential is None:
            raise Unauthorized("an API key is required: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'")
        digest = hashlib.sha256(credential.encode("utf-8", "surrogateescape")).hexdigest()
        tenant = self._tenants.get(digest)
        # A lookup by full hash: its timing tells nothing of a key.
        if tenant is None:
            raise Unauthorized("the API key is not known")
        request.trace.tenant = tenant
        return await forward(request)
