"""The admin operation that rewrites the records with a new key."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from gateway.admin.audit import add_audit_fields
from gateway.admin.on_demand import AdminCore
from gateway.admin.operations import TypedDict, operation
from gateway.admin.responses import json_errors, json_response
from gateway.errors import GatewayError
from gateway.features.encryption.rekey import Rekey, RekeyIncomplete


class RekeyReport(TypedDict):
    key: str
    """The id of the first key."""
    rewritten: int
    current: int
    """Records that the first key had written already."""
    replaced: int
    """Records that were stored again or removed in the meantime."""
    unreadable: int
    """Records that are damaged, or of a key that is not configured."""
    notes: list[str]
    """Places where former records were not reached."""


class RekeyAdmin:
    """`RekeyAdmin` serves `POST /admin/cache/rekey`."""

    def __init__(self, core: AdminCore) -> None:
        self._rekey = Rekey(core.stores.redis, core.stores.file)

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/admin/cache/rekey", json_errors(self._rewrite, _error_fields))]

    @operation(RekeyReport)
    async def _rewrite(self, request: web.Request) -> web.StreamResponse:
        """Rewrite all records with the first key of `store.encryption`. A run that was cut off is repeated."""
        summary = (await self._rekey.run()).as_json()
        add_audit_fields(request, **{name: value for name, value in summary.items() if name != "notes"})
        return json_response(summary)


def _error_fields(error: GatewayError) -> dict[str, Any]:
    return error.summary.as_json() if isinstance(error, RekeyIncomplete) else {}
