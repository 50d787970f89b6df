"""`GET /admin/limits`: the state of limits."""

from __future__ import annotations

from typing import Annotated

from aiohttp import web
from pydantic import Field

from gateway.admin.on_demand import AdminCore
from gateway.admin.operations import TypedDict, operation
from gateway.admin.responses import json_response
from gateway.features.limits.rate_limiter import MAX_SEEN, LimitUsage

DEFAULT_LIMIT = 50


class LimitsQuery(TypedDict, total=False):
    top: Annotated[int, Field(ge=1, le=MAX_SEEN, default=DEFAULT_LIMIT)]
    """The most limits to return."""


class LimitsReport(TypedDict):
    gateways: int
    """The gateways that share the limits."""
    waiting: int
    """Corrections of the counts that are not yet in the store."""
    limits: list[LimitUsage]


class LimitsAdmin:
    """`LimitsAdmin` serves `GET /admin/limits`."""

    def __init__(self, core: AdminCore) -> None:
        self._core = core

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/admin/limits", self._get)]

    @operation(LimitsReport, query=LimitsQuery)
    async def _get(self, request: web.Request) -> web.StreamResponse:
        """List the limits, those with the most refusals first.

        Each has the amount that was left at the last request that this gateway saw.
        """
        top = request.query.get("top", str(DEFAULT_LIMIT))
        if not top.isascii() or not top.isdigit() or not 1 <= int(top[:9]) <= MAX_SEEN:
            return json_response({"error": f"top: expected a number from 1 to {MAX_SEEN}"}, status=400)
        return json_response(self._core.parts().meter().report(int(top[:9])))
