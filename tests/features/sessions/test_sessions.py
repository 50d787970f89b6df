"""Sessions in a running gateway: two tiers before scripted endpoints, and several upstreams of one backend."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bench.sessions import replay
from gateway.observability.metrics import Counter as Turns
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import Served, config_of, gateway_of
from tests.fixtures.responses import answering, text_item
from tests.fixtures.upstream import Answer as Script
from tests.fixtures.upstream import Upstream, completion, serving

EASY = "What is the capital of Italy?"
HARD = (
    "Explain step by step why this function deadlocks, compare three designs that avoid it, and prove that yours does "
    "not:\n```\ndef f(a, b):\n    with a, b: pass\n```\nThe answer must be a table and must not exceed 300 words."
)
TIERED = """
version: 1
routes:
  - name: default
    match: {}
    session: SESSION
    route: {light: light, large: large, escalate_above: 0.5, fallback: []}
"""
SINGLE = """
version: 1
routes:
  - name: default
    match: {}
    session: SESSION
    route: {backend: main}
"""
DEFAULT = "{idle: 10m}"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "42"}


class Talk:
    """Sends turns of conversations, and tells which backend answered each."""

    def __init__(self, served: Served) -> None:
        self.served = served

    async def backend(self, turns: Sequence[Mapping[str, Any]], session: str | None = None, **fields: Any) -> str:
        headers = {} if session is None else {"x-session-id": session}
        body = {"model": "m", "messages": list(turns), **fields}
        answer = await self.served.post("/v1/chat/completions", body, headers)
        assert answer.status == 200, answer.body
        return answer.headers["x-nearhit-backend"]

    @property
    def outcomes(self) -> dict[str, float]:
        shown = self.served.gateway.parts.telemetry.metrics()
        turns = next((metric for metric in shown if metric.name == "nearhit_session_turns_total"), None)
        return {outcome: count for (_, outcome), count in turns.values.items()} if isinstance(turns, Turns) else {}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def talk(light: Upstream, large: Upstream, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Talk]:
    config = config_of(tmp_path, backends(light, large))
    async with gateway_of(config, TIERED.replace("SESSION", DEFAULT), clock=clock) as served:
        yield Talk(served)


def backends(light: Upstream, large: Upstream) -> dict[str, Any]:
    return {
        "light": {"adapter": "openai", "url": light.url, "retries": {"attempts": 1}},
        "large": {"adapter": "openai", "url": large.url, "retries": {"attempts": 1}},
    }


@pytest.mark.parametrize("session", [None, "s1"])
async def test_a_tier_rises_and_falls_only_after_idleness(talk: Talk, clock: FakeClock, session: str | None) -> None:
    turns = [user(EASY)]
    assert await talk.backend(turns, session) == "light"
    turns += [said("Rome"), user(HARD)]
    assert await talk.backend(turns, session) == "large"
    turns += [said("..."), user(EASY)]
    assert await talk.backend(turns, session) == "large"
    clock.advance(601)
    turns += [said("Rome"), user(EASY)]
    assert await talk.backend(turns, session) == "light"
    assert talk.outcomes == {"new": 1, "harder": 1, "kept": 1, "idle": 1}


async def test_a_tier_falls_with_a_change_of_topic_where_questions_are_embedded(
    light: Upstream, large: Upstream, tmp_path: Path
) -> None:
    semantic = "    cache: {semantic: {ttl: 1h, min_similarity: 0.99}}\n    session: {}"
    policy = TIERED.replace("    session: SESSION", semantic)
    async with gateway_of(config_of(tmp_path, backends(light, large)), policy) as served:
        talk, turns = Talk(served), [user(HARD)]
        assert await talk.backend(turns) == "large"
        turns += [said("..."), user("Why does this function deadlocks explain that yours does not?")]
        assert await talk.backend(turns) == "large", "the same words"
        turns += [said("..."), user("Can you explain more on this topic?")]
        assert await talk.backend(turns) == "large", "nothing new is named"
        turns += [said("..."), user("What are the main advantages and disadvantages of these designs?")]
        assert await talk.backend(turns) == "large", "it points back"
        turns += [said("..."), user(EASY)]
        assert await talk.backend(turns) == "light", "other words"
        assert talk.outcomes == {"new": 1, "kept": 3, "topic": 1}


async def test_a_tool_result_goes_to_the_backend_that_made_the_call(talk: Talk, clock: FakeClock) -> None:
    turns = [user(HARD)]
    assert await talk.backend(turns) == "large"
    turns += [CALL, RESULT]
    assert await talk.backend(turns) == "large"
    clock.advance(3600)  # somebody had to approve it
    turns += [said("Next."), user("Now what is two and two, by the tool?")]
    assert await talk.backend(turns) == "light"
    turns += [CALL, {**RESULT, "content": HARD}]
    assert await talk.backend(turns) == "light", "the result is long and hard, and belongs to the light model's call"


async def test_without_a_state_a_tool_result_is_as_hard_as_its_question(talk: Talk) -> None:
    """As after a restart, or at another gateway."""
    assert await talk.backend([user(HARD), CALL, RESULT]) == "large"
    assert await talk.backend([user(EASY), CALL, {**RESULT, "content": HARD}]) == "light"


async def test_a_short_reply_is_as_hard_as_what_it_answers(talk: Talk) -> None:
    assert await talk.backend([user(HARD), said("Shall I begin?"), user("yes")]) == "large"
    assert await talk.backend([user(EASY), said("Shall I look?"), user("yes")]) == "light"
    assert await talk.backend([user("yes")]) == "light"


async def test_two_clients_do_not_share_a_session_by_its_name(talk: Talk) -> None:
    async def ask(question: str, key: str) -> str:
        headers = {"x-session-id": "1", "authorization": f"Bearer {key}"}
        body = {"model": "m", "messages": [user("hi"), said("Hello"), user(question)]}
        return (await talk.served.post("/v1/chat/completions", body, headers)).headers["x-nearhit-backend"]

    assert [await ask(HARD, "a"), await ask(EASY, "b"), await ask(EASY, "a")] == ["large", "light", "large"]


async def test_a_model_that_disappears_moves_the_session_with_a_reason(
    talk: Talk, large: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no"}}, status=503)

    turns = [user(HARD)]
    assert await talk.backend(turns) == "large"
    large.answer = broken
    with caplog.at_level(logging.WARNING, "nearhit.sessions"):
        assert await talk.backend([*turns, CALL, RESULT]) == "light"
    (record,) = [record for record in caplog.records if record.name == "nearhit.sessions"]
    fields = record.__dict__["fields"]
    assert {key: fields[key] for key in ("route", "from", "to", "reason", "tool_result")} == {
        "route": "default",
        "from": "large",
        "to": "light",
        "reason": "fallback",
        "tool_result": True,
    }
    assert "id" in fields and HARD not in str(fields)
    assert talk.outcomes == {"new": 1, "fallback": 1}
    large.answer = None
    assert await talk.backend([*turns, CALL, RESULT, CALL, RESULT]) == "light", "it made the second call"


async def test_explain_tells_what_the_session_does(talk: Talk) -> None:
    body = {"model": "m", "messages": [user(HARD)]}
    await talk.backend(body["messages"])  # type: ignore[arg-type]
    asked = {**body, "messages": [user(HARD), said("..."), user(EASY)]}
    async with talk.served.session.post(talk.served.admin_url + "/admin/explain", json=asked) as response:
        found = await response.json()
    assert (found["backend"], found["reason"]) == ("large", "session")
    assert found["session"] == "kept, named by turns, last answered by large"
    assert talk.outcomes == {"new": 1}, "explaining changes nothing"


def tiring(upstream: Upstream, clock: FakeClock) -> Script:
    """Return a handler that takes longer with each call, so that the balancer prefers another upstream next time."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        clock.advance(0.1 * len(upstream.calls))
        return web.json_response(completion(call, "ok"))

    return answer


