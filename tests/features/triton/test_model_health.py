"""Models on a real Triton: hedges that are cancelled there, and models whose process dies."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from gateway.circuit_breaker import BreakerState
from gateway.features.triton.backend import TritonBackend
from gateway.ports import ModelCondition
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import NO_CACHE, Served, config_of, gateway_of
from tests.fixtures.own_triton import OwnTriton, own_triton
from tests.fixtures.upstream import Upstream, serving
from tests.fixtures.waiting import until
from tests.upstream.test_hedging import patient

# grpc.aio keeps to the loop that it was first used on, and logs errors about closed ones.
pytestmark = pytest.mark.asyncio(loop_scope="module")

TWO_TIERS = NO_CACHE.replace("{backend: main}", "{light: main, large: other, escalate_above: 1.0}")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def controlled(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OwnTriton]:
    async with own_triton(tmp_path_factory.mktemp("controlled"), control=True) as server:
        yield server


def main(triton: OwnTriton, model: str, **keys: Any) -> dict[str, Any]:
    return {"main": {"adapter": "triton", "url": triton.url, "model": model, **keys}}


def condition(served: Served) -> ModelCondition:
    (found,) = shown_models(served).values()
    return ModelCondition(found)


def shown_models(served: Served) -> dict[str, str]:
    models: dict[str, str] = served.gateway.describe()["backends"]["main"]["upstreams"][0]["models"]
    return models


def reloads(served: Served) -> dict[str, float]:
    return {outcome: count for (_, outcome), count in served.gateway.parts.telemetry.model_reloads.values.items()}


@pytest.mark.parametrize("model", ["unary-two", "decoupled-two"])
async def test_a_call_that_loses_to_its_hedge_is_cancelled_in_the_model(
    controlled: OwnTriton, tmp_path: Path, model: str
) -> None:
    """Two names of one server, and a model that lets one call wait."""
    port = controlled.server.ports.grpc
    upstreams = [f"grpc://127.0.0.1:{port}", f"grpc://localhost:{port}"]
    both = {"main": {"adapter": "triton", "upstreams": upstreams, "model": model, "hedge": {"budget": "20%"}}}
    async with gateway_of(config_of(tmp_path, both), NO_CACHE) as served:
        with patient():  # a busy machine may be slow at one of these, and what hedges may cost is for the next one
            for i in range(30):
                assert (await served.chat(f"known {i}")).text.startswith(f"{model}: ")
        hedges = served.gateway.parts.telemetry.hedges.values
        assert (await served.chat("wait")).text == f"{model}: wait"
        assert hedges == {("won",): 1}
        assert served.gateway.parts.pools["main"].inflight == served.gateway.parts.pools["main"].load == 0
        await until(lambda: model in controlled.cancelled())


@pytest.mark.parametrize("model", ["unary", "decoupled"])
async def test_a_dead_model_is_left_out_and_reloaded_while_the_other_tier_answers(
    controlled: OwnTriton, tmp_path: Path, model: str
) -> None:
    async with serving(Upstream("large")) as large:
        backends = {**main(controlled, model, reload="on"), "other": {"adapter": "openai", "url": large.url}}
        async with gateway_of(config_of(tmp_path, backends), TWO_TIERS) as served:
            endpoint = served.gateway.parts.pools["main"].endpoints[0]
            assert (await served.chat("hi")).headers["x-nearhit-backend"] == "main"
            controlled.kill_stub(model)
            answer = await served.chat("and now?")
            assert (answer.status, answer.headers["x-nearhit-backend"]) == (200, "other")
            await until(lambda: reloads(served) and condition(served) is ModelCondition.READY)
            assert reloads(served) == {"recovered": 1}
            assert endpoint.breaker.state(served.gateway.parts.clock.monotonic()) is BreakerState.CLOSED
            assert (await served.chat("and again?")).headers["x-nearhit-backend"] == "main"


async def test_a_dead_model_is_left_out_at_once_and_clients_do_not_try_it(
    controlled: OwnTriton, tmp_path: Path
) -> None:
    """Reloading is off: whoever loads it again, the gateway finds out by a probe of its own."""
    clock = FakeClock()
    async with serving(Upstream("large")) as large:
        backends = {**main(controlled, "unary"), "other": {"adapter": "openai", "url": large.url}}
        async with gateway_of(config_of(tmp_path, backends), TWO_TIERS, clock=clock) as served:
            endpoint = served.gateway.parts.pools["main"].endpoints[0]
            backend = endpoint.backend
            assert isinstance(backend, TritonBackend)
            controlled.kill_stub("unary")
            assert (await served.chat("one")).headers["x-nearhit-backend"] == "other"
            assert endpoint.breaker.state(clock.monotonic()) is BreakerState.OPEN, "one call is enough"
            asked = served.gateway.parts.telemetry.backend_requests.values
            before = asked[("main", "error")]
            for i in range(5):
                assert (await served.chat(str(i))).headers["x-nearhit-backend"] == "other"
            assert asked[("main", "error")] == before
            async with aiohttp.ClientSession() as session, session.get(served.admin_url + "/admin/stats") as response:
                shown = (await response.json())["backends"]["main"]["upstreams"][0]
                assert (shown["models"], shown["state"]) == ({"unary": "dead"}, "open")
            await backend.hosted.reload("unary")  # an operator does
            await until(lambda: condition(served) is ModelCondition.READY)
            assert (await served.chat("back")).headers["x-nearhit-backend"] == "main"
            assert reloads(served) == {}


async def test_an_unloaded_model_is_not_loaded_by_the_gateway_and_found_when_it_is(
    controlled: OwnTriton, tmp_path: Path
) -> None:
    async with serving(Upstream("large")) as large:
        backends = {**main(controlled, "unary", reload="on"), "other": {"adapter": "openai", "url": large.url}}
        async with gateway_of(config_of(tmp_path, backends), TWO_TIERS) as served:
            backend = served.gateway.parts.pools["main"].endpoints[0].backend
            assert isinstance(backend, TritonBackend)
            await controlled.unload("unary")
            assert (await served.chat("one")).headers["x-nearhit-backend"] == "other"
            assert condition(served) is ModelCondition.ABSENT
            await backend.hosted.reload("unary")
            await until(lambda: condition(served) is ModelCondition.READY)
            assert reloads(served) == {}
            assert (await served.chat("back")).headers["x-nearhit-backend"] == "main"


async def test_a_server_that_refuses_is_said_to_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with own_triton(tmp_path / "triton") as server, serving(Upstream("large")) as large:
        backends = {**main(server, "unary", reload="on"), "other": {"adapter": "openai", "url": large.url}}
        with caplog.at_level(logging.ERROR, "nearhit.models"):
            async with gateway_of(config_of(tmp_path, backends), TWO_TIERS) as served:
                server.kill_stub("unary")
                assert (await served.chat("one")).headers["x-nearhit-backend"] == "other"
                await until(lambda: reloads(served))
                assert reloads(served) == {"refused": 1}
                assert condition(served) is ModelCondition.DEAD
    (record,) = [record for record in caplog.records if record.name == "nearhit.models"]
    assert "--model-control-mode=explicit" in record.message


async def test_of_two_backends_with_the_same_model_one_reloads_it(controlled: OwnTriton, tmp_path: Path) -> None:
    twins = {name: main(controlled, "unary", reload="on")["main"] for name in ("main", "other")}
    async with gateway_of(config_of(tmp_path, twins), TWO_TIERS) as served:
        controlled.kill_stub("unary")
        assert (await served.chat("one")).status == 502, "both were asked, one after the other"
        backends = served.gateway.parts.pools.values()
        models = [endpoint.upstream.conditions for pool in backends for endpoint in pool.endpoints]
        await until(lambda: all(each["unary"] is ModelCondition.READY for each in models), timeout_s=60.0)
        assert sum(served.gateway.parts.telemetry.model_reloads.values.values()) == 1
        assert (await served.chat("two")).status == 200
