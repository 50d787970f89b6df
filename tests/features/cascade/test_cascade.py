"""The lightest model first: over real sockets, before scripted endpoints that say how sure they are."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from openai import AsyncOpenAI

from tests.fixtures.clock import FakeClock
from tests.fixtures.several import Behind, behind, counted, policy_of
from tests.fixtures.upstream import USAGE, Answer, Upstream, completion, frame, stream
from tests.fixtures.waiting import until
from tests.routing.test_dispatch import EASY, HARD, answering, backend_of, cut, dropping, observe, reasons, silent

NAMES = ("small", "big", "judge")


def gateway(tmp_path: Path, cascade: str, *, more: str = "", **keys: Any) -> AbstractAsyncContextManager[Behind]:
    policy = policy_of(f"light: small, large: big, escalate_above: 0.5, cascade: {{{cascade}}}", more=more)
    return behind(tmp_path, policy, *NAMES, backends={"price": {"input_per_million": 1e6}}, **keys)


LOGPROBS = "check: logprobs, accept_above: 0.7"
LIMITS = "    limits: {tokens: 100M/day}\n"


def sure(probability: float, text: str = "light says so") -> Answer:
    """Answers with that probability of each token, where it is asked for them."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        token = {"token": "x", "logprob": math.log(probability), "bytes": None, "top_logprobs": []}
        logprobs = {"content": [token] * 3, "refusal": None} if call.get("logprobs") else None
        whole = completion(call, text)
        whole["choices"][0]["logprobs"] = logprobs
        if not call.get("stream"):
            return web.json_response(whole)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        head = {**{k: whole[k] for k in ("id", "created", "model")}, "object": "chat.completion.chunk"}
        for delta, finish, told in (({"role": "assistant", "content": text}, None, logprobs), ({}, "stop", None)):
            choice = {"index": 0, "delta": delta, "logprobs": told, "finish_reason": finish}
            await response.write(frame({**head, "choices": [choice]}))
        if (call.get("stream_options") or {}).get("include_usage"):
            await response.write(frame({**head, "choices": [], "usage": USAGE}))
        await response.write(b"data: [DONE]\n\n")
        return response

    return answer


def saying(*texts: str) -> Answer:
    """One after the other."""
    rest = iter(texts)

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        text = next(rest)
        return await stream(request, call, text) if call.get("stream") else web.json_response(completion(call, text))

    return answer


def sampled(first: str, *others: str) -> Answer:
    """`first` to a request of temperature 0; the others, one after the other, to its samples, which are hotter and may
    come before it."""
    rest = iter(others)

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(completion(call, next(rest) if call["temperature"] else first))

    return answer


def asked(upstreams: dict[str, Upstream]) -> tuple[int, ...]:
    return tuple(len(upstreams[name].calls) for name in NAMES)


@pytest.fixture
async def cascade(tmp_path: Path) -> AsyncIterator[Behind]:
    async with gateway(tmp_path, LOGPROBS, more=LIMITS) as both:
        yield both


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_sure_answer_of_the_light_model_is_served_to_a_hard_question(cascade: Behind, streamed: bool) -> None:
    served, upstreams = cascade
    upstreams["small"].answer = sure(0.9)
    answer = await served.chat(HARD, stream=streamed)
    assert (answer.status, backend_of(answer), asked(upstreams)) == (200, "small", (1, 0, 0))
    assert b"light says so" in answer.body
    assert reasons(served) == {("light", "cascade-accepted"): 1}
    assert counted(served, "cascade") == {"accepted": 1}
    assert answer.cache_status == "nearhit; fwd=miss" + ("" if streamed else "; stored")
    assert (await served.chat(HARD, stream=not streamed)).cache_status.startswith("nearhit; hit")


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_unsure_answer_is_never_seen_and_a_better_model_is_asked(cascade: Behind, streamed: bool) -> None:
    served, upstreams = cascade
    upstreams["small"].answer = sure(0.5)
    answer = await served.chat(HARD, stream=streamed)
    assert (answer.status, backend_of(answer), asked(upstreams)) == (200, "big", (1, 1, 0))
    assert b"light says so" not in answer.body
    assert reasons(served) == {("large", "cascade-escalated"): 1}
    assert counted(served, "cascade") == {"escalated": 1}


