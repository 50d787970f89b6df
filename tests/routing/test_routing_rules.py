"""The rules by which the large model is chosen, in a running gateway before two scripted endpoints."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import Answer, Served, config_of, gateway_of, recovered
from tests.fixtures.upstream import Answer as Script
from tests.fixtures.upstream import Upstream, completion, stream
from tests.fixtures.waiting import until

POLICY = """
version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}}
    route: {light: light, large: large, RULE}
"""
WORDS = [
    "design",
    "an",
    "algorithm",
    "prove",
    "why",
    "step",
    "by",
    "step",
    "compare",
    "trade",
    "offs",
    "code",
    "table",
    "constraints",
    "what",
    "time",
    "is",
    "it",
    "now",
]


def policy(rule: str) -> str:
    return POLICY.replace("RULE", rule)


def config(folder: Path, light: Upstream, large: Upstream) -> Any:
    return config_of(
        folder,
        {
            "light": {"adapter": "openai", "url": light.url, "model": "small"},
            "large": {"adapter": "openai", "url": large.url, "model": "big"},
        },
    )


def questions(count: int, seed: int = 1) -> Sequence[str]:
    """Of all lengths, so of all complexities; no two the same."""
    r = random.Random(seed)
    return [f"{k}: " + " ".join(r.choices(WORDS, k=int(2 + 60 * r.random() ** 2))) for k in range(count)]


async def routing(served: Served) -> dict[str, Any]:
    async with served.session.get(served.admin_url + "/admin/routing") as response:
        (found,) = (await response.json())["routes"]
        assert isinstance(found, dict)
        return found


async def feedback(served: Served, answer: Answer, verdict: str) -> Answer:
    return await served.post("/v1/feedback", {"request_id": answer.headers["x-request-id"], "verdict": verdict})


def saying(text: str) -> Script:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(completion(call, text))

    return answer


def tier(answer: Answer) -> str:
    return answer.headers["x-nearhit-backend"]


async def metric(served: Served, name: str) -> float:
    async with served.session.get(served.admin_url + "/metrics") as response:
        (line,) = [x for x in (await response.text()).splitlines() if x.startswith(name + "{")]
    return float(line.split()[-1])


async def test_a_share_holds_over_every_hour_of_a_day_that_changes(
    light: Upstream, large: Upstream, tmp_path: Path
) -> None:
    """Four hours of 120 requests: even, then easy ones alone, then hard ones alone, then one and the same."""
    clock = FakeClock()
    even = sorted(questions(240), key=len)
    hours = [questions(120, 2), even[:120], even[120:], [f"{k}: what time is it now" for k in range(120)]]
    async with gateway_of(config(tmp_path, light, large), policy("large_share: 30%"), clock=clock) as served:
        tiers = []
        for hour in hours:
            for question in hour:
                tiers.append(tier(await served.chat(question)))
                clock.advance(30.0)
        for begin in range(len(tiers) - 120):
            share = tiers[begin : begin + 120].count("large") / 120
            assert abs(share - 0.3) <= 0.02 + 5 / 120 + 1e-9
        assert tiers.count("large") / len(tiers) == pytest.approx(0.3, abs=0.02)
        shown = await routing(served)
        assert (shown["rule"], shown["asked"]) == ("large_share", 0.3)
        assert shown["large_share"] == pytest.approx(0.3, abs=0.06)
        assert await metric(served, "nearhit_large_share") == pytest.approx(shown["large_share"], abs=0.02)
        assert await metric(served, "nearhit_escalation_threshold") == pytest.approx(shown["threshold"], abs=0.02)


async def test_the_harder_questions_are_those_that_the_large_model_gets(
    light: Upstream, large: Upstream, tmp_path: Path
) -> None:
    async with gateway_of(config(tmp_path, light, large), policy("large_share: 30%")) as served:
        answers = [await served.chat(question) for question in questions(150)]
    scores = {name: [float(a.headers["x-nearhit-complexity"]) for a in answers if tier(a) == name] for name in
              ("light", "large")}  # fmt: skip
    assert sum(scores["large"]) / len(scores["large"]) > sum(scores["light"]) / len(scores["light"]) + 0.05


async def test_a_crowd_at_once_is_split_as_the_share_says(light: Upstream, large: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config(tmp_path, light, large), policy("large_share: 30%")) as served:
        answers = await asyncio.gather(*(served.chat(f"{k}: what time is it now") for k in range(60)))
    assert 60 * 0.28 - 5 <= [tier(a) for a in answers].count("large") <= 60 * 0.32 + 5


async def test_hits_and_refusals_are_no_part_of_the_share(light: Upstream, large: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config(tmp_path, light, large), policy("large_share: 50%")) as served:
        for _ in range(30):
            await served.chat("The same question, again and again.")
        assert len(light.chats) + len(large.chats) == 1
        assert served.gateway.parts.escalations.of("default").state == (0, 1)


async def test_answers_of_the_light_model_where_the_large_one_failed_are_made_up_for(
    light: Upstream, large: Upstream, tmp_path: Path
) -> None:
    async def failing(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no"}}, status=500)

    clock = FakeClock()
    async with gateway_of(config(tmp_path, light, large), policy("large_share: 30%"), clock=clock) as served:
        healthy, large.answer = large.answer, failing
        for question in questions(20, 5):
            assert tier(await served.chat(question)) == "light"
            clock.advance(5.0)
        assert (await routing(served))["large_share"] == 0.0
        large.answer = healthy
        clock.advance(600.0)  # beyond the breaker's cooldown
        after = []
        for question in questions(80, 6):
            after.append(tier(await served.chat(question)))
            clock.advance(5.0)
        assert 0.3 < after.count("large") / len(after) <= 0.32 + (2 * 5 + 2) / 80


async def test_a_quality_has_a_threshold_of_its_own_and_feedback_moves_it_within_its_bounds(
    light: Upstream, large: Upstream, tmp_path: Path
) -> None:
    rule = policy("quality: 0.7")
    async with gateway_of(config(tmp_path, light, large), rule) as served:
        answers = [await served.chat(question) for question in questions(80)]
        before = await routing(served)
        assert before["rule"] == "quality" and 0 < before["threshold"] < 1
        assert before["quality_kept"]["low"] < before["quality_kept"]["part"] < before["quality_kept"]["high"]
        of_light = [answer for answer in answers if tier(answer) == "light"]
        for answer in of_light:
            heard = await feedback(served, answer, "wrong")
            assert heard.json["tier"] == "light"
            await feedback(served, answer, "wrong")  # said once more: it counts once
        after = await routing(served)
        assert after["labels"] == {"feedback": len(of_light)}
        assert 0 < after["calibration"]["shift"] <= 2
        assert after["threshold"] < before["threshold"]
        assert after["quality_kept"]["part"] < before["quality_kept"]["part"], "so much more was lost than was thought"
        assert await metric(served, "nearhit_quality_kept") == pytest.approx(after["quality_kept"]["part"])


async def test_what_was_learnt_outlives_a_restart_and_a_reset_forgets_it(
    light: Upstream, large: Upstream, tmp_path: Path
) -> None:
    rule = policy("quality: 0.7")
    async with gateway_of(config(tmp_path, light, large), rule) as served:
        for question in questions(40):
            await feedback(served, await served.chat(question), "wrong")
        learnt = await routing(served)
    async with gateway_of(config(tmp_path, light, large), rule) as served:
        await until(lambda: served.gateway.parts.escalations.of("default").version > 0)
        again = await routing(served)
        assert (again["labels"], again["calibration"]) == (learnt["labels"], learnt["calibration"])
        assert again["threshold"] == pytest.approx(learnt["threshold"], abs=0.02)
        url = served.admin_url + "/admin/routing/reset"
        async with served.session.post(url, json={"route": "default"}) as response:
            forgotten = await response.json()
        assert (forgotten["labels"], forgotten["calibration"]) == ({}, {"shift": 0.0, "slope": 1.0})
        assert forgotten["stored"] is True
        async with served.session.post(url, json={"route": "other"}) as response:
            assert response.status == 404
        async with served.session.post(url, data=b"{}") as response:
            assert response.status == 415


async def test_a_frozen_route_hears_and_does_not_learn(light: Upstream, large: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config(tmp_path, light, large), policy("quality: 0.7, learn: off")) as served:
        for question in questions(30):
            await feedback(served, await served.chat(question), "wrong")
        shown = await routing(served)
        assert shown["learning"] is False and shown["labels"] == {"feedback": 30}
        assert shown["calibration"] == {"shift": 0.0, "slope": 1.0}


async def test_feedback_on_what_nobody_remembers_or_of_somebody_else_is_not_found(
    light: Upstream, large: Upstream, tmp_path: Path
) -> None:
    async with gateway_of(config(tmp_path, light, large), policy("quality: 0.7")) as served:
        answer = await served.chat("What is this?", headers={"Authorization": "Bearer one"})
        body = {"request_id": answer.headers["x-request-id"], "verdict": "wrong"}
        other = await served.post("/v1/feedback", body, {"Authorization": "Bearer two"})
        assert other.status == 404
        assert "no recent answer to you has the request id" in other.json["error"]["message"]
        own = await served.post("/v1/feedback", body, {"Authorization": "Bearer one"})
        assert own.status == 200 and own.json["route"] == "default"


@pytest.mark.parametrize(("same", "label"), [(True, "as-good"), (False, "different")])
async def test_an_audit_asks_the_large_model_what_the_light_one_has_answered(
    light: Upstream, large: Upstream, tmp_path: Path, same: bool, label: str
) -> None:
    here, other = (
        "The river Danube flows through ten countries.",
        "Bring the eggs to room temperature before you start.",
    )
    light.answer, large.answer = saying(here), saying(here if same else other)
    rule = "escalate_above: 1.0, audit: {share: 100%, per_hour: 5}"
    async with gateway_of(config(tmp_path, light, large), policy(rule)) as served:
        for question in questions(7):
            assert tier(await served.chat(question)) == "light"
        counted = served.gateway.parts.telemetry.light_audits.values
        await until(lambda: counted.get(("default", label), 0) == 5)
        assert counted == {("default", label): 5, ("default", "skipped-cost"): 2}
        shown = await routing(served)
        assert shown["labels"] == {"audit": 5}
        assert (shown["calibration"]["shift"] > 0) is not same
        assert shown["large_share"] == 0.0, "what the gateway asks itself is no part of the share"


@pytest.mark.parametrize(
    ("verdict", "label", "outcome"),
    [("A", "worse", "worse"), ("B", "better", "better"), ("EQUAL", "as-good", "as-good"), ("Both!", "different", None)],
)
async def test_the_judge_of_an_audit_says_which_of_two_answers_is_better(
    light: Upstream, large: Upstream, tmp_path: Path, verdict: str, label: str, outcome: str | None
) -> None:
    """A and B stand for the answers of the large and the light model, wherever the prompt has them."""
    here, other = "The river Danube flows through ten countries.", "Bring the eggs to room temperature first."
    places = set()

    async def large_or_judge(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        prompt = call["messages"][0]["content"]
        if "Decide which answer serves" not in prompt:
            return web.json_response(completion(call, other))
        large_first = prompt.index(other) < prompt.index(here)
        places.add(large_first)
        names = ("FIRST", "SECOND") if large_first else ("SECOND", "FIRST")
        return web.json_response(completion(call, {"A": names[0], "B": names[1]}.get(verdict, verdict)))

    light.answer, large.answer = saying(here), large_or_judge
    rule = "escalate_above: 1.0, audit: {share: 100%, judge: large}"
    async with gateway_of(config(tmp_path, light, large), policy(rule)) as served:
        for question in questions(8):
            await served.chat(question)
        telemetry = served.gateway.parts.telemetry
        await until(lambda: telemetry.light_audits.values.get(("default", label), 0) == 8)
        assert telemetry.routing_labels.values == {("default", "audit", label): 8}
        fitted = served.gateway.parts.escalations.scores.of("default").labels()
        assert len(fitted) == (8 if outcome else 0)
        assert set(fitted.gains.tolist()) == {{"worse": 1.0, "better": -1.0, "as-good": 0.0}[x] for x in [outcome] if x}
        assert places == {True, False}, "judges prefer the first answer"


async def test_an_audit_reads_streams_and_gives_up_on_what_fails(
    light: Upstream, large: Upstream, tmp_path: Path
) -> None:
    async def cut(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, call, "one two three four", cut=True)

    async def same(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, call, "The river Danube flows through ten countries.")

    light.answer = large.answer = same
    rule = policy("escalate_above: 1.0, audit: 100%")
    async with gateway_of(config(tmp_path, light, large), rule) as served:
        counted = served.gateway.parts.telemetry.light_audits.values
        assert (await served.chat("What flows where?", stream=True)).status == 200
        await until(lambda: counted.get(("default", "as-good")) == 1)
        large.answer = cut
        assert (await served.chat("What else flows where?", stream=True)).status == 200
        await until(lambda: counted.get(("default", "failed")) == 1)
        assert (await routing(served))["labels"] == {"audit": 1}


async def test_explain_says_which_rule_decides_and_the_threshold_now(
    light: Upstream, large: Upstream, tmp_path: Path
) -> None:
    async with gateway_of(config(tmp_path, light, large), policy("large_share: 30%")) as served:
        await recovered(served)
        body = {"model": "m", "messages": [{"role": "user", "content": "What is this?"}]}
        for _ in range(50):  # nothing of it counts
            async with served.session.post(served.admin_url + "/admin/explain", data=json.dumps(body)) as response:
                found = await response.json()
        assert found["rule"] == "large_share: 30%"
        assert found["thresholds"] == [pytest.approx(0.7, abs=0.06)]
        assert served.gateway.parts.escalations.of("default").state == (0, 0)
