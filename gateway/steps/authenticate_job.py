"""Authenticates jobs, whose clients were identified when the jobs were accepted."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace

from gateway.context import Handler, RequestContext, resolve_response
from gateway.credentials import CredentialRules
from gateway.errors import Unauthorized
from gateway.messages import Response
from gateway.principal import ACCOUNT, HEADER, Principal
from gateway.request_fields import Client
from gateway.steps.authenticate import client_of
from gateway.steps.key_lookup import REJECTION_MESSAGES, ApiKeys


class JobAuth:
    """Authenticates a job when it runs, with the current permissions of the key that submitted it."""

    def __init__(self, inner: Handler, rules: CredentialRules, keys: ApiKeys) -> None:
        self._inner = inner
        self._rules = rules
        self._keys = keys

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        tenant, shown = request.client.tenant, client_of(request, self._rules).credentials
        request.client = Client(tenant, request.headers.get(ACCOUNT, tenant), shown)
        identity = request.headers.get(HEADER)
        return self._inner(request) if identity is None else self._look_up(request, identity)

    async def _look_up(self, request: RequestContext, identity: str) -> Response:
        result = await (await self._keys.lookup()).find_by_id(identity)
        if not isinstance(result, Principal):
            raise Unauthorized(REJECTION_MESSAGES[result])
        request.client = replace(request.client, permit=result, read_only=result.read_only)
        return await resolve_response(self._inner(request))
