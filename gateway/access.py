"""Builds what decides who may do what."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from importlib import import_module

from gateway.adapters.system.audit_file import AuditFile
from gateway.admin.audit import AuditTrail
from gateway.admin.keys import KeyAdmin, KeysHandler
from gateway.admin.middleware import AccessMiddleware, Authenticator, Check
from gateway.api_keys import digest_of, well_formed
from gateway.cache.stores import Stores
from gateway.config import AuthConfig, Config
from gateway.config.auth import OidcConfig
from gateway.config.environment import secret
from gateway.context import Handler
from gateway.errors import Unauthorized
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.principal import Actor, Principal, Role
from gateway.steps.authenticate import SENTENCES, ApiKeyAuth, AuthThrottle, JobAuth, PassthroughAuth
from gateway.steps.key_cache import KeyCache
from gateway.tasks import run_within


class Access:
    """Raises `StartupError` where a named secret is not in the environment."""

    def __init__(
        self, config: Config, environ: Mapping[str, str], stores: Stores, clock: Clock, telemetry: Telemetry
    ) -> None:
        auth, server = config.auth, config.server
        token = secret(environ, auth.admin_token_env, "auth.admin_token_env")
        failures = AuthThrottle(clock.monotonic)
        self.keyring = KeyCache(stores.keys, _configured(auth), clock, telemetry, kept_s=auth.key_grace)
        file = AuditFile(config.data_dir, max_bytes=config.audit.max_size, files=config.audit.files)
        trail = AuditTrail(file, stores.removals, telemetry)
        checks = [_by_key(self.keyring)]
        if auth.oidc is not None:
            checks.append(_token_check(auth.oidc, clock))
        unlocked = token is None and auth.oidc is None
        entrance = Authenticator(token, checks, failures, telemetry, unlocked=unlocked)
        self.guard = AccessMiddleware(server.admin, server.admin_hosts, entrance, trail, clock)
        asked_for = auth.mode == "keys"
        self.keychain = KeyAdmin(stores.keys, self.keyring, clock)
        keys = KeysHandler(self.keychain, clock, asked_for=asked_for)
        self.admin = [*trail.routes(), *keys.routes()]
        self._asked_for = asked_for
        self._failures = AuthThrottle(clock.monotonic)
        self._telemetry = telemetry

    def authenticate(self, inner: Handler) -> Handler:
        """The step for requests that clients send."""
        if not self._asked_for:
            return PassthroughAuth(inner).__call__
        return ApiKeyAuth(inner, self.keyring, self._failures, self._telemetry).__call__

    def authenticate_job(self, inner: Handler) -> Handler:
        """The step for requests that are run for clients."""
        return JobAuth(inner, self.keyring).__call__

    async def begin(self, stack: AsyncExitStack) -> None:
        """Follows the keys of the store, until `stack` ends it."""
        await self.keyring.refresh()
        stack.push_async_callback(self.keyring.close)
        run_within(stack, self.keyring.run())


def _configured(auth: AuthConfig) -> dict[str, Principal]:
    return {
        digest: Principal("", tenant, tenant, Role.USE) for tenant, digests in auth.keys.items() for digest in digests
    }


def _token_check(oidc: OidcConfig, clock: Clock) -> Check:
    """Raises `StartupError`."""
    check: Check = import_module("gateway.admin.oidc").token_check(oidc, clock)
    return check


def _by_key(keyring: KeyCache) -> Check:
    async def check(text: str) -> Actor | None:
        if not well_formed(text):
            return None
        found = await keyring.find(digest_of(text))
        if not isinstance(found, Principal):
            raise Unauthorized(SENTENCES[found])
        return Actor(found.name, found.role, "key", found.tenant)

    return check
