"""Authenticates requests: finds the tenant whose answers a request may see, and throttles guesses."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from ipaddress import IPv6Address, ip_address

from gateway.bounded_cache import BoundedCache
from gateway.context import Handler, RequestContext
from gateway.credentials import ANONYMOUS, CredentialRules
from gateway.messages import Response
from gateway.request_fields import Client
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