async def test_what_checks_say_is_counted_and_teaches_nothing(cascade: Behind) -> None:
    served, upstreams = cascade
    for seed, probability in enumerate((0.5, 0.5, 0.9)):
        upstreams["small"].answer = sure(probability)
        await served.chat(HARD, seed=seed)
    labels = served.gateway.parts.telemetry.routing_labels.values
    assert labels == {("default", "cascade", "worse"): 2, ("default", "cascade", "as-good"): 1}


async def test_what_is_easy_is_not_checked(cascade: Behind) -> None:
    served, upstreams = cascade
    upstreams["small"].answer = sure(0.1)
    assert backend_of(await served.chat(EASY)) == "small"
    assert "logprobs" not in upstreams["small"].calls[0].json
    assert counted(served, "cascade") == {}


@pytest.mark.parametrize("streamed", [False, True])
async def test_log_probabilities_are_asked_for_and_only_their_client_sees_them(cascade: Behind, streamed: bool) -> None:
    served, upstreams = cascade
    upstreams["small"].answer = sure(0.9)
    plain = await served.chat(HARD, stream=streamed)
    assert upstreams["small"].calls[0].json["logprobs"] is True
    assert b'logprob"' not in plain.body
    assert b'"logprobs":null' in plain.body.replace(b" ", b"")
    own = await served.chat(HARD, stream=streamed, logprobs=True)
    assert b'logprob"' in own.body


async def test_both_calls_are_counted(cascade: Behind) -> None:
    """At 1 dollar an input token, of which each answer says 7 (and 5 of output)."""
    served, upstreams = cascade
    telemetry = served.gateway.parts.telemetry
    upstreams["small"].answer = sure(0.5)
    await served.chat(HARD)
    assert telemetry.limits_tokens.total() == 24
    assert telemetry.limits_cost.total() == pytest.approx(14.0)
    await served.chat(HARD)
    assert telemetry.cost_saved.total() == pytest.approx(14.0), "a hit saves what both calls cost"
    upstreams["small"].answer = sure(0.9)
    await served.chat(HARD, seed=1)
    assert telemetry.limits_cost.total() == pytest.approx(21.0)


async def test_the_official_client_reads_what_was_held_back(cascade: Behind) -> None:
    served, upstreams = cascade
    upstreams["small"].answer = sure(0.9)
    client = AsyncOpenAI(base_url=f"{served.url}/v1", api_key="k", max_retries=0)
    messages: Any = [{"role": "user", "content": HARD}]
    whole = await client.chat.completions.create(model="m", messages=messages)
    assert whole.choices[0].message.content == "light says so"
    assert whole.choices[0].logprobs is None
    events = await client.chat.completions.create(model="m", messages=messages, stream=True, seed=1)
    assert "".join([e.choices[0].delta.content or "" async for e in events if e.choices]) == "light says so"
    await client.close()


async def test_completions_are_tried_too(cascade: Behind) -> None:
    served, upstreams = cascade

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        told = {"tokens": ["x"], "token_logprobs": [-0.01]} if call.get("logprobs") == 1 else None
        choice = {"index": 0, "text": "light completes", "logprobs": told, "finish_reason": "stop"}
        return web.json_response({"id": "cmpl-1", "object": "text_completion", "choices": [choice], "usage": USAGE})

    upstreams["small"].answer = answer
    got = await served.post("/v1/completions", {"model": "m", "prompt": HARD})
    assert backend_of(got) == "small"
    assert got.json["choices"] == [{"index": 0, "text": "light completes", "logprobs": None, "finish_reason": "stop"}]


# Without log probabilities


async def test_an_answer_without_log_probabilities_cannot_be_checked_by_them(cascade: Behind) -> None:
    served, upstreams = cascade
    assert backend_of(await served.chat(HARD)) == "big"
    assert counted(served, "cascade") == {"unchecked": 1}
    assert asked(upstreams) == (1, 1, 0)


async def test_another_check_may_stand_in(tmp_path: Path) -> None:
    async with gateway(tmp_path, "check: logprobs, accept_above: 0.4, otherwise: consistency") as (served, upstreams):
        upstreams["small"].answer = saying("42", "42", "43")
        assert backend_of(await served.chat(HARD)) == "small"
        assert asked(upstreams) == (3, 0, 0)


