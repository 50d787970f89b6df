"""Tiers of one backend with different parameters: easy and hard questions go to one model, with another effort."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.config.policy.load import policy_from_text
from gateway.config.policy.model import Target
from gateway.config.policy.parameters import Parameters, TunedBackend, untuned
from gateway.upstream.latency import CallFeatures
from tests.config.documents import config
from tests.fixtures.gateways import Served
from tests.fixtures.several import Behind, behind, counted, policy_of
from tests.routing.test_dispatch import EASY, HARD, answering, backend_of, reasons

EFFORTS = (
    "light: {backend: main, parameters: {reasoning_effort: low, max_tokens: 500}}, "
    "large: {backend: main, parameters: {reasoning_effort: high}}, escalate_above: 0.5"
)
LOW, HIGH = "main[reasoning_effort=low,max_tokens=500]", "main[reasoning_effort=high]"


@pytest.fixture
async def tuned(tmp_path: Path) -> AsyncIterator[Behind]:
    price = {"input_per_million": 1e6, "output_per_million": 1e6}
    async with behind(tmp_path, policy_of(EFFORTS), "main", "other", backends={"price": price}) as both:
        yield both


def target_of(route: str) -> Target:
    return policy_from_text(policy_of(route), "p.yaml", config()).routes[0].target


@pytest.mark.parametrize("streamed", [False, True])
async def test_easy_and_hard_go_to_one_model_with_another_effort(tuned: Behind, streamed: bool) -> None:
    served, upstreams = tuned
    easy, hard = await served.chat(EASY, stream=streamed), await served.chat(HARD, stream=streamed)
    assert (easy.status, backend_of(easy), backend_of(hard)) == (200, LOW, HIGH)
    first, second = (call.json for call in upstreams["main"].calls)
    assert (first["reasoning_effort"], first["max_completion_tokens"]) == ("low", 500)
    assert (second["reasoning_effort"], "max_completion_tokens" in second) == ("high", False)
    assert reasons(served) == {("light", "below-threshold"): 1, ("large", "above-threshold"): 1}
    assert served.gateway.parts.telemetry.backend_requests.values == {("main", "200"): 2}  # one backend


async def test_an_answer_of_any_tier_serves_the_clients_own_request(tuned: Behind) -> None:
    served, upstreams = tuned
    await served.chat(HARD)
    assert (await served.chat(HARD)).cache_status.startswith("nearhit; hit; detail=exact")
    assert len(upstreams["main"].calls) == 1
    assert not (await served.chat(HARD, reasoning_effort="low")).cache_status.startswith("nearhit; hit")
    assert upstreams["main"].calls[-1].json["reasoning_effort"] == "low"  # the client asks for less


async def test_prices_follow_the_backend(tuned: Behind) -> None:
    served, _ = tuned
    await served.chat(EASY)
    hit = await served.chat(EASY)
    assert hit.cache_status.startswith("nearhit; hit")
    assert sum(served.gateway.parts.telemetry.cost_saved.values.values()) > 0


async def test_latencies_are_learnt_for_each_effort(tuned: Behind) -> None:
    served, _ = tuned
    for _ in range(100):
        for seconds, kind, max_tokens in ((2.0, "reasoning_effort=high", None), (0.01, LOW[5:-1], 500)):
            served.gateway.parts.pools["main"].endpoints[0].latency.observe(
                CallFeatures(route=f"default {kind}", max_tokens=max_tokens),
                load=0,
                ttft_s=seconds,
                total_s=seconds,
                output_tokens=0,
                now=served.gateway.parts.clock.monotonic(),
            )
    assert backend_of(await served.chat(HARD, headers={"x-latency-budget-ms": "1500"})) == LOW
    assert backend_of(await served.chat(HARD, headers={"x-latency-budget-ms": "60000"}, seed=1)) == HIGH
    assert reasons(served)["light", "budget"] == 1


async def test_a_failing_backend_fails_in_both_tiers_and_then_falls_back(tmp_path: Path) -> None:
    async with behind(tmp_path, policy_of(f"{EFFORTS}, fallback: [other]"), "main", "other") as (served, upstreams):
        upstreams["main"].answer = answering(503)
        assert backend_of(await served.chat(EASY)) == "other"


async def test_a_purge_by_backend_removes_the_answers_of_its_tiers(tuned: Behind) -> None:
    served, _ = tuned
    await served.chat(EASY)
    assert (await _purge(served, "other"))["removed"] == 0
    assert (await _purge(served, "main"))["removed"] == 1
    assert not (await served.chat(EASY)).cache_status.startswith("nearhit; hit")


async def _purge(served: Served, backend: str) -> dict[str, int]:
    async with served.session.post(f"{served.admin_url}/admin/cache/purge", json={"backend": backend}) as answer:
        return await answer.json()


async def test_a_trial_of_a_cascade_has_the_parameters_of_its_tier(tmp_path: Path) -> None:
    cascade = "cascade: {check: consistency, accept_above: 0.1, samples: 2}"
    async with behind(tmp_path, policy_of(f"{EFFORTS}, {cascade}"), "main") as (served, upstreams):
        assert backend_of(await served.chat(HARD)) == LOW
        assert {call.json["reasoning_effort"] for call in upstreams["main"].calls} == {"low"}
        assert counted(served, "cascade") == {"accepted": 1}


def test_a_target_names_its_tiers_by_backend_and_parameters() -> None:
    target = target_of(EFFORTS.replace("main", "light"))
    assert target.backends == ("light[reasoning_effort=low,max_tokens=500]", "light[reasoning_effort=high]")
    assert target.tuned[0] == TunedBackend("light", Parameters("low", None, 500))
    assert [untuned(name) for name in target.backends] == ["light", "light"]


def test_a_split_and_a_middle_tier_may_have_parameters() -> None:
    middle = "{backend: {light: 50%, large: 50%}, parameters: {thinking_budget: 4096}}"
    target = target_of(f"tiers: [light, {middle}, large], escalate_above: [0.3, 0.7]")
    assert target.tiers[1].members == ("light[thinking_budget=4096]", "large[thinking_budget=4096]")
    assert target.tiers[1].name == "light[thinking_budget=4096]"
    assert target.tier_with_backend("large[thinking_budget=4096]") == "light[thinking_budget=4096]"
    assert target.tier_with_backend("large") == "large"
