"""GET /admin/limits: who has how much left, as this gateway saw it last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from aiohttp import web

from gateway.admin.responses import json_answer
from gateway.routing.rate_limiter import MAX_SEEN, Quotas

SHOWN = 50


class LimitsHandler:
    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas

    def routes(self) -> Sequence[web.RouteDef]:
        return [web.get("/admin/limits", self._get)]

    async def _get(self, request: web.Request) -> web.StreamResponse:
        asked = request.query.get("top", str(SHOWN))
        if not asked.isascii() or not asked.isdigit() or not 1 <= int(asked[:9]) <= MAX_SEEN:
            return json_answer({"error": f"top: expected a number from 1 to {MAX_SEEN}"}, status=400)
        seen = [asdict(one) for one in self._quotas.seen(int(asked[:9]))]
        return json_answer({"gateways": self._quotas.gateways, "waiting": self._quotas.waiting, "limits": seen})
