"""Parts of a tier, tiers beyond two, fallbacks and shadows: over real sockets, before scripted endpoints."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from openai import AsyncOpenAI

from gateway.cache.background_calls import MAX_AT_ONCE, MAX_WAITING
from gateway.upstream.upstream import COOLDOWN_S, FAILURES
from tests.fixtures.clock import FakeClock
from tests.fixtures.several import behind, counted, policy_of
from tests.fixtures.upstream import completion
from tests.fixtures.waiting import until
from tests.routing.test_dispatch import EASY, HARD, answering, backend_of, cut, dropping, reasons, silent

CANARY = policy_of("backend: {current: 80%, next: 20%}")


async def test_a_canary_gets_its_share_of_conversations_and_keeps_each(tmp_path: Path) -> None:
    async with behind(tmp_path, CANARY, "current", "next") as (served, upstreams):
        client = AsyncOpenAI(base_url=f"{served.url}/v1", api_key="k", max_retries=0)
        answered: Counter[str] = Counter()
        for i in range(150):
            opening: Any = {"role": "user", "content": f"Conversation {i}"}
            first = await client.chat.completions.create(model="m", messages=[opening])
            said = first.choices[0].message.content or ""
            second = await client.chat.completions.create(
                model="m",
                messages=[opening, {"role": "assistant", "content": said}, {"role": "user", "content": "Go on"}],
            )
            name = said.split()[0]
            assert (second.choices[0].message.content or "").split()[0] == name, "a conversation keeps its version"
            answered[name] += 1
        await client.close()
        assert 0.1 < answered["next"] / 150 < 0.3
        assert len(upstreams["next"].chats) == 2 * answered["next"]


async def test_two_tenants_with_the_same_words_are_two_conversations(tmp_path: Path) -> None:
    async with behind(tmp_path, CANARY, "current", "next") as (served, _):
        asked = [await served.chat("Hi", headers={"Authorization": f"Bearer {i}"}) for i in range(40)]
        assert {backend_of(answer) for answer in asked} == {"current", "next"}


async def test_a_canarys_answer_is_the_routes_answer(tmp_path: Path) -> None:
    """It is stored under the name of the backend that gave it, and served to whoever asks the same."""
    async with behind(tmp_path, policy_of("backend: {next: 99.999%, current: 0.001%}"), "current", "next") as (
        served,
        _,
    ):
        assert backend_of(await served.chat("Hi")) == "next"
        hit = await served.chat("Hi")
        assert hit.cache_status.startswith("nearhit; hit")
        assert hit.text.startswith("next")
        for name, removed in (("current", 0), ("next", 1)):
            async with served.session.post(served.admin_url + "/admin/cache/purge", json={"backend": name}) as response:
                assert (await response.json())["removed"] == removed
        assert "fwd=miss" in (await served.chat("Hi")).cache_status, "a rollback can take back what a canary said"


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_canary_that_fails_is_made_good_by_the_other_part_of_its_tier(tmp_path: Path, streamed: bool) -> None:
    policy = policy_of("light: small, large: {next: 99.999%, current: 0.001%}, escalate_above: 0.5")
    async with behind(tmp_path, policy, "small", "current", "next") as (served, upstreams):
        upstreams["next"].answer = answering(503)
        answer = await served.chat(HARD, stream=streamed)
        assert (answer.status, backend_of(answer)) == (200, "current")
        assert reasons(served) == {("large", "fallback"): 1}
        assert upstreams["small"].calls == []


async def test_explain_says_which_part_a_conversation_has(tmp_path: Path) -> None:
    policy = policy_of("backend: {current: 80%, next: 20%}, shadow: {backend: next, share: 0.5%}, fallback: [current]")
    async with behind(tmp_path, policy, "current", "next") as (served, upstreams):
        for i in range(10):
            body = {"model": "m", "messages": [{"role": "user", "content": f"Hi {i}"}]}
            asked = {"body": body, "tenant": "acme"}
            async with served.session.post(served.admin_url + "/admin/explain", json=asked) as response:
                told = await response.json()
            assert sorted([told["backend"], *told["fallbacks"]]) == ["current", "next"]
            assert told["tiers"] == ["current: current 80%, next 20%"]
            assert told["shadow"] == "next, 0.5% of the misses"
        assert upstreams["next"].calls == []


async def test_embeddings_and_what_passes_through_stay_with_the_largest_part(tmp_path: Path) -> None:
    policy = policy_of("backend: {current: 51%, next: 49%}")
    async with behind(tmp_path, policy, "current", "next") as (served, upstreams):
        for i in range(10):
            assert (await served.post("/v1/embeddings", {"model": "e", "input": f"{i}"})).status == 200
            assert (await served.post("/v1/files", {"i": i})).status == 200
        assert upstreams["next"].calls == []
        listed = await served.get("/v1/models")
        assert sorted(model["id"] for model in listed.json["data"]) == ["current-model", "next-model"]


async def test_of_three_tiers_the_complexity_asks_for_one(tmp_path: Path) -> None:
    async with behind(
        tmp_path, policy_of("tiers: [small, medium, big], escalate_above: [0.3, 0.999]"), "small", "medium", "big"
    ) as (served, upstreams):
        assert backend_of(await served.chat(EASY)) == "small"
        assert backend_of(await served.chat(HARD)) == "medium"
        assert reasons(served) == {("light", "below-threshold"): 1, ("medium", "above-threshold"): 1}
        upstreams["medium"].answer = dropping
        assert backend_of(await served.chat(HARD, seed=1)) == "big", "the nearest, the better one first"


# Fallbacks


async def test_fallbacks_are_asked_in_order_when_all_tiers_have_failed(tmp_path: Path) -> None:
    policy = policy_of("light: small, large: big, escalate_above: 0.5, fallback: [eu, other]")
    async with behind(tmp_path, policy, "small", "big", "eu", "other") as (served, upstreams):
        asked: list[str] = []

        def failing(name: str) -> Any:
            async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
                asked.append(name)
                return web.json_response({"error": {"message": "no"}}, status=500)

            return answer

        for name in ("small", "big", "eu"):
            upstreams[name].answer = failing(name)
        answer = await served.chat(EASY)
        assert (answer.status, backend_of(answer)) == (200, "other")
        assert list(dict.fromkeys(asked)) == ["small", "big", "eu"]
        assert reasons(served) == {("none", "fallback"): 1}


async def test_a_fallback_whose_breaker_is_open_is_left_out_and_the_last_one_is_asked_all_the_same(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    policy = policy_of("backend: main, fallback: [eu, other]")
    async with behind(tmp_path, policy, "main", "eu", "other", clock=clock, backends={"retries": {"attempts": 1}}) as (
        served,
        upstreams,
    ):
        upstreams["main"].answer = upstreams["eu"].answer = answering(500)
        for seed in range(FAILURES + 3):
            assert backend_of(await served.chat(EASY, seed=seed)) == "other"
        assert (len(upstreams["main"].calls), len(upstreams["eu"].calls)) == (FAILURES, FAILURES)
        upstreams["other"].answer = answering(503)
        assert (await served.chat(EASY, seed=99)).status == 503
        clock.advance(COOLDOWN_S)
        upstreams["main"].answer = None
        assert backend_of(await served.chat(EASY, seed=100)) == "main"


async def test_no_fallback_after_the_first_byte_nor_for_what_was_refused(tmp_path: Path) -> None:
    async with behind(tmp_path, policy_of("backend: main, fallback: [eu]"), "main", "eu") as (served, upstreams):
        upstreams["main"].answer = cut
        assert b"upstream_error" in (await served.chat(EASY, stream=True)).body
        upstreams["main"].answer = answering(400)
        assert (await served.chat(EASY)).status == 400
        assert upstreams["eu"].calls == []


# Shadows

SHADOW = policy_of("backend: main, shadow: {backend: next, share: 100%, per_hour: 1000}")


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
        assert len(served.gateway.parts.shadows) == MAX_AT_ONCE + MAX_WAITING
        assert counted(served, "shadow") == {"dropped": 5}
        await until(lambda: len(upstreams["next"].calls) == MAX_AT_ONCE)
        upstreams["next"].answer = dropping
        upstreams["next"].gate.set()
        await until(lambda: not len(served.gateway.parts.shadows))
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
        assert (len(served.gateway.parts.shadows), upstreams["next"].calls) == (0, [])


async def test_a_share_is_drawn(tmp_path: Path) -> None:
    draws = iter([0.005, 0.5, 0.01])
    policy = policy_of("backend: main, shadow: {backend: next, share: 1%}")
    async with behind(tmp_path, policy, "main", "next", draw=lambda: next(draws)) as (served, upstreams):
        for seed in range(3):
            await served.chat("Hi", seed=seed)
        await until(lambda: counted(served, "shadow"))
        assert len(upstreams["next"].calls) == 1
