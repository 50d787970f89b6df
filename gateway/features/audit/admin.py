"""`GET /admin/audit`: the latest actions on the admin port."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

import orjson
from aiohttp import web
from pydantic import Field

from gateway.admin.on_demand import AdminCore
from gateway.admin.operations import TypedDict, operation
from gateway.admin.responses import int_parameter, json_errors, json_response
from gateway.errors import BadRequest, StoreUnavailable
from gateway.features.audit.redis import RedisAudit
from gateway.features.audit.trail import file_of

DEFAULT_LIMIT, MAX_LIMIT = 50, 1_000


class AuditQuery(TypedDict, total=False):
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT, default=DEFAULT_LIMIT)]
    source: Annotated[Literal["store", "file"], Field(default="store")]
    """`store`: the actions of all gateways on the store. `file`: the actions of this gateway."""


class AuditReport(TypedDict):
    source: Literal["store", "file"]
    """`file` also if the store does not answer."""
    entries: list[dict[str, Any]]
    """The newest first. Each has `at`, `who`, `role`, `by`, `peer`, `did`, `status`, `outcome`, and details."""


class AuditAdmin:
    """`AuditAdmin` serves `GET /admin/audit`."""

    def __init__(self, core: AdminCore) -> None:
        self._file = file_of(core.config)
        self._store = RedisAudit(core.stores.redis)

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/admin/audit", json_errors(self._get))]

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
                return "store", await self._store.latest(limit)
            except StoreUnavailable:
                pass  # the file of this gateway has at least its own actions
        return "file", await asyncio.to_thread(self._file.latest, limit)


def _parse_entry(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:  # the disk was full in the middle of the line
        return {"unreadable": len(line)}
