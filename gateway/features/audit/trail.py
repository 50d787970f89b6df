"""Records each action on the admin port: in a file, in the log `nearhit.audit`, and in the store.

Each gateway has its own file, which is written first. The list in the store is bounded and has the actions of all
gateways that use the store.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.admin.audit import AuditPort
from gateway.config import Config
from gateway.errors import StoreUnavailable
from gateway.features.audit.file import AuditFile
from gateway.features.audit.redis import RedisAudit
from gateway.observability.telemetry import Telemetry

LOG = logging.getLogger("nearhit.audit")


@dataclass(frozen=True, slots=True)
class RecordedActions:
    """`RecordedActions` writes the audit trail: the implementation of `gateway.admin.audit.AuditTrail`."""

    file: AuditFile
    store: RedisAudit
    telemetry: Telemetry

    def record(self, entry: dict[str, Any]) -> bytes:
        """Write an entry to the log and to the file, and return it as a line.

        This happens before the response is sent, so no action is confirmed without an entry.
        """
        line = orjson.dumps(entry)
        LOG.info(entry["did"], extra={"fields": entry})
        try:
            self.file.append(line)
        except OSError as error:
            self.telemetry.audit_errors.add("file")
            LOG.error("the audit trail cannot be written, this log has the only copy: %s", error.strerror or error)
        return line

    async def publish(self, line: bytes) -> None:
        """Add an entry to the list in the store."""
        try:
            await self.store.add(line)
        except StoreUnavailable as error:
            self.telemetry.audit_errors.add("store")
            LOG.warning("an action is only in this gateway's audit trail", extra={"fields": {"error": str(error)}})


def file_of(config: Config) -> AuditFile:
    """Return the file of this gateway."""
    return AuditFile(config.data_dir, max_bytes=config.audit.max_size, files=config.audit.files)


def open_trail(port: AuditPort) -> RecordedActions:
    """Build the audit trail of a gateway."""
    return RecordedActions(file_of(port.config), RedisAudit(port.store), port.telemetry)
