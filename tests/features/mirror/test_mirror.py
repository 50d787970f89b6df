"""Shadows, over real sockets: a share of the misses also goes to another backend."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.cache.background_calls import MAX_AT_ONCE, MAX_WAITING
from gateway.config.policy.load import policy_from_text
from gateway.features.mirror.mirroring import Mirroring
from gateway.features.mirror.rule import ShadowRule
from tests.config.documents import config
from tests.fixtures.gateways import Served
from tests.fixtures.several import behind, counted, policy_of
from tests.fixtures.upstream import completion
from tests.fixtures.waiting import until
from tests.routing.test_dispatch import answering, backend_of, dropping, silent


def test_its_rule_is_read_as_written() -> None:
    route = "backend: main, shadow: {backend: main, share: 1%, per_hour: 100}"
    text = f"version: 1\nroutes:\n  - name: default\n    match: {{}}\n    route: {{{route}}}\n"
    rule = policy_from_text(text, "policy.yaml", config()).routes[0].of(ShadowRule)
    assert rule == ShadowRule(backend="main", share=0.01, per_hour=100)


SHADOW = policy_of("backend: main, shadow: {backend: next, share: 100%, per_hour: 1000}")


def copies(served: Served) -> int:
    """Return the number of copies that wait or run."""
    (runtime,) = (each for _, each in served.gateway.features.of(served.gateway.policy.routes[0]))
    assert isinstance(runtime, Mirroring)
    return len(runtime)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_shadow_is_asked_the_same_and_compared(tmp_path: Path, streamed: bool) -> None:
    async with behind(tmp_path, SHADOW, "main", "next", backends={"price": {"input_per_million": 1e6}}) as (
        served,
        upstreams,
    ):
        for seed, text in enumerate(["Paris.", " paris. ", "London is the capital of the United Kingdom."]):

            async def say(request: web.Request, call: dict[str, Any], text: str = text) -> web.StreamResponse:
                return web.json_response(completion(call, text))

            async def paris(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
                return web.json_response(completion(call, "Paris."))

            upstreams["main"].answer, upstreams["next"].answer = paris, say
            answer = await served.chat("The capital of France?", seed=seed, stream=streamed)
            assert backend_of(answer) == "main"
            await until(lambda seed=seed: sum(counted(served, "shadow").values()) == seed + 1)  # type: ignore[misc]
        found = counted(served, "shadow")
        assert found["same"] == 2
        assert found.get("different", 0) + found.get("undecided", 0) == 1
        assert [call.json["model"] for call in upstreams["next"].calls] == ["next"] * 3
        assert upstreams["next"].calls[0].json["messages"] == upstreams["main"].calls[0].json["messages"]
        assert counted(served, "shadow_cost_dollars") == {"default": pytest.approx(3 * 7)}
        assert (await served.chat("The capital of France?", seed=0, stream=streamed)).cache_status.startswith(
            "nearhit; hit"
        )
        assert len(upstreams["next"].calls) == 3, "of hits there are no copies"


async def test_a_shadow_neither_delays_nor_fails_a_client_and_is_bounded(tmp_path: Path) -> None:
    async with behind(tmp_path, SHADOW, "main", "next") as (served, upstreams):
        upstreams["next"].gate.clear()  # it answers nobody
        many = MAX_AT_ONCE + MAX_WAITING + 5
        answers = [await served.chat("Hi", seed=seed) for seed in range(many)]
        assert {(answer.status, backend_of(answer)) for answer in answers} == {(200, "main")}
        assert copies(served) == MAX_AT_ONCE + MAX_WAITING
        assert counted(served, "shadow") == {"dropped": 5}
        await until(lambda: len(upstreams["next"].calls) == MAX_AT_ONCE)
        upstreams["next"].answer = dropping
        upstreams["next"].gate.set()
        await until(lambda: not copies(served))
        assert sum(counted(served, "shadow").values()) == many
        assert counted(served, "shadow")["error"] >= 1


async def test_an_hour_has_so_many_shadows_and_a_gateway_that_ends_waits_for_none(tmp_path: Path) -> None:
    policy = policy_of("backend: main, shadow: {backend: next, share: 100%, per_hour: 2}")
    async with behind(tmp_path, policy, "main", "next") as (served, upstreams):
        upstreams["next"].answer = silent
        for seed in range(5):
            await served.chat("Hi", seed=seed)
        await until(lambda: len(upstreams["next"].calls) == 2)
        assert counted(served, "shadow") == {"dropped": 3}


async def test_what_no_client_wants_kept_and_what_no_client_has_got_is_not_copied(tmp_path: Path) -> None:
    async with behind(tmp_path, SHADOW, "main", "next") as (served, upstreams):
        await served.chat("Hi", headers={"Cache-Control": "no-store"})
        upstreams["main"].answer = answering(400)
        await served.chat("Hi")
        upstreams["main"].answer = silent
        call = asyncio.create_task(served.chat("Hello"))
        await until(lambda: len(upstreams["main"].calls) == 3)
        call.cancel()
        await until(lambda: upstreams["main"].cancelled == 1)
        assert (copies(served), upstreams["next"].calls) == (0, [])


async def test_a_share_is_drawn(tmp_path: Path) -> None:
    draws = iter([0.005, 0.5, 0.01])
    policy = policy_of("backend: main, shadow: {backend: next, share: 1%}")
    async with behind(tmp_path, policy, "main", "next", draw=lambda: next(draws)) as (served, upstreams):
        for seed in range(3):
            await served.chat("Hi", seed=seed)
        await until(lambda: counted(served, "shadow"))
        assert len(upstreams["next"].calls) == 1
