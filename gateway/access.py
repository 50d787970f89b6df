"""Builds what decides who may do what."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from importlib import import_module

from gateway.adapters.system.audit_file import AuditFile
from gateway.admin.audit import AuditTrail
from gateway.admin.keys import KeyAdmin, KeysHandler
from gateway.admin.middleware import AccessMiddleware, Authenticator, Check
from gateway.api_keys import digest_of, is_well_formed
from gateway.cache.stores import Stores
from gateway.config import AuthConfig, Config
from gateway.config.auth import OidcConfig
from gateway.config.environment import read_secret
from gateway.context import Handler
from gateway.errors import Unauthorized
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.principal import Actor, Principal, Role
from gateway.steps.authenticate import REJECTION_MESSAGES, ApiKeyAuth, AuthThrottle, JobAuth, PassthroughAuth
from gateway.steps.key_cache import KeyCache
from gateway.tasks import run_in


class Access:
    """Raises `StartupError` where a named secret is not in the environment."""

    def __init__(
        self, config: Config, environ: Mapping[str, str], stores: Stores, clock: Clock, telemetry: Telemetry
    ) -> None:
        auth, server = config.auth, config.server
        token = read_secret(environ, auth.admin_token_env, "auth.admin_token_env")
        failures = AuthThrottle(clock.monotonic)
        self.key_cache = KeyCache(stores.keys, _configured(auth), clock, telemetry, grace_s=auth.key_grace)
        file = AuditFile(config.data_dir, max_bytes=config.audit.max_size, files=config.audit.files)
        audit_trail = AuditTrail(file, stores.removals, telemetry)
        checks = [_key_check(self.key_cache)]
        if auth.oidc is not None:
            checks.append(_token_check(auth.oidc, clock))
        allow_anonymous = token is None and auth.oidc is None
        authenticator = Authenticator(token, checks, failures, telemetry, allow_anonymous=allow_anonymous)
        self.guard = AccessMiddleware(server.admin, server.admin_hosts, authenticator, audit_trail, clock)
        keys_required = auth.mode == "keys"
        self.key_admin = KeyAdmin(stores.keys, self.key_cache, clock)
        keys = KeysHandler(self.key_admin, clock, keys_required=keys_required)
        self.admin = [*audit_trail.routes(), *keys.routes()]
        self._asked_for = keys_required
        self._failures = AuthThrottle(clock.monotonic)
        self._telemetry = telemetry

    def authenticate(self, inner: Handler) -> Handler:
        """The step for requests that clients send."""
        if not self._asked_for:
            return PassthroughAuth(inner).__call__
        return ApiKeyAuth(inner, self.key_cache, self._failures, self._telemetry).__call__

    def authenticate_job(self, inner: Handler) -> Handler:
        """The step for requests that are run for clients."""
        return JobAuth(inner, self.key_cache).__call__

    async def begin(self, stack: AsyncExitStack) -> None:
        """Follows the keys of the store, until `stack` ends it."""
        await self.key_cache.refresh()
        stack.push_async_callback(self.key_cache.close)
        run_in(stack, self.key_cache.run())


def _configured(auth: AuthConfig) -> dict[str, Principal]:
    return {
        digest: Principal("", tenant, tenant, Role.USE) for tenant, digests in auth.keys.items() for digest in digests
    }


def _token_check(oidc: OidcConfig, clock: Clock) -> Check:
    """Raises `StartupError`."""
    check: Check = import_module("gateway.admin.oidc").token_check(oidc, clock)
    return check


def _key_check(key_cache: KeyCache) -> Check:
    async def check(text: str) -> Actor | None:
        if not is_well_formed(text):
            return None
        principal = await key_cache.find(digest_of(text))
        if not isinstance(principal, Principal):
            raise Unauthorized(REJECTION_MESSAGES[principal])
        return Actor(principal.name, principal.role, "key", principal.tenant)

    return check