async def test_an_endpoint_that_refuses_log_probabilities_is_asked_without(tmp_path: Path) -> None:
    async def strict(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if "logprobs" in call:
            return web.json_response({"error": {"message": "unsupported parameter"}}, status=400)
        return web.json_response(completion(call, "42"))

    async with gateway(tmp_path, "check: logprobs, accept_above: 0.4, otherwise: consistency") as (served, upstreams):
        upstreams["small"].answer = strict
        assert backend_of(await served.chat(HARD)) == "small"
        assert asked(upstreams) == (4, 0, 0), "once in vain, and three samples"
        upstreams["small"].answer = dropping
        assert backend_of(await served.chat(HARD, seed=1)) == "big"
    async with gateway(tmp_path / "other", LOGPROBS) as (served, upstreams):
        upstreams["small"].answer = strict
        assert backend_of(await served.chat(HARD)) == "big"
        assert (asked(upstreams), counted(served, "cascade")) == ((1, 1, 0), {"failed": 1})


async def test_messages_of_anthropics_protocol_are_tried_too(tmp_path: Path) -> None:
    body = {"model": "m", "max_tokens": 100, "temperature": 0, "messages": [{"role": "user", "content": HARD}]}
    async with gateway(tmp_path, "check: logprobs, accept_above: 0.4, otherwise: consistency") as (served, upstreams):
        upstreams["small"].answer = sampled("42", "42", "43")
        answer = await served.post("/v1/messages", body)
        assert (answer.status, backend_of(answer)) == (200, "small")
        assert answer.json["content"] == [{"type": "text", "text": "42"}]
        assert "logprobs" not in upstreams["small"].calls[0].json, "the client's protocol has no place for them"


# Consistency

CONSISTENCY = "check: consistency, accept_above: 0.4, samples: 3"


@pytest.mark.parametrize(
    ("texts", "backend"),
    [(("42", " 42 ", "42"), "small"), (("42", "42", "43"), "small"), (("42", "43", "44"), "big")],
)
async def test_samples_that_agree_let_an_answer_pass(tmp_path: Path, texts: tuple[str, ...], backend: str) -> None:
    async with gateway(tmp_path, CONSISTENCY, more=LIMITS) as (served, upstreams):

        async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
            number = 0 if "seed" not in call else call["seed"] - 5
            return web.json_response(completion(call, texts[number]))

        upstreams["small"].answer = answer
        got = await served.chat(HARD, seed=5, temperature=0)
        assert backend_of(got) == backend
        assert len(upstreams["small"].calls) == 3
        assert sorted(call.json["temperature"] for call in upstreams["small"].calls) == [0, 0.7, 0.7]
        if backend == "small":
            assert got.text == "42"
        calls = 3 if backend == "small" else 4
        assert served.gateway.parts.telemetry.limits_cost.total() == pytest.approx(7.0 * calls), "each is paid for"


async def test_objects_agree_where_their_values_do(tmp_path: Path) -> None:
    async with gateway(tmp_path, CONSISTENCY) as (served, upstreams):
        upstreams["small"].answer = sampled('{"a": 1, "b": 2}', '{"b":2,"a":1}', '{"a": 1, "b": 3}')
        asking = served.chat(HARD, response_format={"type": "json_object"}, temperature=0)
        assert backend_of(await asking) == "small"


# Verifier


@pytest.mark.parametrize(
    ("said", "backend"),
    [("A table of three designs.", "small"), ("I'm sorry, but I can't help with that.", "big"), ("", "big")],
)
async def test_the_judge_is_asked_for_a_grade_of_what_is_an_answer(tmp_path: Path, said: str, backend: str) -> None:
    async with gateway(tmp_path, "check: verifier, accept_above: 0.7, judge: judge", more=LIMITS) as (
        served,
        upstreams,
    ):
        upstreams["small"].answer, upstreams["judge"].answer = saying(said), saying("8")
        assert backend_of(await served.chat(HARD)) == backend
        assert len(upstreams["judge"].calls) == (backend == "small")
        assert served.gateway.parts.telemetry.limits_cost.total() == pytest.approx(14.0), "the judge's call, or large's"


@pytest.mark.parametrize(("grade", "outcome"), [("7", "escalated"), ("10/10", "accepted"), ("very good", "unchecked")])
async def test_a_grade_has_to_be_above_what_the_policy_says(tmp_path: Path, grade: str, outcome: str) -> None:
    async with gateway(tmp_path, "check: verifier, accept_above: 0.7, judge: judge") as (served, upstreams):
        upstreams["judge"].answer = saying(grade)
        await served.chat(HARD)
        assert counted(served, "cascade") == {outcome: 1}


async def test_a_judge_that_is_down_cannot_tell(tmp_path: Path) -> None:
    async with gateway(tmp_path, "check: verifier, accept_above: 0.7, judge: judge") as (served, upstreams):
        upstreams["judge"].answer = dropping
        assert backend_of(await served.chat(HARD)) == "big"
        assert counted(served, "cascade") == {"unchecked": 1}


async def test_without_a_judge_an_answer_has_to_be_near_the_question(tmp_path: Path) -> None:
    async with gateway(tmp_path, "check: verifier, accept_above: 0.5") as (served, upstreams):
        upstreams["small"].answer = saying(HARD + " Indeed.")  # near by any embedder
        assert backend_of(await served.chat(HARD)) == "small"
        upstreams["small"].answer = saying("Bananas are yellow.")
        assert backend_of(await served.chat(HARD, seed=1)) == "big"
        assert counted(served, "cascade") == {"accepted": 1, "escalated": 1}


# What cannot be checked, what fails, what takes too long


@pytest.mark.parametrize("fields", [{"n": 2}, {"tools": [{"type": "function", "function": {"name": "f"}}]}])
async def test_what_the_check_cannot_judge_goes_where_it_always_went(cascade: Behind, fields: dict[str, Any]) -> None:
    served, upstreams = cascade
    assert backend_of(await served.chat(HARD, **fields)) == "big"
    assert (asked(upstreams), counted(served, "cascade")) == ((0, 1, 0), {})


@pytest.mark.parametrize("fault", [answering(500), answering(400), dropping, cut])
async def test_a_light_model_that_fails_costs_time_alone(cascade: Behind, fault: Answer) -> None:
    served, upstreams = cascade
    upstreams["small"].answer = fault
    answer = await served.chat(HARD, stream=fault is cut)
    assert (answer.status, backend_of(answer)) == (200, "big")
    assert b"upstream_error" not in answer.body, "a stream that broke was never begun"
    assert counted(served, "cascade") == {"failed": 1}


@pytest.mark.parametrize("fault", [answering(500), answering(400), dropping])
async def test_an_unsure_answer_is_better_than_none(cascade: Behind, fault: Answer) -> None:
    served, upstreams = cascade
    upstreams["small"].answer, upstreams["big"].answer = sure(0.5), fault
    answer = await served.chat(HARD)
    assert (answer.status, backend_of(answer), answer.text) == (200, "small", "light says so")
    assert reasons(served) == {("light", "cascade-kept"): 1}
    assert len(upstreams["small"].calls) == 1, "it is not asked again"


async def test_where_both_fail_the_last_ones_failure_is_the_clients(cascade: Behind) -> None:
    served, upstreams = cascade
    upstreams["small"].answer, upstreams["big"].answer = dropping, answering(503)
    assert (await served.chat(HARD)).status == 503


async def test_a_cut_off_answer_is_doubted_however_sure_it_is(cascade: Behind) -> None:
    served, upstreams = cascade

    async def cut_off(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        body = completion(call, "It is", finish="length")
        body["choices"][0]["logprobs"] = {"content": [{"token": "x", "logprob": -0.001}]}
        return web.json_response(body)

    upstreams["small"].answer = cut_off
    assert backend_of(await served.chat(HARD)) == "big"
    assert counted(served, "cascade") == {"escalated": 1}


async def test_a_budget_that_does_not_bear_both_is_a_plain_choice(tmp_path: Path) -> None:
    async with gateway(tmp_path, LOGPROBS, clock=FakeClock()) as (served, upstreams):
        upstreams["small"].answer = sure(0.9)
        observe(served, "small", 1.0)
        observe(served, "big", 2.0)
        tight = await served.chat(HARD, headers={"x-latency-budget-ms": "2900"})
        assert (backend_of(tight), asked(upstreams)) == ("big", (0, 1, 0))
        assert counted(served, "cascade") == {"skipped": 1}
        loose = await served.chat(HARD, headers={"x-latency-budget-ms": "60000"}, seed=1)
        assert backend_of(loose) == "small"


async def test_where_no_time_is_left_to_escalate_the_unsure_answer_is_served(tmp_path: Path) -> None:
    clock = FakeClock()
    async with gateway(tmp_path, LOGPROBS, clock=clock) as (served, upstreams):
        observe(served, "small", 0.5)
        observe(served, "big", 2.0)
        unsure = sure(0.5)

        async def slowly(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
            clock.advance(8.0)
            return await unsure(request, call)

        upstreams["small"].answer = slowly
        answer = await served.chat(HARD, headers={"x-latency-budget-ms": "9000"})
        assert (backend_of(answer), asked(upstreams)) == ("small", (1, 0, 0))
        assert counted(served, "cascade") == {"kept": 1}


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_leaves_ends_the_trial_upstream(cascade: Behind, streamed: bool) -> None:
    served, upstreams = cascade
    upstreams["small"].answer = silent
    call = asyncio.create_task(served.chat(HARD, stream=streamed))
    await upstreams["small"].arrived.wait()
    call.cancel()
    await until(lambda: upstreams["small"].cancelled == 1)
    assert asked(upstreams) == (1, 0, 0)
    await until(lambda: served.gateway.parts.pools["small"].load == 0)


async def test_a_client_that_leaves_in_mid_stream_of_the_trial_ends_it(cascade: Behind) -> None:
    """The light model speaks already, and the client has heard nothing yet."""
    served, upstreams = cascade

    async def endless(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(frame({"choices": [{"index": 0, "delta": {"content": "well"}}]}))
        return await silent(request, call)

    upstreams["small"].answer = endless
    call = asyncio.create_task(served.chat(HARD, stream=True))
    await upstreams["small"].arrived.wait()
    call.cancel()
    await until(lambda: upstreams["small"].cancelled == 1)


async def test_a_client_that_leaves_ends_every_sample_and_the_escalation(tmp_path: Path) -> None:
    async with gateway(tmp_path, CONSISTENCY) as (served, upstreams):
        upstreams["small"].answer = silent
        call = asyncio.create_task(served.chat(HARD))
        await until(lambda: len(upstreams["small"].calls) == 3)
        call.cancel()
        await until(lambda: upstreams["small"].cancelled == 3)
        upstreams["small"].answer, upstreams["big"].answer = saying("1", "2", "3"), silent
        call = asyncio.create_task(served.chat(HARD))
        await upstreams["big"].arrived.wait()
        call.cancel()
        await until(lambda: upstreams["big"].cancelled == 1)


async def test_followers_of_a_trial_get_its_answer(cascade: Behind) -> None:
    served, upstreams = cascade
    upstreams["small"].answer = sure(0.9)
    upstreams["small"].gate.clear()
    crowd = [asyncio.create_task(served.chat(HARD, stream=i % 2 == 0)) for i in range(6)]
    await upstreams["small"].arrived.wait()
    await until(lambda: served.gateway.inflight.count == 6)
    upstreams["small"].gate.set()
    answers = await asyncio.gather(*crowd)
    assert all(b"light says so" in answer.body for answer in answers)
    assert asked(upstreams) == (1, 0, 0)


async def test_of_three_tiers_the_one_that_is_asked_for_comes_after_the_lightest(tmp_path: Path) -> None:
    policy = policy_of(f"tiers: [small, judge, big], escalate_above: [0.3, 0.999], cascade: {{{LOGPROBS}}}")
    async with behind(tmp_path, policy, *NAMES) as (served, upstreams):
        upstreams["small"].answer = sure(0.5)
        assert backend_of(await served.chat(HARD)) == "judge"
        assert asked(upstreams) == (1, 0, 1)


async def test_explain_says_who_is_tried_first(cascade: Behind) -> None:
    served, upstreams = cascade
    body = {"model": "m", "messages": [{"role": "user", "content": HARD}]}
    async with served.session.post(served.admin_url + "/admin/explain", json=body) as response:
        told = orjson.loads(await response.read())
    assert (told["tried_first"], told["backend"], told["fallbacks"]) == ("small", "big", ["small"])
    assert told["tiers"] == ["light: small", "large: big"]
    assert told["cascade"] == "its answer is served if logprobs scores it above 0.7"
    assert asked(upstreams) == (0, 0, 0)
