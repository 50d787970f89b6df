"""Builders that the composition root (`app`) calls: access, observer, cache operations, dashboard."""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import math
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import unquote

from aiohttp import web

from gateway.adapters.redis.timeline import RedisTimeline
from gateway.admin.audit import AuditPort
from gateway.admin.history import HistoryRecorder
from gateway.admin.middleware import AccessMiddleware, Authenticator, Check
from gateway.cache.freshness import longest_lifetime_s
from gateway.cache.purge import Purge
from gateway.cache.stores import Stores
from gateway.config import AuthConfig, Config
from gateway.config.auth import OidcConfig
from gateway.config.environment import read_secret
from gateway.config.key_format import digest_of, is_well_formed
from gateway.config.policy.model import Policy
from gateway.context import Handler
from gateway.errors import StartupError, Unauthorized
from gateway.observability.access_log import AccessLog, LogShares
from gateway.observability.live_events import LiveEvents
from gateway.observability.observer import Observer
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.principal import Actor, Principal, Role
from gateway.steps.authenticate import AuthThrottle, PassthroughAuth
from gateway.steps.authenticate_job import JobAuth
from gateway.steps.key_lookup import REJECTION_MESSAGES, ApiKeys
from gateway.steps.parts import Parts
from gateway.steps.shared_tenants import TenantsOfKeys
from gateway.tasks import run_in

if TYPE_CHECKING:  # imported if traces are exported
    from gateway.observability.sampler import Tracing


class Access:
    """`Access` builds authentication for both ports. It raises `StartupError` if a configured secret is missing from
    the environment."""

    def __init__(
        self, config: Config, environ: Mapping[str, str], stores: Stores, clock: Clock, telemetry: Telemetry
    ) -> None:
        auth, server = config.auth, config.server
        token = read_secret(environ, auth.admin_token_env, "auth.admin_token_env")
        failures = AuthThrottle(clock.monotonic)
        self.keys = ApiKeys(stores.redis, _configured(auth), clock, telemetry, auth.key_grace)
        checks = [_key_check(self.keys)]
        if auth.oidc is not None:
            checks.append(_token_check(auth.oidc, clock))
        allow_anonymous = token is None and auth.oidc is None
        authenticator = Authenticator(token, checks, failures, telemetry, allow_anonymous=allow_anonymous)
        audit = AuditPort(config, stores.redis, telemetry)
        self.guard = AccessMiddleware(server.admin, server.admin_hosts, authenticator, audit, clock)
        self._keys_required = auth.mode == "keys"
        self._rules = auth.credential_rules
        self.tenants_of_keys = TenantsOfKeys()
        self._failures = AuthThrottle(clock.monotonic)
        self._telemetry = telemetry

    @property
    def is_valid(self) -> Callable[[Principal], bool]:
        """Tells without a lookup whether a principal is as good as when it was found. Without keys there is none."""
        return self.keys.open().is_valid if self._keys_required else _never

    def authenticate(self, inner: Handler) -> Handler:
        """Return the authentication step for client requests."""
        if not self._keys_required:
            return PassthroughAuth(inner, self._rules, self.tenants_of_keys).__call__
        return self.keys.authentication(inner, self._rules, self._failures)

    def authenticate_job(self, inner: Handler) -> Handler:
        """Return the authentication step for requests that run on behalf of clients."""
        return JobAuth(inner, self._rules, self.keys).__call__

    async def begin(self, stack: AsyncExitStack) -> None:
        """Follow the keys in the store until `stack` closes."""
        await self.keys.begin(stack)


def _never(_: Principal) -> bool:
    return False


def _configured(auth: AuthConfig) -> dict[str, Principal]:
    return {
        digest: Principal("", tenant, tenant, Role.USE) for tenant, digests in auth.keys.items() for digest in digests
    }


def _token_check(oidc: OidcConfig, clock: Clock) -> Check:
    """Build the check of OIDC tokens. Raise `StartupError`."""
    check: Check = import_module("gateway.features.oidc.check").token_check(oidc, clock)
    return check


def _key_check(keys: ApiKeys) -> Check:
    async def check(text: str) -> Actor | None:
        if not is_well_formed(text):
            return None
        principal = await (await keys.lookup()).find(digest_of(text))
        if not isinstance(principal, Principal):
            raise Unauthorized(REJECTION_MESSAGES[principal])
        return Actor(principal.name, principal.role, "key", principal.tenant)

    return check


