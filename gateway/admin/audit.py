"""What was done by whom on the admin port: a line of a file, of the log `nearhit.audit`, and of the store's last ones.

The file is this gateway's and comes first; the store's list is that of all gateways on it, and bounded."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import orjson
from aiohttp import web

from gateway.adapters.system.audit_file import AuditFile
from gateway.admin.responses import int_parameter, json_errors, json_response
from gateway.errors import BadRequest, StoreUnavailable
from gateway.observability.telemetry import Telemetry
from gateway.ports import RemovalStore

LOG = logging.getLogger("nearhit.audit")
DEFAULT_LIMIT, MAX_LIMIT = 50, 1_000
AUDIT_FIELDS = web.RequestKey("noted", dict[str, Any])


def add_audit_fields(request: web.Request, **fields: Any) -> None:
    """What an action was about, for the trail: neither texts nor secrets. `look=True`: it changes nothing after all."""
    request.get(AUDIT_FIELDS, {}).update(fields)


class AuditTrail:
    def __init__(self, file: AuditFile, store: RemovalStore, telemetry: Telemetry) -> None:
        self._file = file
        self._store = store
        self._telemetry = telemetry

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/admin/audit", json_errors(self._get))]

    def record(self, entry: dict[str, Any]) -> bytes:
        """At once: what was done is written down before it is said to be done."""
        line = orjson.dumps(entry)
        LOG.info(entry["did"], extra={"fields": entry})
        try:
            self._file.append(line)
        except OSError as error:
            self._telemetry.audit_errors.add("file")
            LOG.error("the audit trail cannot be written, it is in this log alone: %s", error.strerror or error)
        return line

    async def publish(self, line: bytes) -> None:
        """With the gateways on the store."""
        try:
            await self._store.add_audit(line)
        except StoreUnavailable as error:
            self._telemetry.audit_errors.add("store")
            LOG.warning("an action is in this gateway's audit trail alone", extra={"fields": {"error": str(error)}})

    async def _get(self, request: web.Request) -> web.StreamResponse:
        limit = int_parameter(request, "limit", DEFAULT_LIMIT, MAX_LIMIT)
        try:
            source, lines = await self._latest(limit, request.query.get("source", "store"))
        except OSError as error:
            return json_response({"error": f"the audit trail cannot be read: {error.strerror or error}"}, 500)
        return json_response({"source": source, "entries": [_parse_entry(line) for line in lines]})

    async def _latest(self, limit: int, source: str) -> tuple[str, list[bytes]]:
        if source not in ("store", "file"):
            raise BadRequest("source: expected store (all gateways on it) or file (this gateway)")
        if source == "store":
            try:
                return "store", list(await self._store.audits(limit))
            except StoreUnavailable:
                pass  # what this gateway wrote down itself is better than nothing
        return "file", await asyncio.to_thread(self._file.latest, limit)


def _parse_entry(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:  # the disk was full in the middle of it
        return {"unreadable": len(line)}
