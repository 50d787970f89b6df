"""The port of the audit trail, which records each action on the admin port. It opens before the first action."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from aiohttp import web

from gateway.adapters.redis.store import RedisStore
from gateway.config import Config
from gateway.observability.telemetry import Telemetry

MODULE = "gateway.features.audit.trail"
AUDIT_FIELDS = web.RequestKey("noted", dict[str, Any])


def add_audit_fields(request: web.Request, **fields: Any) -> None:
    """Add details of an action to its entry: neither texts nor secrets.

    `look=True`: the action changes nothing after all, so it is not recorded.
    """
    request.get(AUDIT_FIELDS, {}).update(fields)


class AuditTrail(Protocol):
    """Writes the audit trail. It never fails."""

    def record(self, entry: dict[str, Any]) -> bytes:
        """Write an entry to the log and to the file, and return it as a line.

        This happens before the response is sent, so no action is confirmed without an entry.
        """

    async def publish(self, line: bytes) -> None:
        """Add an entry to the list in the store."""


@dataclass(slots=True)
class AuditPort:
    """Opens the audit trail."""

    config: Config
    store: RedisStore
    telemetry: Telemetry
    _trail: AuditTrail | None = None

    async def opened(self) -> AuditTrail:
        """Return the audit trail."""
        if self._trail is None:
            module = await asyncio.to_thread(import_module, MODULE)  # the event loop goes on during the import
            self._trail = self._trail or module.open_trail(self)
        return self._trail
