"""Requires an API key of each client, and finds the tenant and the rights of the key."""

from __future__ import annotations

from collections.abc import Awaitable

from gateway.config.key_format import PREFIX, digest_of, is_well_formed
from gateway.context import Handler, RequestContext, resolve_response
from gateway.credentials import CredentialRules
from gateway.errors import TooManyAuthFailures, Unauthorized
from gateway.messages import Response
from gateway.observability.telemetry import Telemetry
from gateway.principal import Principal
from gateway.request_fields import Client
from gateway.steps.authenticate import AuthThrottle, client_of
from gateway.steps.key_lookup import REJECTION_MESSAGES, KeyLookup, LookupResult


class ApiKeyAuth:
    """Checks the credentials in the gateway. `failures` bounds the lookups of invalid keys by address. A key that is
    known already is served regardless of earlier failures from its address."""

    def __init__(
        self,
        inner: Handler,
        rules: CredentialRules,
        keys: KeyLookup,
        failures: AuthThrottle,
        telemetry: Telemetry,
    ) -> None:
        self._inner = inner
        self._rules = rules
        self._keys = keys
        self._failures = failures
        self._telemetry = telemetry

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        client = client_of(request, self._rules)
        text = client.credentials.listed_key
        if text is None:
            self._telemetry.auth_failures.add("data", "missing")
            raise Unauthorized("an API key is required: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'")
        digest = digest_of(text)  # a lookup by full hash: its timing reveals nothing about a key
        permit = self._keys.cached(digest)
        if permit is None:
            request.require_capacity()
            return self._look_up(request, client, text, digest)
        return self._admit(request, client, permit)

    def _admit(self, request: RequestContext, client: Client, permit: Principal) -> Response | Awaitable[Response]:
        if client.permit is not permit:
            client = request.head.client = Client(
                permit.tenant, permit.tenant, client.credentials, permit, permit.read_only
            )
        request.client = client
        return self._inner(request)

    async def _look_up(self, request: RequestContext, client: Client, text: str, digest: str) -> Response:
        """Raise `Unauthorized`, `TooManyAuthFailures`, or `Overloaded` if the store does not answer."""
        wait_s = self._failures.wait_s(request.client_address)
        if wait_s is not None:
            self._telemetry.auth_failures.add("data", "too-many")
            raise TooManyAuthFailures(retry_after_s=wait_s)
        if is_well_formed(text):
            result: LookupResult = await self._keys.find(digest)
        else:
            result = "mistyped" if text.startswith(PREFIX) else "unknown"
        if not isinstance(result, Principal):
            self._failures.failed(request.client_address)
            self._telemetry.auth_failures.add("data", result)
            raise Unauthorized(REJECTION_MESSAGES[result])
        return await resolve_response(self._admit(request, client, result))