@pytest.mark.parametrize(("held", "stays"), [("tier", False), ("upstream", True)])
async def test_an_upstream_is_kept_in_a_tool_loop_and_always_where_the_policy_says_so(
    tmp_path: Path, clock: FakeClock, held: str, stays: bool
) -> None:
    async with AsyncExitStack() as stack:
        three = [await stack.enter_async_context(serving(Upstream(name))) for name in "abc"]
        for each in three:
            each.answer = tiring(each, clock)
        config = config_of(tmp_path, {"main": {"adapter": "openai", "upstreams": [each.url for each in three]}})
        policy = SINGLE.replace("SESSION", f"{{hold: {held}, by: [x-session-id]}}")
        served = await stack.enter_async_context(gateway_of(config, policy, clock=clock))
        switches: Counter[str] = Counter()
        for number in range(4):
            previous, turns = None, list[dict[str, Any]]()
            for kind in ("ask", "tool", "tool", "ask", "tool", "ask", "tool"):
                turns += [said("ok"), user(f"question {number}")] if kind == "ask" else [CALL, RESULT]
                before = [len(each.calls) for each in three]
                body, headers = {"model": "m", "messages": turns}, {"x-session-id": str(number)}
                assert (await served.post("/v1/chat/completions", body, headers)).status == 200
                (at,) = [i for i, each in enumerate(three) if len(each.calls) > before[i]]
                switches[kind] += previous not in (None, at)
                previous = at
        assert switches["tool"] == 0
        assert (switches["ask"] == 0) is stays


async def test_an_upstream_that_disappears_moves_a_tool_loop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def gone(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with AsyncExitStack() as stack:
        two = [await stack.enter_async_context(serving(Upstream(name))) for name in "ab"]
        config = config_of(tmp_path, {"main": {"adapter": "openai", "upstreams": [each.url for each in two]}})
        talk = Talk(await stack.enter_async_context(gateway_of(config, SINGLE.replace("SESSION", "{}"))))
        await talk.backend([user(HARD)])
        (first,) = [each for each in two if each.calls]
        first.answer = gone
        with caplog.at_level(logging.WARNING, "nearhit.sessions"):
            assert await talk.backend([user(HARD), CALL, RESULT]) == "main"
        (record,) = [record for record in caplog.records if record.name == "nearhit.sessions"]
        assert record.__dict__["fields"]["reason"] == "upstream"
        assert talk.outcomes == {"new": 1, "upstream": 1}


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_stored_response_is_continued_where_it_is(
    talk: Talk, light: Upstream, large: Upstream, streamed: bool
) -> None:
    large.answer = answering(text_item("..."))

    async def ask(text: str, previous: str | None) -> str:
        fields = {} if previous is None else {"previous_response_id": previous}
        body = {"model": "m", "input": text, "stream": streamed, **fields}
        answer = await talk.served.post("/v1/responses", body)
        assert answer.status == 200
        return answer.headers["x-nearhit-backend"]

    assert await ask(HARD, None) == "large"
    assert await ask(EASY, "resp_1") == "large"
    assert await ask(EASY, "resp_2") == "large"
    assert await ask(EASY, "resp_1") == "large", "a second branch"
    assert not light.calls


def test_a_replay_switches_in_no_tool_loop_and_three_quarters_less_often() -> None:
    found = replay(20, seed=2, progress=lambda _: None)
    without, held = found["none"], found["hold: tier"]
    assert without.in_loops > 0 and held.in_loops == 0
    assert held.switches <= 0.25 * without.switches
    assert held.dollars < without.dollars
