"""Authenticates requests: finds the tenant whose answers a request may see, and throttles guesses."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from ipaddress import IPv6Address, ip_address

from gateway.bounded_cache import BoundedCache
from gateway.config.api_keys import PREFIX, digest_of, is_well_formed
from gateway.context import Handler, RequestContext, resolve_response
from gateway.credentials import ANONYMOUS, CredentialRules
from gateway.errors import TooManyAuthFailures, Unauthorized
from gateway.messages import Response
from gateway.observability.telemetry import Telemetry
from gateway.principal import ACCOUNT, HEADER, Principal
from gateway.request_fields import Client
from gateway.steps.key_cache import KeyCache, LookupResult
from gateway.steps.shared_tenants import AnonymousHits, TenantsOfKeys

# How often an address may send invalid credentials. This bounds guesses, and the store lookups that they cause.
#
# The algorithm is GCRA, as for the limits of routes (`gateway.limits`): `BURST` failures at once, then one every
# `INTERVAL_S`. A misconfigured client that sends a request every 15 s (Prometheus) stays below the limit; a guesser
# gets 28,800 guesses a day.

BURST = 20

INTERVAL_S = 3.0

MAX_ADDRESSES = 10_000  # beyond it, the address that failed longest ago is forgotten


class AuthThrottle:
    """Limits failed authentications by network. `now` is in seconds of the monotonic clock. For use from one event
    loop."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        # Network -> the time when its last failure is forgotten, seconds of `now`.
        self._until: BoundedCache[str, float] = BoundedCache(MAX_ADDRESSES)

    def wait_s(self, address: str) -> int | None:
        """Return the whole seconds until credentials of this address are checked again, or None if they are checked
        now."""
        backlog_s = (self._until.peek(network_of(address)) or 0.0) - self._now()
        over_s = backlog_s - (BURST - 1) * INTERVAL_S
        return max(1, math.ceil(over_s)) if over_s > 0 else None

    def failed(self, address: str) -> None:
        now, network = self._now(), network_of(address)
        self._until.put(network, max(now, self._until.peek(network) or 0.0) + INTERVAL_S)


def network_of(address: str) -> str:
    """Return the network that failures are counted for. For IPv6 it is the /64: a client can use all of its 2^64
    addresses."""
    try:
        result = ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if not isinstance(result, IPv6Address):
        return str(result)
    if result.ipv4_mapped is not None:
        return str(result.ipv4_mapped)
    return str(IPv6Address(int(result) >> 64 << 64))


REJECTION_MESSAGES = {
    "unknown": "the API key is not known",
    "expired": "the API key has expired",
    "revoked": "the API key was revoked",
    "mistyped": "the API key is cut or mistyped: its checksum does not fit",
}


def client_of(request: RequestContext, rules: CredentialRules) -> Client:
    """Return the client as its credentials show it. They are read once for each head, which includes the query."""
    client = request.head.client
    if client is None:
        shown = rules.read(request.headers, request.query)
        client = request.head.client = Client(shown.tenant, shown.account, shown)
    return client


class PassthroughAuth:
    """Leaves the check of credentials to the backend. Their full hash is the tenant, so a stored answer is served only
    to clients that send the same credentials."""

    def __init__(self, inner: Handler, rules: CredentialRules, tenants: TenantsOfKeys) -> None:
        self._inner = inner
        self._rules = rules
        self._tenants = tenants
        self._anonymous = AnonymousHits()

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        client = request.head.client
        if client is None:
            client = client_of(request, self._rules)
            self._tenants.see(client.credentials)
        request.client = client
        if client.tenant is not ANONYMOUS or self._anonymous.has_warned:
            return self._inner(request)
        return self._anonymous.watch(request, self._inner(request))


class ApiKeyAuth:
    """Checks the credentials in the gateway. `failures` bounds the lookups of invalid keys by address. A key that is
    known already is served regardless of earlier failures from its address."""

    def __init__(
        self,
        inner: Handler,
        rules: CredentialRules,
        key_cache: KeyCache,
        failures: AuthThrottle,
        telemetry: Telemetry,
    ) -> None:
        self._inner = inner
        self._rules = rules
        self._key_cache = key_cache
        self._failures = failures
        self._telemetry = telemetry

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        client = client_of(request, self._rules)
        text = client.credentials.listed_key
        if text is None:
            self._telemetry.auth_failures.add("data", "missing")
            raise Unauthorized("an API key is required: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'")
        digest = digest_of(text)  # a lookup by full hash: its timing reveals nothing about a key
        permit = self._key_cache.cached(digest)
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
            result: LookupResult = await self._key_cache.find(digest)
        else:
            result = "mistyped" if text.startswith(PREFIX) else "unknown"
        if not isinstance(result, Principal):
            self._failures.failed(request.client_address)
            self._telemetry.auth_failures.add("data", result)
            raise Unauthorized(REJECTION_MESSAGES[result])
        return await resolve_response(self._admit(request, client, result))


class JobAuth:
    """Authenticates a job when it runs, with the current permissions of the key that submitted it."""

    def __init__(self, inner: Handler, rules: CredentialRules, key_cache: KeyCache) -> None:
        self._inner = inner
        self._rules = rules
        self._key_cache = key_cache

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        tenant, shown = request.client.tenant, client_of(request, self._rules).credentials
        request.client = Client(tenant, request.headers.get(ACCOUNT, tenant), shown)
        identity = request.headers.get(HEADER)
        return self._inner(request) if identity is None else self._look_up(request, identity)

    async def _look_up(self, request: RequestContext, identity: str) -> Response:
        result = await self._key_cache.find_by_id(identity)
        if not isinstance(result, Principal):
            raise Unauthorized(REJECTION_MESSAGES[result])
        request.client = replace(request.client, permit=result, read_only=result.read_only)
        return await resolve_response(self._inner(request))
