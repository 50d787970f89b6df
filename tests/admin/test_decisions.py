"""The live view's stream: what is decided, bounded, without a prompt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.errors import Overloaded
from gateway.observability.live_events import MAX_QUEUED, MAX_WATCHERS, LiveEvents
from tests.fixtures.gateways import Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until


@asynccontextmanager
async def watching(served: Served, query: str = "") -> AsyncIterator[aiohttp.ClientResponse]:
    async with served.session.get(f"{served.admin_url}/admin/decisions{query}") as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        yield response


async def decision(response: aiohttp.ClientResponse) -> Any:
    async with asyncio.timeout(120):
        while True:
            line = await response.content.readline()
            if line.startswith(b"data: "):
                return json.loads(line[6:])


async def test_each_request_is_told_without_its_prompt(served: Served) -> None:
    async with watching(served) as response:
        await until(lambda: served.gateway.dashboard.decisions.is_watched)
        answer = await served.chat("a secret question")
        told = await decision(response)
        await served.chat("a secret question")
        assert (await decision(response))["verdict"] == "exact"
    assert told["id"] == answer.headers["x-request-id"]
    assert (told["verdict"], told["route"], told["status"]) == ("miss", "default", 200)
    assert "secret" not in json.dumps(told)
    await until(lambda: not served.gateway.dashboard.decisions.is_watched)


async def test_only_what_is_wanted_is_told(served: Served) -> None:
    async with watching(served, "?verdict=exact") as response:
        await until(lambda: served.gateway.dashboard.decisions.is_watched)
        await served.chat("hi")
        await served.chat("hi")
        assert (await decision(response))["verdict"] == "exact"


async def test_watchers_are_bounded(served: Served) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(MAX_WATCHERS):
            await stack.enter_async_context(watching(served))
        async with served.session.get(f"{served.admin_url}/admin/decisions") as response:
            assert response.status == 503
            assert "close one of them first" in (await response.json())["error"]


async def test_who_does_not_keep_up_loses_the_oldest_and_is_told_how_many() -> None:
    decisions = LiveEvents()
    with decisions.watch() as watch:
        for number in range(MAX_QUEUED + 7):
            decisions.publish({"number": number})
        taken = await watch.take(1.0)
    assert watch.dropped == 7
    assert [taken[0]["number"], len(taken)] == [7, MAX_QUEUED]


async def test_a_gateway_ends_at_once_though_somebody_watches(upstream: Upstream, tmp_path: Path) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with aiohttp.ClientSession() as session:
        async with gateway_of(config) as served:
            response = await session.get(f"{served.admin_url}/admin/decisions")
            await until(lambda: served.gateway.dashboard.decisions.is_watched)
            runner = served.gateway.admin_port._runner
            assert runner is not None
            runner._shutdown_timeout = 3600.0  # of a minute: so long it would wait for an answer under way
        assert b"retry" in await response.read()


async def test_at_the_end_all_who_watch_are_let_go() -> None:
    decisions = LiveEvents()
    with decisions.watch() as watch:
        decisions.close()
        assert await watch.take(60.0) == []
        assert watch.is_closed
    with pytest.raises(Overloaded), decisions.watch():
        pass
