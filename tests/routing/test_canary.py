"""Parts of a tier, tiers beyond two, and fallbacks: over real sockets, before scripted endpoints."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from openai import AsyncOpenAI

from gateway.upstream.upstream import COOLDOWN_S, FAILURES
from tests.fixtures.clock import FakeClock
from tests.fixtures.several import behind, policy_of
from tests.routing.test_dispatch import EASY, HARD, answering, backend_of, cut, dropping, reasons

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