# The observer, and the exporter of traces if one is configured.
HEADERS = "telemetry.traces.headers_env"

_NAME, _VALUE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"), re.compile(r"[ -~]*")


def observer_of(
    stack: AsyncExitStack,
    config: Config,
    environ: Mapping[str, str],
    access_log: AccessLog | None,
    parts: Parts,
    decisions: LiveEvents,
) -> Observer:
    """Build the observer. `stack` stops what it starts. Raise `StartupError`."""
    tracing = _tracing(stack, config, environ, parts.clock, parts.telemetry)
    shares = LogShares(config.telemetry.access_log.sample)
    used, recorder = parts.evictions.used, parts.recorder
    return Observer(parts.telemetry, parts.clock, access_log, used, recorder, decisions, shares, tracing)


def _tracing(
    stack: AsyncExitStack, config: Config, environ: Mapping[str, str], clock: Clock, telemetry: Telemetry
) -> Tracing | None:
    """Return None if no receiver is configured."""
    traces = config.telemetry.traces
    if traces.endpoint is None:
        return None
    exporting = importlib.import_module("gateway.adapters.system.otlp_exporter")  # imported on demand: it takes 0.2 s
    receiver = exporting.SpanReceiver(traces.endpoint, _headers(environ, traces.headers_env), traces.timeout)
    resource = {
        "service.name": traces.service_name,
        "service.version": importlib.metadata.version("nearhit"),
        "service.instance.id": str(uuid.uuid4()),
    }
    exporter = exporting.OtlpExporter(receiver, resource, traces.max_queued, telemetry)
    sampler = importlib.import_module("gateway.observability.sampler")
    tracing: Tracing = sampler.Tracing(
        traces.sample, math.inf if traces.slow is None else traces.slow, exporter, clock, telemetry
    )

    async def close() -> None:
        tracing.close()
        await asyncio.to_thread(exporter.close)

    stack.push_async_callback(close)
    return tracing


def _headers(environ: Mapping[str, str], variable: str | None) -> dict[str, str]:
    """Parse `name=value,name=value` with percent-encoded values, the format of OTEL_EXPORTER_OTLP_HEADERS.

    No error message repeats the headers, because they may contain credentials.
    """
    text = read_secret(environ, variable, HEADERS) or ""
    headers = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, value = part.partition("=")
        name, value = name.strip(), unquote(value.strip())
        if not equals or _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            raise StartupError(f"{HEADERS}: the variable {variable} must hold name=value,name=value")
        headers[name] = value
    return headers


# The dashboard without its metrics: files, history, live view.
SAMPLE_EVERY_S = 5.0

Observed = Callable[[Parts, LiveEvents], Observer]


class Dashboard:
    """`Dashboard` builds the dashboard. Its `observer` sees every request, for metrics, logs, traces and the live
    view."""

    def __init__(self, parts: Parts, stores: Stores, make_observer: Observed) -> None:
        self.decisions = LiveEvents()
        self.history_recorder = HistoryRecorder(parts.telemetry, RedisTimeline(stores.redis), parts.clock)
        self.observer = make_observer(parts, self.decisions)

    def routes(self) -> list[web.RouteDef]:
        return self.history_recorder.routes()

    def begin(self, stack: AsyncExitStack, sample: Callable[[], Awaitable[None]]) -> None:
        """Record the history until `stack` closes. `sample` updates the gauges."""
        stack.push_async_callback(self.history_recorder.close)
        run_in(stack, self.history_recorder.run())
        run_in(stack, self._record(sample))

    async def _record(self, sample: Callable[[], Awaitable[None]]) -> None:
        while True:
            await sample()
            self.history_recorder.record()
            await asyncio.sleep(SAMPLE_EVERY_S)


def purge_of(config: Config, parts: Parts, stores: Stores, policy: Callable[[], Policy]) -> Purge:
    """Build the purge. `policy` returns the policy in force."""
    slowest_s = max(backend.timeouts.total for backend in config.backends.values())

    def horizon_s() -> float:
        return slowest_s + max(map(longest_lifetime_s, policy().routes), default=0.0)

    return Purge(
        front=parts.store,
        store=stores.removals,
        spaces=parts.spaces,
        flights=parts.flights,
        clock=parts.clock,
        telemetry=parts.telemetry,
        horizon_s=horizon_s,
        open_spaces=parts.opener.open,
    )
