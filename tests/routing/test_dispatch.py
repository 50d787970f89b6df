"""Light or large, one after the other, or not at all: over real sockets, before two scripted endpoints."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.adapters.embedding.embedders import BatchingEmbedder
from gateway.adapters.embedding.hashing import HashEncoder
from gateway.entries import Embedding
from gateway.steps import opening
from gateway.upstream.latency import CallFeatures
from gateway.upstream.upstream import COOLDOWN_S, FAILURES
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import BOTH_CACHES, PATIENT_S, TIERS, Answer, Served, config_of, gateway_of
from tests.fixtures.upstream import Answer as Script
from tests.fixtures.upstream import Upstream, stream
from tests.fixtures.waiting import until

EASY = "What time is it?"
HARD = (
    "Explain step by step why this function deadlocks, compare three designs that avoid it, and prove that yours does "
    "not:\n```\ndef f(a, b):\n    with a, b: pass\n```\nThe answer must be a table and must not exceed 300 words."
)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def backends(light: Upstream, large: Upstream, **light_options: Any) -> dict[str, Any]:
    return {
        "light": {"adapter": "openai", "url": light.url, "model": "small", **light_options},
        "large": {"adapter": "openai", "url": large.url, "model": "big"},
    }


@pytest.fixture
async def timed(light: Upstream, large: Upstream, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Served]:
    """Two tiers and a clock of the test's own."""
    async with gateway_of(config_of(tmp_path, backends(light, large)), TIERS, clock=clock) as served:
        yield served


@pytest.fixture
async def hasty(light: Upstream, large: Upstream, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Served]:
    """The same; the light one has 250 ms for its first byte."""
    config = config_of(tmp_path, backends(light, large, timeouts={"first_byte": "250ms"}))
    async with gateway_of(config, TIERS, clock=clock) as served:
        yield served


def answering(status: int) -> Script:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no"}}, status=status)

    return answer


