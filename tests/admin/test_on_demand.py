"""Operations of the admin port that are imported at their first request."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gateway.admin import on_demand
from gateway.admin.explain_pair import ExplainHandler
from gateway.admin.explanation import ExplainRequests
from gateway.admin.middleware import ROLES
from gateway.admin.on_demand import OPERATIONS, AdminCore, routes_on_demand
from gateway.extensions import Extensions
from gateway.features.simulation.admin import SimulationAdmin


class Counted:
    """An operation that counts its objects."""

    made = 0

    def __init__(self, core: Any) -> None:
        Counted.made += 1

    async def answer(self, request: web.Request) -> web.Response:
        return web.Response(text=f"object {Counted.made}")


def test_each_operation_has_a_class_and_requires_a_role() -> None:
    kinds = {name: OPERATIONS.load(name) for name in OPERATIONS.own}
    assert set(kinds.values()) == {ExplainRequests, ExplainHandler, SimulationAdmin}
    assert kinds.keys() <= ROLES.keys()


async def test_first_requests_at_the_same_time_share_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_demand, "OPERATIONS", Extensions("nearhit.tests", {"GET /it": f"{__name__}:Counted"}))
    app = web.Application()
    app.add_routes(routes_on_demand(cast(AdminCore, None)))
    assert Counted.made == 0
    async with TestClient(TestServer(app)) as client:
        answers = await asyncio.gather(*(client.get("/it") for _ in range(5)))
        assert [await answer.text() for answer in answers] == ["object 1"] * 5
