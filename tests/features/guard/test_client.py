"""The HTTP client of a guard: every way to give no verdict, and the bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from gateway.adapters.system.clock import SystemClock
from gateway.features.guard.client import MAX_INFLIGHT, GuardServer
from gateway.features.guard.question import ALLOWED, Content, GuardFailed, Outcome
from gateway.upstream.aiohttp_session import AiohttpSession
from tests.fixtures.triton import free_ports
from tests.fixtures.upstream import Upstream, serving
from tests.fixtures.waiting import until

CONTENT, BODY = Content(["a text"]), b'{"texts": ["a text"]}'
PATIENT_S, SHORT_S = 30.0, 0.05


@pytest.fixture
async def session() -> AsyncIterator[AiohttpSession]:
    session = AiohttpSession(5.0, 2 * MAX_INFLIGHT)
    yield session
    await session.close()


async def failure_of(server: GuardServer, timeout_s: float = PATIENT_S) -> GuardFailed:
    with pytest.raises(GuardFailed) as caught:
        await server.judge(BODY, CONTENT, timeout_s)
    return caught.value


async def test_a_guard_that_refuses_connections_has_failed(session: AiohttpSession) -> None:
    (port,) = free_ports(1)
    failure = await failure_of(GuardServer(f"http://127.0.0.1:{port}/", {}, session.get, SystemClock()))
    assert (failure.outcome, "ClientConnectorError" in str(failure)) == (Outcome.FAILED, True)


async def test_a_guard_that_stops_within_its_answer_is_late(session: AiohttpSession) -> None:
    async def begin(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        await response.write(b'{"action": ')
        await asyncio.Event().wait()
        return response

    async with serving(Upstream("guard", answer=begin)) as guard:
        failure = await failure_of(GuardServer(guard.url, {}, session.get, SystemClock()), SHORT_S)
    assert failure.outcome is Outcome.LATE


async def test_the_questions_at_once_are_bounded(session: AiohttpSession) -> None:
    async def allow(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"action": "NONE"})

    async with serving(Upstream("guard", answer=allow)) as guard:
        guard.gate.clear()
        server = GuardServer(guard.url, {"x-api-key": "secret"}, session.get, SystemClock())
        asked = [asyncio.create_task(server.judge(BODY, CONTENT, PATIENT_S)) for _ in range(MAX_INFLIGHT)]
        await until(lambda: len(guard.calls) == MAX_INFLIGHT)
        assert (await failure_of(server)).outcome is Outcome.BUSY
        guard.gate.set()
        assert set(await asyncio.gather(*asked)) == {ALLOWED}
        assert guard.calls[0].headers["x-api-key"] == "secret"
        assert await server.judge(BODY, CONTENT, PATIENT_S) == ALLOWED
