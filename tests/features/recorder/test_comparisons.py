"""The traffic log has what audits and shadows compared, for reports on other models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest
from aiohttp import web

from gateway.steps.traffic_log.format import RecordedComparison, decode_batch, encode_batch, frames
from gateway.steps.traffic_log.reader import TrafficLog, read_traffic
from tests.fixtures.gateways import Served
from tests.fixtures.several import behind, counted, policy_of
from tests.fixtures.upstream import Answer as Script
from tests.fixtures.upstream import completion
from tests.fixtures.waiting import until
from tests.routing.test_dispatch import EASY, answering
from tests.routing.test_routing_rules import saying

SHADOW = "backend: main, shadow: {backend: next, share: 100%}"
HERE, OTHER = "The river Danube flows through ten countries.", "Bring the eggs to room temperature before you start."


def billing(text: str, output: int) -> Script:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        usage = {"prompt_tokens": 7, "completion_tokens": output, "total_tokens": 7 + output}
        return web.json_response({**completion(call, text), "usage": usage})

    return answer


async def flushed(served: Served, tmp_path: Path) -> TrafficLog:
    await served.gateway.parts.recorder.flush()
    return read_traffic("last-1h", tmp_path / "traffic", served.gateway.parts.clock.wall())


async def test_an_audit_of_a_light_answer_is_in_the_log_with_the_tokens_of_both(tmp_path: Path) -> None:
    rule = policy_of("light: light, large: large, escalate_above: 1.0, audit: 100%", more="    record: on\n")
    async with behind(tmp_path, rule, "light", "large") as (served, upstreams):
        upstreams["light"].answer, upstreams["large"].answer = billing(HERE, 3), billing(OTHER, 8)
        await served.chat(EASY, model="m")
        await until(lambda: counted(served, "light_audits").get("different") == 1)
        log = await flushed(served, tmp_path)
    (found,), (row,) = log.comparisons, log.requests
    assert (found.route, found.model, found.source, found.label) == ("default", "m", "audit", "wrong")
    assert (found.reference, found.candidate, found.complexity) == ("large", "light", row.complexity)
    assert row.answer is not None
    assert found.candidate_tokens == (row.answer.input_tokens, row.answer.output_tokens) == (7, 3)
    assert found.reference_tokens == (7, 8)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_shadow_is_in_the_log_if_it_fails_too(tmp_path: Path, streamed: bool) -> None:
    """A model that fails on some requests would look better without them."""
    rule = policy_of(SHADOW, more="    record: on\n")
    async with behind(tmp_path, rule, "main", "next") as (served, upstreams):
        upstreams["main"].answer = upstreams["next"].answer = saying(HERE)
        await served.chat("The capital of France?", stream=streamed)
        await until(lambda: counted(served, "shadow").get("same") == 1)
        upstreams["next"].answer = answering(400)
        await served.chat("The capital of Spain?", stream=streamed)
        await until(lambda: counted(served, "shadow").get("error") == 1)
        first, second = (await flushed(served, tmp_path)).comparisons
    assert (first.source, first.reference, first.candidate, first.label) == ("shadow", "main", "next", "right")
    assert min(first.reference_tokens + first.candidate_tokens) > 0
    assert (second.label, second.candidate_tokens) == ("failed", (0, 0))
    assert second.reference_tokens[1] > 0


async def test_a_route_that_does_not_record_notes_no_comparison(tmp_path: Path) -> None:
    other = policy_of(SHADOW).removeprefix("version: 1\nroutes:\n").replace("default", "rest")
    both = policy_of(SHADOW, more="    record: on\n").replace("match: {}", "match: {model: kept}") + other
    async with behind(tmp_path, both.replace("default", "kept").replace("rest", "default"), "main", "next") as (
        served,
        _,
    ):
        await served.chat("The capital of France?", model="kept")
        await served.chat("The capital of France?", model="other")
        await until(lambda: sum(counted(served, "shadow").values()) == 2)
        assert [row.route for row in (await flushed(served, tmp_path)).comparisons] == ["kept"]


def test_rows_of_a_later_version_are_left_out() -> None:
    row = RecordedComparison(1.0, "r", "m", "audit", 0.5, "large", "light", "right", (3, 4), (3, 5))
    (payload,) = frames(encode_batch([row]))
    assert payload is not None
    rows = msgpack.unpackb(payload, use_list=False)
    assert [*decode_batch(msgpack.packb([(99, "anything"), *rows]))] == [row]
