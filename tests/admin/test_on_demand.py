"""Operations of the admin port that are imported at their first request."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gateway.admin import on_demand
from gateway.admin.middleware import ROLES, is_page
from gateway.admin.on_demand import OPERATIONS, AdminCore, OnDemand
from gateway.extensions import Extensions


class Counted:
    """An operation that counts its objects."""

    made = 0

    def __init__(self, core: Any) -> None:
        Counted.made += 1

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/it", self._answer), web.get("/that", self._answer)]

    async def _answer(self, request: web.Request) -> web.Response:
        return web.Response(text=f"object {Counted.made}")


OF_COUNTED = dict.fromkeys(("GET /it", "GET /that"), f"{__name__}:Counted")


def test_each_operation_has_a_class_and_requires_a_role() -> None:
    for name in OPERATIONS.own:
        # routes() only refers to methods, so it works without the parts that __init__ needs
        routes = object.__new__(OPERATIONS.load(name)).routes()
        assert name in {f"{route.method} {route.path}" for route in routes}
    assert {name for name in OPERATIONS.own if not is_page(name.split()[1])} <= ROLES.keys()


async def test_first_requests_at_the_same_time_share_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_demand, "OPERATIONS", Extensions("nearhit.tests", OF_COUNTED))
    app = web.Application()
    app.add_routes(OnDemand(cast(AdminCore, None)).routes())
    assert Counted.made == 0
    async with TestClient(TestServer(app)) as client:
        answers = await asyncio.gather(*(client.get(path) for path in ("/it", "/that") * 3))
        assert [await answer.text() for answer in answers] == ["object 1"] * 6
