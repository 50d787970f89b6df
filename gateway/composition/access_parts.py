"""Builds what decides who may do what. Used by `app` alone."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.access.failures import Failures
from gateway.adapters.audit_file import AuditFile
from gateway.admin.audit import AuditTrail
from gateway.admin.guard import Entrance, Guard
from gateway.composition.parts import Stores, secret
from gateway.config import Config
from gateway.observing.telemetry import Telemetry
from gateway.ports import Clock


class Access:
    """Raises `StartFailed` where a named secret is not in the environment."""

    def __init__(
        self, config: Config, environ: Mapping[str, str], stores: Stores, clock: Clock, telemetry: Telemetry
    ) -> None:
        token = secret(environ, config.auth.admin_token_env, "auth.admin_token_env")
        failures = Failures(clock.monotonic)
        file = AuditFile(config.data_dir, max_bytes=config.audit.max_size, files=config.audit.files)
        trail = AuditTrail(file, stores.removals, telemetry)
        entrance = Entrance(token, (), failures, telemetry)
        self.guard = Guard(config.server.admin, config.server.admin_hosts, entrance, trail, clock)
        self.admin = trail.routes()
