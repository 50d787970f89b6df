"""A question waits for one in flight that asks the same in other words, where the policy allows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.cache import inflight_questions
from gateway.routing import budget
from tests.fixtures.gateways import Answer, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream, completion
from tests.fixtures.waiting import until

POLICY = """
version: 1
routes:
  - name: default
    match: {{}}
    cache: {{exact: {{ttl: 1h}}, semantic: {{ttl: 1h, max_wrong_hits: 1%, coalesce: {}}}}}
    route: {{backend: main}}
"""
ASKED = "how do I reset my password"
ALIKE = [f"{ASKED}?", f"{ASKED} ?", f"{ASKED}!", "How do I reset my password?"]
OTHER = "how do I reset my password in 2021"


@pytest.fixture
async def served(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, POLICY.format("on")) as gateway:
        yield gateway


async def in_flight(served: Served, upstream: Upstream, **fields: Any) -> asyncio.Task[Answer]:
    """The first question, which its backend does not answer before the gate opens."""
    upstream.gate.clear()
    task = asyncio.create_task(served.chat(ASKED, **fields))
    await until(lambda: len(upstream.calls) == 1)
    return task


def outcome(served: Served, name: str) -> float:
    return served.gateway.parts.telemetry.crowds.values.get((name,), 0.0)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
async def test_the_same_in_other_words_waits_and_is_a_semantic_hit(
    served: Served, upstream: Upstream, streamed: bool
) -> None:
    first = await in_flight(served, upstream, stream=streamed)
    others = [asyncio.create_task(served.chat(question)) for question in ALIKE]
    await until(lambda: outcome(served, "waits-alike") == len(ALIKE))
    upstream.gate.set()
    answers = await asyncio.gather(*others)
    assert {answer.text for answer in answers} == {f"upstream answers: {ASKED}"}
    assert {answer.cache_status for answer in answers} == {"nearhit; hit; detail=semantic"}
    assert "wait;dur=" in answers[0].headers["Server-Timing"]
    assert (await first).status == 200
    assert (len(upstream.calls), len(served.gateway.parts.space.inflight_questions)) == (1, 0)


async def test_it_does_not_unless_the_policy_says_so(upstream: Upstream, tmp_path: Path) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, POLICY.format("off")) as served:
        first = await in_flight(served, upstream)
        second = asyncio.create_task(served.chat(ALIKE[0]))
        await until(lambda: len(upstream.calls) == 2)
        upstream.gate.set()
        await asyncio.gather(first, second)


@pytest.mark.parametrize(
    ("question", "fields"),
    [(OTHER, {}), (ALIKE[0], {"headers": {"Authorization": "Bearer other"}}), (ALIKE[0], {"temperature": 0.5})],
    ids=["another-question", "another-tenant", "another-scope"],
)
async def test_what_would_be_no_hit_is_not_waited_for(
    served: Served, upstream: Upstream, question: str, fields: dict[str, Any]
) -> None:
    first = await in_flight(served, upstream)
    other = asyncio.create_task(served.chat(question, **fields))
    await until(lambda: len(upstream.calls) == 2)
    upstream.gate.set()
    assert (await other).cache_status == "nearhit; fwd=miss; stored"
    await first


@pytest.mark.parametrize("directive", ["no-cache", "no-store"])
async def test_who_wants_a_fresh_answer_waits_for_nobody(served: Served, upstream: Upstream, directive: str) -> None:
    first = await in_flight(served, upstream)
    other = asyncio.create_task(served.chat(ALIKE[0], headers={"Cache-Control": directive}))
    await until(lambda: len(upstream.calls) == 2)
    upstream.gate.set()
    await asyncio.gather(first, other)


async def test_after_an_answer_that_cannot_be_stored_all_fly_alone_and_at_once(
    served: Served, upstream: Upstream
) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        upstream.gate.clear()  # whoever comes next is not answered before the last has come
        return web.json_response(completion(call, "half", finish="length"))

    upstream.answer = answer
    first = await in_flight(served, upstream)
    others = [asyncio.create_task(served.chat(question)) for question in ALIKE]
    await until(lambda: outcome(served, "waits-alike") == len(ALIKE))
    upstream.gate.set()
    assert (await first).text == "half"
    await until(lambda: len(upstream.calls) == 1 + len(ALIKE))
    upstream.answer = None
    upstream.gate.set()
    assert {answer.status for answer in await asyncio.gather(*others)} == {200}
    assert len(served.gateway.parts.space.inflight_questions) == 0


async def test_a_deadline_bounds_the_wait(served: Served, upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "SHARE_OF_BUDGET", 0.005)  # the wait is to end, and the call after it has its time
    first = await in_flight(served, upstream)
    hurried = asyncio.create_task(served.chat(ALIKE[0], headers={"x-latency-budget-ms": "200000"}))
    await until(lambda: len(upstream.calls) == 2)
    upstream.gate.set()
    assert (await hurried).status == (await first).status == 200
    assert outcome(served, "in-vain") == 1


async def test_whoever_leaves_leaves_nothing_behind(served: Served, upstream: Upstream) -> None:
    first = await in_flight(served, upstream)
    waiting = asyncio.create_task(served.chat(ALIKE[0]))
    await until(lambda: outcome(served, "waits-alike") == 1)
    waiting.cancel()
    first.cancel()
    await until(lambda: upstream.cancelled == 1)
    await until(lambda: len(served.gateway.parts.space.inflight_questions) == 0)
    await until(lambda: not served.gateway.parts.flights)
    upstream.gate.set()
    assert (await served.chat(ALIKE[0])).cache_status == "nearhit; fwd=miss; stored"


async def test_when_the_one_in_flight_is_given_up_who_waits_calls(served: Served, upstream: Upstream) -> None:
    first = await in_flight(served, upstream)
    waiting = asyncio.create_task(served.chat(ALIKE[0]))
    await until(lambda: outcome(served, "waits-alike") == 1)
    first.cancel()
    await until(lambda: len(upstream.calls) == 2)
    upstream.gate.set()
    assert (await waiting).cache_status == "nearhit; fwd=miss; stored"


async def test_questions_in_flight_are_bounded(
    served: Served, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inflight_questions, "MAX_IN_SCOPE", 1)
    first = await in_flight(served, upstream)
    unseen = asyncio.create_task(served.chat("which colour has the sky"))
    await until(lambda: len(upstream.calls) == 2)
    assert len(served.gateway.parts.space.inflight_questions) == 1
    also = asyncio.create_task(served.chat("which colour has the sky?"))
    await until(lambda: len(upstream.calls) == 3)
    upstream.gate.set()
    await asyncio.gather(first, unseen, also)
