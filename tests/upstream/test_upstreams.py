"""One backend with several upstreams, over real sockets, before scripted endpoints."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from gateway.circuit_breaker import BreakerState
from gateway.upstream.latency import CallFeatures
from gateway.upstream.retry import MINIMUM
from gateway.upstream.upstream import COOLDOWN_S, FAILURES
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import NO_CACHE, Served, config_of, gateway_of
from tests.fixtures.triton import free_ports
from tests.fixtures.upstream import USAGE, Upstream, completion, serving, stream
from tests.fixtures.upstream import Answer as Script
from tests.fixtures.waiting import until

TWO_TIERS = NO_CACHE.replace("{backend: main}", "{light: main, large: other, escalate_above: 1.0}")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def upstreams() -> AsyncIterator[list[Upstream]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(serving(Upstream(name))) for name in "abc"]


def main(upstreams: list[Upstream], **keys: Any) -> dict[str, Any]:
    return {"main": {"adapter": "openai", "upstreams": [upstream.url for upstream in upstreams], **keys}}


def answering(status: int, headers: dict[str, str] | None = None) -> Script:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no"}}, status=status, headers=headers)

    return answer


def taking(seconds: float, clock: FakeClock) -> Script:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        clock.advance(seconds)
        return web.json_response(completion(call, "done"))

    return answer


async def dropping(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def every_other(status: int) -> Script:
    count = 0

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        nonlocal count
        count += 1
        return web.json_response(completion(call, "done"), status=status if count % 2 else 200)

    return answer


def counts(upstreams: list[Upstream]) -> list[int]:
    return [len(upstream.calls) for upstream in upstreams]


def retries(served: Served) -> dict[str, float]:
    return {outcome: count for (_, outcome), count in served.gateway.parts.telemetry.retries.values.items()}


@contextmanager
def patience() -> Iterator[Callable[[], None]]:
    """Meanwhile calls are given up when what this yields is called: by then they have arrived, however busy the machine
    is."""
    limits: list[asyncio.Timeout] = []

    def timeout(_: float) -> asyncio.Timeout:
        limits.append(asyncio.timeout(None))
        return limits[-1]

    def over() -> None:
        for limit in limits:
            limit.reschedule(0.0)

    instead = SimpleNamespace(timeout=timeout, CancelledError=asyncio.CancelledError)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.upstream.upstream.asyncio", instead)
        yield over


async def test_calls_on_their_way_are_spread_over_the_upstreams(upstreams: list[Upstream], tmp_path: Path) -> None:
    for upstream in upstreams:
        upstream.gate.clear()
    async with gateway_of(config_of(tmp_path, main(upstreams)), NO_CACHE) as served:
        served.gateway.parts.pools["main"]._rng = random.Random(7).random  # else 1 in 20,000 fails
        calls = [asyncio.create_task(served.chat(str(i))) for i in range(30)]
        await until(lambda: sum(counts(upstreams)) == 30)
        # Three that are alike: of two that are drawn the one with fewer calls is asked.
        assert all(7 <= count <= 13 for count in counts(upstreams)), counts(upstreams)
        assert served.gateway.parts.pools["main"].inflight == 30
        for upstream in upstreams:
            upstream.gate.set()
        assert {(await call).status for call in calls} == {200}
        assert served.gateway.parts.pools["main"].inflight == served.gateway.parts.pools["main"].load == 0


async def test_the_slow_one_is_asked_less_and_again_once_it_is_not(
    upstreams: list[Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    fast, slow = upstreams[:2]
    fast.answer, slow.answer = taking(0.1, clock), taking(2.0, clock)
    async with gateway_of(config_of(tmp_path, main([fast, slow])), NO_CACHE, clock=clock) as served:
        for i in range(40):
            await served.chat(str(i))
        assert len(slow.calls) <= 3
        assert len(fast.calls) >= 37
        slow.answer, fast.answer = taking(0.1, clock), taking(2.0, clock)
        for i in range(40):
            await served.chat(str(i))
        assert len(slow.calls) > 20, "most of them; a hedge may ask either"


async def test_weights_say_who_gets_more(upstreams: list[Upstream], tmp_path: Path) -> None:
    heavy, light = upstreams[:2]
    heavy.gate.clear()
    light.gate.clear()
    listed = [{"url": heavy.url, "weight": 3}, light.url]
    config = config_of(tmp_path, {"main": {"adapter": "openai", "upstreams": listed}})
    async with gateway_of(config, NO_CACHE) as served:
        calls = [asyncio.create_task(served.chat(str(i))) for i in range(20)]
        await until(lambda: sum(counts([heavy, light])) == 20)
        assert counts([heavy, light]) == pytest.approx([15, 5], abs=1)
        heavy.gate.set()
        light.gate.set()
        await asyncio.gather(*calls)


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_upstream_that_drops_calls_is_left_out_and_comes_back_by_a_probe(
    upstreams: list[Upstream], tmp_path: Path, clock: FakeClock, streamed: bool
) -> None:
    good, bad = upstreams[:2]
    bad.answer = dropping
    async with gateway_of(config_of(tmp_path, main([good, bad])), NO_CACHE, clock=clock) as served:
        endpoint = served.gateway.parts.pools["main"].endpoints[1]
        for i in range(100):
            assert (await served.chat(str(i), stream=streamed)).status == 200
            clock.advance(0.05)
            if endpoint.breaker.state(clock.monotonic()) is BreakerState.OPEN:
                break
        asked = len(bad.calls)
        assert endpoint.breaker.state(clock.monotonic()) is BreakerState.OPEN
        for i in range(20):
            assert (await served.chat(str(i), stream=streamed)).status == 200
        assert len(bad.calls) == asked
        assert served.gateway.parts.pools["main"].state(clock.monotonic()) is BreakerState.CLOSED, (
            "the backend as a whole is"
        )

        bad.answer = None
        clock.advance(COOLDOWN_S)
        assert (await served.chat("probe")).text == "b answers: probe"
        assert endpoint.breaker.state(clock.monotonic()) is BreakerState.CLOSED


async def test_an_address_where_nobody_listens_costs_no_client_anything(
    upstreams: list[Upstream], tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    gone = [Upstream(url=f"http://127.0.0.1:{port}/v1"), Upstream(url=f"http://127.0.0.1:{port}/v1/x/v1")]
    async with gateway_of(config_of(tmp_path, main([*gone, upstreams[0]])), NO_CACHE) as served:
        for i in range(30):
            assert (await served.chat(str(i))).status == 200
        assert len(upstreams[0].calls) == 30


async def test_half_of_the_answers_failing_costs_a_fifth_more_calls_at_most(
    upstreams: list[Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    only = upstreams[0]
    only.answer = every_other(503)
    async with gateway_of(config_of(tmp_path, main([only])), NO_CACHE, clock=clock) as served:
        answers = [(await served.chat(str(i))).status for i in range(100)]
        assert 100 + MINIMUM < len(only.calls) <= 120
        assert answers.count(200) > 55
        assert retries(served)["recovered"] == len(only.calls) - 100
        assert retries(served)["budget"] > 0


async def test_no_retries_where_the_configuration_wants_none(upstreams: list[Upstream], tmp_path: Path) -> None:
    upstreams[0].answer = every_other(503)
    for keys in ({"attempts": 1}, {"budget": 0}):
        config = config_of(tmp_path, main(upstreams[:1], retries=keys))
        async with gateway_of(config, NO_CACHE) as served:
            before = len(upstreams[0].calls)
            assert [(await served.chat(str(i))).status for i in range(4)].count(503) == 2
            assert len(upstreams[0].calls) == before + 4


async def test_who_fails_more_often_than_the_others_is_ejected_and_the_others_never_all(
    upstreams: list[Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    """Every other call fails: never enough in a row for the breaker."""
    upstreams[0].answer = every_other(500)
    async with gateway_of(config_of(tmp_path, main(upstreams)), NO_CACHE, clock=clock) as served:
        endpoints = served.gateway.parts.pools["main"].endpoints
        for i in range(300):
            await served.chat(str(i))
            if endpoints[0].breaker.state(clock.monotonic()) is BreakerState.OPEN:
                break
        assert [endpoint.breaker.state(clock.monotonic()) for endpoint in endpoints] == [
            BreakerState.OPEN,
            BreakerState.CLOSED,
            BreakerState.CLOSED,
        ]
        for upstream in upstreams[1:]:
            upstream.answer = every_other(500)
        for i in range(100):
            await served.chat(str(i))
        assert [endpoint.breaker.state(clock.monotonic()) for endpoint in endpoints].count(BreakerState.OPEN) == 1


async def test_retry_after_is_heeded_while_others_are_asked(
    upstreams: list[Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    tired, fresh = upstreams[:2]
    tired.answer = answering(429, {"Retry-After": "30"})
    async with gateway_of(config_of(tmp_path, main([tired, fresh])), NO_CACHE, clock=clock) as served:
        for i in range(30):
            assert (await served.chat(str(i))).status == 200
        assert len(tired.calls) == 1
        tired.answer = None
        fresh.gate.clear()
        waiting = asyncio.create_task(served.chat("x"))
        await until(lambda: len(fresh.calls) == 31)
        clock.advance(30.0)
        assert (await served.chat("y")).text == "a answers: y"
        fresh.gate.set()
        await waiting


async def test_when_all_want_to_be_left_alone_the_client_is_told_for_how_long(
    upstreams: list[Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    upstreams[0].answer = answering(429, {"Retry-After": "40"})
    upstreams[1].answer = answering(200, {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "20s"})
    async with gateway_of(config_of(tmp_path, main(upstreams[:2])), NO_CACHE, clock=clock) as served:
        for i in range(2):
            await served.chat(str(i))
        await until(lambda: counts(upstreams[:2]) == [1, 1])
        clock.advance(5.0)
        answer = await served.chat("again")
        assert (answer.status, answer.headers["Retry-After"]) == (429, "15")
        assert answer.json["error"]["type"] == "rate_limit_error"
        assert counts(upstreams[:2]) == [1, 1], "nobody was asked"
        clock.advance(15.0)
        assert (await served.chat("once more")).status == 200


async def test_when_all_want_to_be_left_alone_the_other_tier_is_asked(
    upstreams: list[Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    upstreams[0].answer = answering(429, {"Retry-After": "40"})
    backends = {**main(upstreams[:1]), "other": {"adapter": "openai", "url": upstreams[1].url}}
    async with gateway_of(config_of(tmp_path, backends), TWO_TIERS, clock=clock) as served:
        for i in range(3):
            answer = await served.chat(str(i))
            assert (answer.status, answer.headers["x-nearhit-backend"]) == (200, "other")
        assert len(upstreams[0].calls) == 1


async def test_the_last_answers_retry_after_goes_to_the_client(upstreams: list[Upstream], tmp_path: Path) -> None:
    upstreams[0].answer = answering(503, {"Retry-After": "7"})
    async with gateway_of(config_of(tmp_path, main(upstreams[:1])), NO_CACHE) as served:
        answer = await served.chat("hi")
        assert (answer.status, answer.headers["Retry-After"]) == (503, "7")
        assert len(upstreams[0].calls) == 1


async def test_one_clients_limit_is_not_another_ones(
    upstreams: list[Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    """Credentials go on to the upstream: the limit that it speaks of is that account's."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if request.headers["Authorization"] == "Bearer poor":
            return web.json_response({}, status=429, headers={"Retry-After": "60"})
        return web.json_response(completion(call, "done"))

    upstreams[0].answer = answer
    async with gateway_of(config_of(tmp_path, main(upstreams[:1])), NO_CACHE, clock=clock) as served:
        poor, rich = {"Authorization": "Bearer poor"}, {"Authorization": "Bearer rich"}
        assert [(await served.chat("a", headers=poor)).status for _ in range(3)] == [429] * 3
        assert len(upstreams[0].calls) == 1
        assert (await served.chat("a", headers=rich)).status == 200


