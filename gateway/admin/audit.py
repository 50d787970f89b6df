"""`AuditTrail` records each action on the admin port: in a file, in the log `nearhit.audit`, and in the store.

Each gateway has its own file, which is written first. The list in the store is bounded and has the actions of all
gateways that use the store.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated, Any, Literal

import orjson
from aiohttp import web
from pydantic import Field

from gateway.adapters.system.audit_file import AuditFile
from gateway.admin.operations import TypedDict, operation
from gateway.admin.responses import int_parameter, json_errors, json_response
from gateway.errors import BadRequest, StoreUnavailable
from gateway.observability.telemetry import Telemetry
from gateway.ports import RemovalStore

LOG = logging.getLogger("nearhit.audit")
DEFAULT_LIMIT, MAX_LIMIT = 50, 1_000
AUDIT_FIELDS = web.RequestKey("noted", dict[str, Any])


def add_audit_fields(request: web.Request, **fields: Any) -> None:
    """Add details of an action to its entry: neither texts nor secrets.

    `look=True`: the action changes nothing after all, so it is not recorded.
    """
    request.get(AUDIT_FIELDS, {}).update(fields)


class AuditQuery(TypedDict, total=False):
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT, default=DEFAULT_LIMIT)]
    source: Annotated[Literal["store", "file"], Field(default="store")]
    """`store`: the actions of all gateways on the store. `file`: the actions of this gateway."""


class AuditReport(TypedDict):
    source: Literal["store", "file"]
    """`file` also if the store does not answer."""
    entries: list[dict[str, Any]]
    """The newest first. Each has `at`, `who`, `role`, `by`, `peer`, `did`, `status`, `outcome`, and details."""


class AuditTrail:
    """`AuditTrail` writes and reads the audit trail."""

    def __init__(self, file: AuditFile, store: RemovalStore, telemetry: Telemetry) -> None:
        self._file = file
        self._store = store
        self._telemetry = telemetry

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/admin/audit", json_errors(self._get))]

    def record(self, entry: dict[str, Any]) -> bytes:
        """Write an entry to the log and to the file, and return it as a line.

        This happens before the response is sent, so no action is confirmed without an entry.
        """
        line = orjson.dumps(entry)
        LOG.info(entry["did"], extra={"fields": entry})
        try:
            self._file.append(line)
        except OSError as error:
            self._telemetry.audit_errors.add("file")
            LOG.error("the audit trail cannot be written, this log has the only copy: %s", error.strerror or error)
        return line

    async def publish(self, line: bytes) -> None:
        """Add an entry to the list in the store."""
        try:
            await self._store.add_audit(line)
        except StoreUnavailable as error:
            self._telemetry.audit_errors.add("store")
            LOG.warning("an action is only in this gateway's audit trail", extra={"fields": {"error": str(error)}})

    @operation(AuditReport, query=AuditQuery)
    async def _get(self, request: web.Request) -> web.StreamResponse:
        """List the latest actions on the admin port. See `docs/keys.md` for the fields of an entry."""
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
                pass  # the file of this gateway has at least its own actions
        return "file", await asyncio.to_thread(self._file.latest, limit)


def _parse_entry(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:  # the disk was full in the middle of the line
        return {"unreadable": len(line)}