async def dropping(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def silent(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
    return await asyncio.get_running_loop().create_future()


async def headers_only(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return await asyncio.get_running_loop().create_future()


async def cut(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
    return await stream(request, call, "one two three four", cut=True)


def backend_of(answer: Answer) -> str:
    return answer.headers["x-nearhit-backend"]


def reasons(served: Served) -> dict[tuple[str, str], float]:
    """(tier, reason) -> how often."""
    return {labels[1:]: count for labels, count in served.gateway.parts.telemetry.routed.values.items()}


def observe(served: Served, name: str, seconds: float, *, streamed: bool = False) -> None:
    """As if the backend had answered so a hundred times."""
    for _ in range(100):
        served.gateway.parts.pools[name].endpoints[0].latency.observe(
            CallFeatures(stream=streamed, route="default"),
            load=0,
            ttft_s=seconds,
            total_s=seconds,
            output_tokens=1 if streamed else 0,
            now=served.gateway.parts.clock.monotonic(),
        )


@pytest.mark.parametrize("streamed", [False, True])
async def test_what_is_easy_goes_to_light_and_what_is_hard_to_large(
    tiered: Served, light: Upstream, large: Upstream, streamed: bool
) -> None:
    easy, hard = await tiered.chat(EASY, stream=streamed), await tiered.chat(HARD, stream=streamed)
    assert (backend_of(easy), backend_of(hard)) == ("light", "large")
    assert 0 < float(easy.headers["x-nearhit-complexity"]) <= 0.5 < float(hard.headers["x-nearhit-complexity"]) < 1
    assert ([call.json["model"] for call in light.calls], [call.json["model"] for call in large.calls]) == (
        ["small"],
        ["big"],
    )
    assert reasons(tiered) == {("light", "below-threshold"): 1, ("large", "above-threshold"): 1}


async def test_the_clients_model_name_decides_the_key_and_not_the_tier(tiered: Served, large: Upstream) -> None:
    await tiered.chat(HARD, model="m")
    assert (await tiered.chat(HARD, model="m")).cache_status.startswith("nearhit; hit")
    assert backend_of(await tiered.chat(HARD, model="n")) == "large"
    assert [call.json["model"] for call in large.calls] == ["big", "big"]


async def test_a_budget_that_large_does_not_keep_sends_a_hard_request_to_light(
    timed: Served, large: Upstream, clock: FakeClock
) -> None:
    async def slowly(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        clock.advance(2.0)
        return web.json_response({"choices": []})

    large.answer = slowly
    observe(timed, "large", 2.0)
    assert backend_of(await timed.chat(HARD)) == "large"
    tight = await timed.chat(HARD, headers={"x-latency-budget-ms": "900"}, seed=1)
    assert backend_of(tight) == "light"
    assert float(tight.headers["x-nearhit-complexity"]) > 0.5
    assert reasons(timed)["light", "budget"] == 1
    assert backend_of(await timed.chat(HARD, headers={"x-latency-budget-ms": "60000"}, seed=2)) == "large"


async def test_a_budget_for_the_first_token_counts_for_streams(timed: Served) -> None:
    observe(timed, "large", 2.0, streamed=True)
    headers = {"x-slo-ttft-ms": "500"}
    assert backend_of(await timed.chat(HARD, headers=headers, stream=True)) == "light"
    assert backend_of(await timed.chat(HARD, headers={"x-slo-ttft-ms": "5000"}, stream=True, seed=1)) == "large"


async def test_an_easy_request_goes_to_large_when_only_that_is_fast_enough(timed: Served) -> None:
    observe(timed, "light", 2.0)
    observe(timed, "large", 0.1)
    assert backend_of(await timed.chat(EASY, headers={"x-latency-budget-ms": "900"})) == "large"
    assert reasons(timed) == {("large", "budget"): 1}


LATE = TIERS.replace("escalate_above: 0.5", "escalate_above: 0.5, latency_budget: 900ms, late: LATE")


def promises(served: Served) -> dict[str, float]:
    """Outcome -> how often."""
    return {outcome: n for (_, outcome), n in served.gateway.parts.telemetry.promises.values.items()}


@pytest.mark.parametrize(("late", "expected"), [("soonest", "large"), ("light", "light"), ("stale", "large")])
async def test_where_nobody_is_in_time_the_policy_says_who_is_asked(
    light: Upstream, large: Upstream, tmp_path: Path, clock: FakeClock, late: str, expected: str
) -> None:
    policy = LATE.replace("LATE", late).replace("cache: {", "cache: {stale_if_error: 1d, ")
    async with gateway_of(config_of(tmp_path, backends(light, large)), policy, clock=clock) as served:
        observe(served, "light", 4.0)
        observe(served, "large", 2.0)
        assert backend_of(await served.chat(EASY)) == expected
        assert promises(served) == {"in-time": 1}


async def test_a_policy_may_refuse_at_once_and_says_what_was_predicted(
    light: Upstream, large: Upstream, tmp_path: Path, clock: FakeClock
) -> None:
    async with gateway_of(
        config_of(tmp_path, backends(light, large)), LATE.replace("LATE", "refuse"), clock=clock
    ) as served:
        observe(served, "light", 4.0)
        observe(served, "large", 2.0)
        refused = await served.chat(EASY)
        assert refused.status == 504
        assert refused.json["error"]["type"] == "latency_budget_error"
        message = refused.json["error"]["message"]
        assert re.search(r"with 95% confidence, in seconds: light=4\.\d+, large=2\.\d+, left=0\.[89]", message), message
        assert (light.calls, large.calls) == ([], [])
        assert promises(served) == {"refused": 1}


async def test_who_waits_for_a_request_without_time_is_not_refused_with_it(
    light: Upstream, large: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()

    class Held(HashEncoder):
        def encode(self, texts: Sequence[str]) -> list[Embedding]:
            go.wait()
            return super().encode(texts)

    held = Held()
    monkeypatch.setattr(opening, "build_embedder", lambda *_: (held, BatchingEmbedder(held, timeout_s=PATIENT_S)))
    policy = TIERS.replace("escalate_above: 0.5", "escalate_above: 0.5, late: refuse")
    async with gateway_of(config_of(tmp_path, backends(light, large)), policy) as served:
        flights = served.gateway.parts.flights
        first = asyncio.create_task(served.chat(EASY, headers={"x-latency-budget-ms": "0.001"}))
        await until(lambda: len(flights) == 1)
        others = [asyncio.create_task(served.chat(EASY)) for _ in range(3)]
        await until(lambda: sum(len(flight._positions) for flight in flights.values()) == 4)
        go.set()
        assert (await first).status == 504
        assert [(await other).status for other in others] == [200, 200, 200]
        assert len(light.calls) == 1, "one of them led the others"


async def test_a_single_backend_can_be_too_late_too(upstream: Upstream, tmp_path: Path, clock: FakeClock) -> None:
    policy = BOTH_CACHES.replace("{backend: main}", "{backend: main, latency_budget: 900ms, late: refuse}")
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, policy, clock=clock) as served:
        assert (await served.chat(EASY)).status == 200, "nothing is known yet"
        observe(served, "main", 4.0)
        assert (await served.chat(HARD)).status == 504
        assert (await served.chat(EASY)).cache_status.startswith("nearhit; hit"), "what is stored takes no time"


async def test_a_policy_may_serve_what_is_stale_where_nobody_is_in_time(
    light: Upstream, large: Upstream, tmp_path: Path, clock: FakeClock
) -> None:
    policy = LATE.replace("LATE", "stale").replace(
        "cache: {exact: {ttl: 1h}", "cache: {stale_if_error: 1d, exact: {ttl: 1h}"
    )
    async with gateway_of(config_of(tmp_path, backends(light, large)), policy, clock=clock) as served:
        await served.chat(EASY)
        clock.advance(3601)
        for name in ("light", "large"):
            observe(served, name, 2.0)
        stale = await served.chat(EASY)
        assert stale.cache_status == "nearhit; hit; detail=stale"
        assert backend_of(await served.chat(HARD)) in ("light", "large"), "nothing is stored for this one"
        assert promises(served)["stale"] == 1


async def test_what_was_predicted_is_shown_where_there_is_a_budget(timed: Served) -> None:
    observe(timed, "light", 0.2)
    told = (await timed.chat(EASY, headers={"x-latency-budget-ms": "900"})).headers["Server-Timing"]
    assert re.search(r'predict;desc="light=0\.2\d* large=\? left=0\.[89]\d* sure=0\.95"', told), told
    assert "predict" not in (await timed.chat(HARD)).headers["Server-Timing"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_promises_are_counted_as_kept_or_broken_and_asked_more_of_after_a_broken_one(
    timed: Served, light: Upstream, clock: FakeClock, streamed: bool
) -> None:
    observe(timed, "light", 0.1, streamed=streamed)
    headers = {"x-latency-budget-ms": "900"}
    await timed.chat(EASY, headers=headers, stream=streamed)
    assert promises(timed) == {"kept": 1}
    confidence = timed.gateway.parts.promises.confidence(timed.gateway.policy.routes[0])
    assert confidence.required < 0.95
    before = confidence.required

    async def slowly(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        clock.advance(2.0)
        if streamed:
            return await stream(request, call, "at last")
        return web.json_response({"choices": []})

    light.answer = slowly
    await timed.chat(EASY, headers=headers, seed=1, stream=streamed)
    assert promises(timed) == {"kept": 1, "broken": 1}
    assert confidence.required > before


async def test_a_promise_that_a_failing_backend_breaks_is_no_fault_of_the_predictions(
    timed: Served, light: Upstream, large: Upstream
) -> None:
    observe(timed, "light", 0.1)
    light.answer = dropping
    await timed.chat(EASY, headers={"x-latency-budget-ms": "60000"})
    large.answer = dropping
    await timed.chat(HARD, headers={"x-latency-budget-ms": "60000"})
    assert promises(timed) == {"kept": 1, "failed": 1}
    assert timed.gateway.parts.promises.confidence(timed.gateway.policy.routes[0]).required == 0.95


async def test_a_call_that_its_client_gave_up_tells_that_it_takes_longer(
    timed: Served, light: Upstream, clock: FakeClock
) -> None:
    observe(timed, "light", 0.1)
    endpoint = timed.gateway.parts.pools["light"].endpoints[0]
    asked = CallFeatures(route="default")
    before = endpoint.predict(asked, clock.monotonic(), 0.95)
    light.gate.clear()
    call = asyncio.create_task(timed.chat(EASY))
    await light.arrived.wait()
    assert endpoint.load == 1
    clock.advance(30.0)
    call.cancel()
    await until(lambda: endpoint.load == 0)
    after = endpoint.predict(asked, clock.monotonic(), 0.95)
    assert before is not None and after is not None
    assert after.total_s > 1.2 * before.total_s


async def test_of_many_at_once_one_finds_out_how_long_an_unknown_backend_takes(
    tiered: Served, light: Upstream, large: Upstream
) -> None:
    light.gate.clear()
    large.gate.clear()
    headers = {"x-latency-budget-ms": "60000"}
    calls = [asyncio.create_task(tiered.chat(HARD, headers=headers, seed=seed)) for seed in range(6)]
    await until(lambda: len(light.calls) + len(large.calls) == 6)
    assert (len(light.calls), len(large.calls)) == (5, 1)
    light.gate.set()
    large.gate.set()
    await asyncio.gather(*calls)
    assert backend_of(await tiered.chat(HARD, headers=headers, seed=9)) == "large"


async def test_a_policys_budget_holds_without_a_header(
    light: Upstream, large: Upstream, tmp_path: Path, clock: FakeClock
) -> None:
    policy = TIERS.replace("escalate_above: 0.5", "escalate_above: 0.5, latency_budget: 900ms")
    async with gateway_of(config_of(tmp_path, backends(light, large)), policy, clock=clock) as served:
        observe(served, "large", 2.0)
        assert backend_of(await served.chat(HARD)) == "light"


async def test_latencies_are_learnt_from_answers(timed: Served, large: Upstream, clock: FakeClock) -> None:
    async def slowly(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        clock.advance(2.0)
        return web.json_response({"choices": []})

    large.answer = slowly
    headers = {"x-latency-budget-ms": "900"}
    assert backend_of(await timed.chat(HARD, headers=headers)) == "large", "nothing is known yet"
    assert backend_of(await timed.chat(HARD, headers=headers, seed=1)) == "light"
    clock.advance(600)
    assert backend_of(await timed.chat(HARD, headers=headers, seed=2)) == "large", "it may have recovered"


async def test_what_was_spent_before_the_choice_is_no_longer_in_the_budget(
    light: Upstream, large: Upstream, tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(HashEncoder):
        def encode(self, texts: Sequence[str]) -> list[Embedding]:
            clock.advance(0.6)
            return super().encode(texts)

    slow = Slow()
    monkeypatch.setattr(opening, "build_embedder", lambda *_: (slow, BatchingEmbedder(slow, timeout_s=PATIENT_S)))
    async with gateway_of(config_of(tmp_path, backends(light, large)), TIERS, clock=clock) as served:
        observe(served, "large", 0.5)
        assert backend_of(await served.chat(HARD, headers={"x-latency-budget-ms": "1200"})) == "large"
        observe(served, "large", 0.5)
        assert backend_of(await served.chat(HARD + "!", seed=1, headers={"x-latency-budget-ms": "1000"})) == "light"


FAILURES_BEFORE_THE_FIRST_BYTE: dict[str, Script] = {
    "down": dropping,
    "500": answering(500),
    "503": answering(503),
    "429": answering(429),
    "silent": silent,
    "headers-only": headers_only,
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("fault", FAILURES_BEFORE_THE_FIRST_BYTE)
async def test_a_failure_before_the_first_byte_is_made_good_by_the_other_tier(
    hasty: Served, light: Upstream, large: Upstream, fault: str, streamed: bool
) -> None:
    light.answer = FAILURES_BEFORE_THE_FIRST_BYTE[fault]
    answer = await hasty.chat(EASY, stream=streamed)
    assert answer.status == 200
    assert b"large answers: " in answer.body or b'"large"' in answer.body
    assert backend_of(answer) == "large"
    # the head of a stream cannot know whether it will be stored
    assert answer.cache_status == "nearhit; fwd=miss" + ("" if streamed else "; stored")
    assert large.calls[0].json["model"] == "big"
    assert hasty.gateway.parts.pools["light"].inflight == 0


async def test_a_backend_that_nobody_listens_for_is_made_good_too(large: Upstream, tmp_path: Path) -> None:
    gone = Upstream(url="http://127.0.0.1:9/v1")  # the discard port: nobody listens there
    async with gateway_of(config_of(tmp_path, backends(gone, large)), TIERS) as served:
        assert backend_of(await served.chat(EASY)) == "large"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_request_that_was_refused_is_not_sent_again(
    tiered: Served, light: Upstream, large: Upstream, status: int
) -> None:
    light.answer = answering(status)
    answer = await tiered.chat(EASY)
    assert (answer.status, backend_of(answer)) == (status, "light")
    assert (len(light.calls), len(large.calls)) == (1, 0)


async def test_when_both_fail_the_last_ones_answer_is_the_clients(
    tiered: Served, light: Upstream, large: Upstream
) -> None:
    light.answer, large.answer = dropping, answering(503)
    answer = await tiered.chat(EASY)
    assert (answer.status, backend_of(answer)) == (503, "large")
    large.answer = dropping
    answer = await tiered.chat(EASY)
    assert answer.status == 502
    assert answer.json["error"]["type"] == "upstream_error"


async def test_after_the_first_byte_nothing_is_tried_again(tiered: Served, light: Upstream, large: Upstream) -> None:
    light.answer = cut
    answer = await tiered.chat(EASY, stream=True)
    assert answer.status == 200
    assert b"one" in answer.body
    assert b"upstream_error" in answer.body
    assert (len(light.calls), len(large.calls)) == (1, 0)


async def test_a_backend_that_fails_again_and_again_is_left_alone_for_a_while(
    timed: Served, light: Upstream, clock: FakeClock
) -> None:
    light.answer = answering(500)
    for seed in range(FAILURES + 5):
        assert backend_of(await timed.chat(EASY, seed=seed)) == "large"
    assert len(light.calls) == FAILURES
    clock.advance(COOLDOWN_S)
    assert backend_of(await timed.chat(EASY, seed=100)) == "large"
    assert len(light.calls) == FAILURES + 1, "one probe"
    light.answer = None
    clock.advance(COOLDOWN_S)
    assert backend_of(await timed.chat(EASY, seed=101)) == "light"
    assert backend_of(await timed.chat(EASY, seed=102)) == "light"


async def test_embeddings_always_come_from_large(tiered: Served, light: Upstream, large: Upstream) -> None:
    """Vectors of two models cannot be mixed: not even when large fails is light asked."""
    answer = await tiered.post("/v1/embeddings", {"model": "e", "input": "hi"})
    assert backend_of(answer) == "large"
    large.answer = answering(503)
    assert (await tiered.post("/v1/embeddings", {"model": "e", "input": "ho"})).status == 503
    assert light.calls == []


async def test_models_of_both_are_one_list(tiered: Served, light: Upstream, large: Upstream) -> None:
    listed = await tiered.get("/v1/models")
    assert sorted(model["id"] for model in listed.json["data"]) == ["large-model", "light-model"]
    assert (await tiered.get("/v1/models/light-model")).json["id"] == "light-model"
    assert (await tiered.get("/v1/models/other")).status == 404
    light.answer = answering(500)
    assert [model["id"] for model in (await tiered.get("/v1/models")).json["data"]] == ["large-model"]
    large.answer = dropping
    assert (await tiered.get("/v1/models")).status == 502