def turn(number: int, turns: int) -> list[dict[str, str]]:
    said = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": f"conversation {number}"}]
    for i in range(turns):
        said += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": f"turn {i}"}]
    return said


async def test_a_conversation_stays_on_its_upstream_and_moves_when_that_is_down(
    upstreams: list[Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    count = 60  # homes go by the upstreams' ports, which are others each time: one in ten billion times a home has none
    config = config_of(tmp_path, main(upstreams, sticky="conversation"))
    async with gateway_of(config, NO_CACHE, clock=clock) as served:

        async def ask(number: int, turns: int) -> str:
            body = {"model": "m", "messages": turn(number, turns)}
            return (await served.post("/v1/chat/completions", body)).text[0]

        homes = {number: await ask(number, 0) for number in range(count)}
        assert set(homes.values()) == {"a", "b", "c"}
        for turns in (1, 2, 3):
            assert {number: await ask(number, turns) for number in range(count)} == homes
        upstreams[0].answer = dropping
        moved = {number: await ask(number, 4) for number in range(count)}
        assert {number: home for number, home in moved.items() if homes[number] != "a"} == {
            number: home for number, home in homes.items() if home != "a"
        }
        assert "a" not in moved.values()
        upstreams[0].answer = None


def long_talk(number: int, turns: int) -> list[dict[str, str]]:
    """A conversation whose system prompt all share, and whose turns fill blocks."""
    said = [{"role": "system", "content": "Be kind. " * 100}, {"role": "user", "content": f"talk {number} " * 100}]
    for i in range(turns):
        said += [{"role": "assistant", "content": "yes " * 200}, {"role": "user", "content": f"turn {i} " * 100}]
    return said


def with_cached_tokens(cached: int) -> Script:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        usage = {"prompt_tokens": 100, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": cached}}
        return web.json_response({**completion(call, "done"), "usage": usage})

    return answer


async def test_a_prompt_goes_to_the_upstream_that_saw_its_prefix_and_moves_when_that_is_down(
    upstreams: list[Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    config = config_of(tmp_path, main(upstreams, sticky="prefix"))
    async with gateway_of(config, NO_CACHE, clock=clock) as served:

        async def ask(messages: list[dict[str, str]], **more: Any) -> str:
            before = counts(upstreams)
            assert (
                await served.post("/v1/chat/completions", {"model": "m", "messages": messages, **more})
            ).status == 200
            moved = [after - old for after, old in zip(counts(upstreams), before, strict=True)]
            return upstreams[moved.index(max(moved))].name

        home = await ask(long_talk(0, 0))
        assert {await ask(long_talk(0, turns)) for turns in (1, 2, 3)} == {home}
        assert await ask(long_talk(1, 0)) == home  # its load is 0, and it has the system prompt
        key_home = await ask([{"role": "user", "content": "short"}], prompt_cache_key="k")
        assert await ask([{"role": "user", "content": "other"}], prompt_cache_key="k") == key_home
        down = next(upstream for upstream in upstreams if upstream.name == home)
        down.answer = dropping
        await served.post("/v1/chat/completions", {"model": "m", "messages": long_talk(0, 4)})
        down.answer = None
        assert await ask(long_talk(0, 5)) != home  # the longest prefix is now on the upstream of the retry
        picks = served.gateway.parts.telemetry.prefix_picks.values
        assert picks["main", "cold"] == 2
        assert picks["main", "warm"] >= 6


async def test_a_prompt_leaves_the_upstream_that_has_twice_the_least_load(
    upstreams: list[Upstream], tmp_path: Path
) -> None:
    config = config_of(tmp_path, main(upstreams[:2], sticky="prefix"))
    async with gateway_of(config, NO_CACHE) as served:
        for upstream in upstreams[:2]:
            upstream.gate.clear()
        asking = []
        for number in range(6):
            body = {"model": "m", "messages": long_talk(number, 0)}
            asking.append(asyncio.create_task(served.post("/v1/chat/completions", body)))
            await until(lambda number=number: sum(counts(upstreams)) == number + 1)  # type: ignore[misc]
        assert sorted(counts(upstreams[:2])) in ([2, 4], [3, 3])
        for upstream in upstreams[:2]:
            upstream.gate.set()
        assert {answer.status for answer in await asyncio.gather(*asking)} == {200}


@pytest.mark.parametrize(
    "keys", [{"sticky": "prefix"}, {"price": {"input_per_million": 2, "cached_input_per_million": 1}}]
)
async def test_cached_input_tokens_are_counted(upstreams: list[Upstream], tmp_path: Path, keys: dict[str, Any]) -> None:
    for upstream in upstreams:
        upstream.answer = with_cached_tokens(60)
    async with gateway_of(config_of(tmp_path, main(upstreams, **keys)), NO_CACHE) as served:
        for _ in range(2):
            assert (await served.chat("hi")).status == 200
        assert served.gateway.parts.telemetry.input_tokens.values == {("main", "cached"): 120, ("main", "uncached"): 80}


async def test_input_tokens_of_a_stream_are_counted_at_its_end(upstreams: list[Upstream], tmp_path: Path) -> None:
    async with gateway_of(config_of(tmp_path, main(upstreams, sticky="prefix")), NO_CACHE) as served:
        assert (await served.chat("hi", stream=True, stream_options={"include_usage": True})).status == 200
        counted = served.gateway.parts.telemetry.input_tokens.values
        assert counted == {("main", "cached"): 0, ("main", "uncached"): USAGE["prompt_tokens"]}


async def test_model_names_are_mapped(upstreams: list[Upstream], tmp_path: Path) -> None:
    models = {"gpt-4o-mini*": "small", "gpt-4o*": "llama-70b"}
    async with gateway_of(config_of(tmp_path, main(upstreams[:1], models=models)), NO_CACHE) as served:
        for name in ("gpt-4o-mini", "gpt-4o-2024", "other"):
            await served.chat("hi", model=name)
        assert [call.json["model"] for call in upstreams[0].calls] == ["small", "llama-70b", "other"]


async def test_upstreams_may_have_keys_of_their_own(upstreams: list[Upstream], tmp_path: Path) -> None:
    listed = [{"url": upstreams[0].url, "api_key_env": "KEY_A"}, upstreams[1].url]
    config = config_of(tmp_path, {"main": {"adapter": "openai", "upstreams": listed, "api_key_env": "KEY"}})
    async with gateway_of(config, NO_CACHE, {"KEY_A": "one", "KEY": "two"}) as served:
        while not all(counts(upstreams[:2])):
            await served.chat("hi", headers={"Authorization": "Bearer client"})
        keys = [upstream.calls[0].headers["Authorization"] for upstream in upstreams[:2]]
        assert keys == ["Bearer one", "Bearer two"]


async def test_what_passes_through_goes_to_an_upstream_that_is_well(
    upstreams: list[Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    upstreams[0].answer = answering(503)
    async with gateway_of(config_of(tmp_path, main(upstreams[:2])), NO_CACHE, clock=clock) as served:
        for _ in range(20):
            assert (await served.get("/v1/files")).status == 200


async def test_what_may_change_something_upstream_is_not_sent_again(upstreams: list[Upstream], tmp_path: Path) -> None:
    upstreams[0].answer = upstreams[1].answer = answering(503)
    async with gateway_of(config_of(tmp_path, main(upstreams[:2])), NO_CACHE) as served:
        assert (await served.post("/v1/fine_tuning/jobs", {"training_file": "f"})).status == 503
        assert sum(counts(upstreams[:2])) == 1
        assert (await served.get("/v1/files")).status == 503
        assert sum(counts(upstreams[:2])) == 3


async def test_a_stuck_first_byte_leads_to_another_upstream_within_the_budget(
    upstreams: list[Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    stuck, well = upstreams[:2]
    stuck.gate.clear()
    listed = [{"url": stuck.url, "weight": 1000}, well.url]
    config = config_of(tmp_path, {"main": {"adapter": "openai", "upstreams": listed}})
    async with gateway_of(config, NO_CACHE, clock=clock) as served:
        answer = await served.chat("hi", headers={"x-latency-budget-ms": "4000"})
        assert answer.text == "b answers: hi"
        await until(lambda: stuck.cancelled == len(stuck.calls))  # one, if it arrived before it was given up
        endpoint = served.gateway.parts.pools["main"].endpoints[0]
        assert (endpoint.load, endpoint.backend.occupancy.inflight) == (0, 0)
        assert endpoint.record.counts(served.gateway.parts.clock.monotonic()) == (0, 0), (
            "a hurry is not the upstream's fault"
        )


async def test_no_attempt_begins_once_the_deadline_is_over(
    upstreams: list[Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    async def late(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        clock.advance(61.0)
        return web.json_response({}, status=503)

    for upstream in upstreams:
        upstream.answer = late
    async with gateway_of(config_of(tmp_path, main(upstreams)), NO_CACHE, clock=clock) as served:
        answer = await served.chat("hi", headers={"x-latency-budget-ms": "60000"})
        assert answer.status == 503
        assert sum(counts(upstreams)) == 1
        assert retries(served) == {"deadline": 1}


async def test_a_client_that_leaves_ends_the_attempt_in_flight(upstreams: list[Upstream], tmp_path: Path) -> None:
    upstreams[1].gate.clear()
    upstreams[0].answer = dropping
    async with gateway_of(config_of(tmp_path, main(upstreams[:2])), NO_CACHE) as served:
        call = asyncio.create_task(served.chat("hi"))
        await until(lambda: upstreams[1].calls)
        call.cancel()
        await until(lambda: upstreams[1].cancelled)
        pool = served.gateway.parts.pools["main"]
        await until(lambda: pool.load == 0)
        assert pool.inflight == 0
        assert len(upstreams[1].calls) == 1


async def test_after_the_first_byte_no_other_upstream_is_asked(upstreams: list[Upstream], tmp_path: Path) -> None:
    async def cut(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, call, "one two three four", cut=True)

    for upstream in upstreams:
        upstream.answer = cut
    async with gateway_of(config_of(tmp_path, main(upstreams)), NO_CACHE) as served:
        answer = await served.chat("hi", stream=True)
        assert b"one" in answer.body
        assert b"upstream_error" in answer.body
        assert sum(counts(upstreams)) == 1


async def test_all_down_is_said_and_each_answer_counts_once(
    upstreams: list[Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    for upstream in upstreams:
        upstream.answer = answering(500)
    async with gateway_of(config_of(tmp_path, main(upstreams)), NO_CACHE, clock=clock) as served:
        for i in range(3 * FAILURES + 10):
            assert (await served.chat(str(i))).status == 500
        pool = served.gateway.parts.pools["main"]
        assert pool.state(clock.monotonic()) is BreakerState.OPEN
        for upstream in upstreams:
            upstream.answer = None
        assert (await served.chat("hi")).status == 200, "somebody has to answer"


async def test_the_admin_port_shows_each_upstream(upstreams: list[Upstream], tmp_path: Path) -> None:
    upstreams[0].answer = answering(503, {"Retry-After": "60"})
    async with gateway_of(config_of(tmp_path, main(upstreams[:2])), NO_CACHE) as served:
        while not all(counts(upstreams[:2])):
            await served.chat("hi")
        async with served.session.get(served.admin_url + "/admin/backends") as response:
            tired, well = (await response.json())["main"]["upstreams"]
        assert (tired["address"], tired["state"], well["state"]) == (upstreams[0].url, "waits", "closed")
        assert 0 < tired["waits_s"] <= 60
        assert well["latency_ewma_ms"] > 0
        assert (well["inflight"], well["queued"]) == (0, 0)
        async with served.session.get(served.admin_url + "/metrics") as response:
            metrics = await response.text()
        assert f'nearhit_upstream_state{{backend="main",upstream="{upstreams[0].url}"}} 3.0' in metrics
        assert f'nearhit_upstream_inflight{{backend="main",upstream="{upstreams[1].url}"}} 0.0' in metrics
        assert f'nearhit_upstream_latency_ewma_seconds{{backend="main",upstream="{upstreams[1].url}"}}' in metrics


async def test_a_kept_connection_that_was_closed_is_no_failure_and_a_fresh_one_is(
    upstreams: list[Upstream], tmp_path: Path
) -> None:
    only, dropped = upstreams[0], 0

    async def drops_once(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        nonlocal dropped
        dropped += 1
        only.answer = None
        return await dropping(request, call)

    async with gateway_of(config_of(tmp_path, main([only], retries={"attempts": 1})), NO_CACHE) as served:
        only.answer = drops_once
        assert (await served.chat("fresh")).status == 502
        assert (await served.chat("answered")).status == 200
        only.answer = drops_once
        assert (await served.chat("kept")).status == 200
        assert (len(only.calls), dropped) == (4, 2)


async def test_what_is_predicted_is_what_the_slowest_that_may_be_chosen_takes(
    upstreams: list[Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    """Of two that are drawn the slower one is not asked, so that the slowest of three never is."""
    async with gateway_of(config_of(tmp_path, main(upstreams)), NO_CACHE, clock=clock) as served:
        pool, asked = served.gateway.parts.pools["main"], CallFeatures(route="default")
        assert pool.predict(asked, clock.monotonic()) is None
        for endpoint, seconds in zip(pool.endpoints, (0.1, 1.0, 5.0), strict=True):
            for _ in range(100):
                endpoint.latency.observe(
                    asked, load=0, ttft_s=seconds, total_s=seconds, output_tokens=0, now=clock.monotonic()
                )
        predicted = pool.predict(asked, clock.monotonic())
        assert predicted is not None
        assert 0.9 < predicted.total_s < 2.0
        pool.endpoints[0].breaker.eject(clock.monotonic())
        pool.endpoints[1].breaker.eject(clock.monotonic())
        predicted = pool.predict(asked, clock.monotonic())
        assert predicted is not None
        assert predicted.total_s > 4.0, "there is no other"


async def test_models_are_listed_by_whoever_can(upstreams: list[Upstream], tmp_path: Path) -> None:
    upstreams[0].answer = dropping
    two = {**main(upstreams[:2]), "other": {"adapter": "openai", "url": upstreams[2].url}}
    async with gateway_of(config_of(tmp_path, two), TWO_TIERS) as served:
        for _ in range(5):
            listed = (await served.get("/v1/models")).json["data"]
            assert {model["id"] for model in listed} == {"b-model", "c-model"}


async def test_whatever_goes_wrong_nothing_stays_in_flight_and_retries_keep_to_their_budget(
    upstreams: list[Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    chance = random.Random(11)

    async def cut(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, call, "one two three four", cut=True)

    async def well(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if call.get("stream"):
            return await stream(request, call, "one two three four")
        return web.json_response(completion(call, "done"))

    async def silent(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return await asyncio.get_running_loop().create_future()

    scripts = [well] * 6 + [dropping, answering(500), answering(503), answering(429), cut, silent]
    connections, stale = set[Any](), 0

    async def anything(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        nonlocal stale
        script = chance.choice(scripts)
        # It looks like a kept connection that had ended by then: the client sends the call anew, which is no retry.
        stale += script is dropping and request.transport in connections
        connections.add(request.transport)
        return await script(request, call)

    for upstream in upstreams:
        upstream.answer = anything
    keys = {"timeouts": {"first_byte": "200ms"}, "adaptive": False, "sticky": "conversation"}
    async with gateway_of(config_of(tmp_path, main(upstreams, **keys)), NO_CACHE, clock=clock) as served:
        pool = served.gateway.parts.pools["main"]
        for _ in range(8):
            clock.advance(1.0)  # what is asked stays within the budget's window, however long it takes
            headers = {"x-latency-budget-ms": "150"}
            calls = [
                asyncio.create_task(served.chat(f"{i % 7}", stream=i % 2 == 0, headers=headers if i % 5 == 0 else None))
                for i in range(40)
            ]
            for call in calls[::6]:
                await asyncio.sleep(0)
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        await until(lambda: pool.load == pool.inflight == 0)
        assert [endpoint.backend.occupancy.queued for endpoint in pool.endpoints] == [0, 0, 0]
        asked = 320
        assert sum(counts(upstreams)) <= asked + 0.2 * asked + stale


async def test_many_that_are_given_up_at_once_are_no_more_than_the_budget_of_retries(
    upstreams: list[Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    """Who hangs is given up while another one could still answer: for as many calls as may be sent again, and the
    others wait on."""
    for upstream in upstreams:
        upstream.gate.clear()
    async with gateway_of(config_of(tmp_path, main(upstreams, adaptive=False)), NO_CACHE, clock=clock) as served:
        headers = {"x-latency-budget-ms": "4000"}
        with patience() as over:
            calls = [asyncio.create_task(served.chat(str(i), headers=headers)) for i in range(50)]
            await until(lambda: sum(counts(upstreams)) == 50)
            over()
        await until(lambda: sum(counts(upstreams)) >= 60 or all(call.done() for call in calls))
        for upstream in upstreams:
            upstream.gate.set()
        await asyncio.gather(*calls)
        assert sum(counts(upstreams)) == 60
        assert served.gateway.parts.pools["main"].budget.reserved == 0


async def test_who_is_given_up_and_finds_nobody_else_spends_no_retry(
    upstreams: list[Upstream], tmp_path: Path, clock: FakeClock
) -> None:
    for upstream in upstreams:
        upstream.gate.clear()
    async with gateway_of(config_of(tmp_path, main(upstreams, adaptive=False)), NO_CACHE, clock=clock) as served:
        pool = served.gateway.parts.pools["main"]
        with patience() as over:
            calls = [asyncio.create_task(served.chat("a", headers={"x-latency-budget-ms": "3000"})) for _ in range(3)]
            await until(lambda: sum(counts(upstreams)) == 3)
            for endpoint in pool.endpoints:  # meanwhile they say that they want to be left alone
                endpoint.waits.add("", clock.monotonic() + 60)
            over()
        assert [(await call).status for call in calls] == [504] * 3
        assert sum(counts(upstreams)) == 3
        assert (pool.budget.reserved, pool.budget._retries.total(clock.monotonic())) == (0, 0)
        for upstream in upstreams:
            upstream.gate.set()


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_upload_that_reached_nobody_goes_on_to_another_upstream_whole(
    upstreams: list[Upstream], tmp_path: Path, streamed: bool
) -> None:
    (port,) = free_ports(1)
    body = b"0123456789" * 20_000

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 1000):
            yield body[start : start + 1000]

    gone = {"url": f"http://127.0.0.1:{port}/v1", "weight": 1000}
    config = config_of(tmp_path, {"main": {"adapter": "openai", "upstreams": [gone, upstreams[0].url]}})
    async with gateway_of(config, NO_CACHE) as served:
        data = pieces() if streamed else body
        async with served.session.post(served.url + "/v1/files", data=data) as response:
            assert (response.status, await response.read()) == (200, body)
        assert len(upstreams[0].calls) == 1
