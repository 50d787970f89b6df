"""The exact cache, from the client's side of a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import StartupError
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import Answer, Served, config_of, gateway_of
from tests.fixtures.processes import served_by_process, write_config
from tests.fixtures.upstream import Upstream

EXACT = """
version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}, semantic: off}
    route: {backend: main}
"""
HIT = "nearhit; hit; detail=exact"


def main_of(upstream: Upstream) -> dict[str, Any]:
    return {"main": {"adapter": "openai", "url": upstream.url}}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def exact(upstream: Upstream, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Served]:
    async with gateway_of(config_of(tmp_path, main_of(upstream)), EXACT, clock=clock) as served:
        yield served


def is_hit(answer: Answer) -> bool:
    return answer.cache_status.startswith(HIT)


async def test_the_same_request_is_answered_from_the_cache(exact: Served, upstream: Upstream) -> None:
    first = await exact.chat("what is nearhit?")
    assert first.cache_status == "nearhit; fwd=miss; stored"
    for _ in range(3):  # the second hit and those after it take the fast path
        again = await exact.chat("what is nearhit?")
        assert is_hit(again)
        assert again.body == first.body
        assert again.headers["Age"] == "0"
        assert again.headers["Content-Type"] == first.headers["Content-Type"]
        assert "x-nearhit-backend" not in again.headers
    assert len(upstream.calls) == 1


async def test_every_answer_has_a_request_id_of_its_own(exact: Served) -> None:
    ids = {(await exact.chat("hi")).headers["x-request-id"] for _ in range(4)}
    assert len(ids) == 4
    given = await exact.chat("hi", headers={"x-request-id": "mine-1"})
    assert given.headers["x-request-id"] == "mine-1"


async def test_requests_that_differ_in_the_query_string_share_nothing(exact: Served, upstream: Upstream) -> None:
    """A backend may read a version or a credential from it."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    for key in ("alice", "bob", "alice", "bob"):
        answer = await exact.post(f"/v1/chat/completions?key={key}", body)
        assert answer.status == 200
    assert is_hit(answer)
    assert len(upstream.calls) == 2
    assert not is_hit(await exact.post("/v1/chat/completions", body))


async def test_a_stream_and_a_whole_answer_share_one_entry(exact: Served, upstream: Upstream) -> None:
    streamed = await exact.chat("a b c d e f g h i j", stream=True, stream_options={"include_usage": True})
    whole = await exact.chat("a b c d e f g h i j")
    assert is_hit(whole)
    assert whole.text == "upstream answers: a b c d e f g h i j"
    assert whole.json["usage"]["completion_tokens"] == 5
    again = await exact.chat("a b c d e f g h i j", stream=True, stream_options={"include_usage": True})
    assert is_hit(again)
    assert again.body == streamed.body
    assert len(upstream.calls) == 1


async def test_a_whole_answer_is_replayed_as_a_stream(exact: Served, upstream: Upstream) -> None:
    whole = await exact.chat("one two three")
    streamed = await exact.chat("one two three", stream=True)
    assert is_hit(streamed)
    assert streamed.headers["Content-Type"].startswith("text/event-stream")
    assert streamed.body.endswith(b"data: [DONE]\n\n")
    assert b'"usage"' not in streamed.body  # nobody asked for it
    assert whole.text.split()[-1].encode() in streamed.body
    assert len(upstream.calls) == 1


async def test_field_order_and_bookkeeping_do_not_matter(exact: Served, upstream: Upstream) -> None:
    message = {"role": "user", "content": "hi"}
    await exact.post("/v1/chat/completions", {"model": "m", "temperature": 0, "messages": [message]})
    same: list[dict[str, Any]] = [
        {"messages": [{"content": "hi", "role": "user"}], "temperature": 0, "model": "m"},
        {"model": "m", "temperature": 0, "messages": [message], "user": "ann"},
        {"model": "m", "temperature": 0, "messages": [message], "metadata": {"trace": "1"}},
        {"model": "m", "temperature": 0, "messages": [message], "stream": False, "store": False},
    ]
    for body in same:
        assert is_hit(await exact.post("/v1/chat/completions", body)), body
    spelt = b' {"messages":[{"role":"user","content":"\\u0068i"}], "temperature":0,"model":"m"}'
    assert is_hit(await exact.post("/v1/chat/completions", spelt))
    assert len(upstream.calls) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"model": "n"},
        {"temperature": 0.7},
        {"top_p": 0.5},
        {"seed": 7},
        {"max_tokens": 9},
        {"max_completion_tokens": 9},
        {"n": 2},
        {"stop": ["x"]},
        {"response_format": {"type": "json_object"}},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"tool_choice": "required"},
        {"reasoning_effort": "high"},
        {"logprobs": True},
        {"x_unknown_field": None},
        {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]},
        {"messages": [{"role": "user", "content": "hi "}]},
        {"messages": [{"role": "user", "content": "Hi"}]},
        {"messages": [{"role": "user", "content": "hi", "name": "ann"}]},
        {"messages": [{"role": "assistant", "content": "hi"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image_url"}]}]},
    ],
    ids=str,
)
async def test_every_field_that_decides_the_answer_is_part_of_the_key(exact: Served, change: dict[str, Any]) -> None:
    await exact.chat("hi")
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **change}
    changed = await exact.post("/v1/chat/completions", body)
    assert changed.cache_status == "nearhit; fwd=miss; stored"
    assert is_hit(await exact.chat("hi"))


async def test_operations_do_not_share_an_entry(exact: Served, upstream: Upstream) -> None:
    body = {"model": "m", "input": "hi", "prompt": "hi"}
    assert (await exact.post("/v1/completions", body)).cache_status == "nearhit; fwd=miss; stored"
    assert (await exact.post("/v1/embeddings", body)).cache_status == "nearhit; fwd=miss; stored"
    assert is_hit(await exact.post("/v1/embeddings", body))
    assert is_hit(await exact.post("/v1/completions", body))


async def test_an_answer_lives_as_long_as_its_ttl(exact: Served, upstream: Upstream, clock: FakeClock) -> None:
    await exact.chat("hi")
    for _ in range(2):
        clock.advance(1799)
        assert is_hit(hit := await exact.chat("hi"))
    assert hit.headers["Age"] == "3598"
    assert hit.cache_status == f"{HIT}; ttl=2"
    clock.advance(2)
    assert (await exact.chat("hi")).cache_status == "nearhit; fwd=miss; stored"
    assert is_hit(await exact.chat("hi"))
    assert len(upstream.calls) == 2


async def test_a_clock_set_back_makes_no_answer_immortal(exact: Served, upstream: Upstream, clock: FakeClock) -> None:
    await exact.chat("hi")
    await exact.chat("hi")
    await exact.chat("hi")
    clock.set_wall(clock.wall() - 3600)
    assert (await exact.chat("hi")).cache_status == "nearhit; fwd=miss; stored"
    assert is_hit(await exact.chat("hi"))
    clock.advance(3601)
    assert not is_hit(await exact.chat("hi"))


async def test_no_store_neither_asks_the_cache_nor_fills_it(exact: Served, upstream: Upstream) -> None:
    for _ in range(2):
        answer = await exact.chat("hi", headers={"Cache-Control": "no-store"})
        assert answer.cache_status == "nearhit; fwd=bypass; detail=no-store"
    assert len(upstream.calls) == 2
    assert (await exact.chat("hi")).cache_status == "nearhit; fwd=miss; stored"


async def test_no_cache_fetches_anew_and_replaces_what_was_stored(exact: Served, upstream: Upstream) -> None:
    upstream.name = "old"
    await exact.chat("hi")
    upstream.name = "new"
    fresh = await exact.chat("hi", headers={"Cache-Control": "no-cache"})
    assert fresh.cache_status == "nearhit; fwd=bypass; detail=no-cache; stored"
    again = await exact.chat("hi")
    assert is_hit(again)
    assert again.text == "new answers: hi"


async def test_max_age_asks_for_something_younger(exact: Served, upstream: Upstream, clock: FakeClock) -> None:
    await exact.chat("hi")
    await exact.chat("hi")
    clock.advance(60)
    assert is_hit(await exact.chat("hi", headers={"Cache-Control": "max-age=61"}))
    assert not is_hit(await exact.chat("hi", headers={"Cache-Control": "max-age=60"}))
    assert is_hit(await exact.chat("hi", headers={"Cache-Control": "max-age=60"}))
    assert not is_hit(await exact.chat("hi", headers={"Cache-Control": "max-age=0"}))


async def test_only_if_cached_never_calls_the_backend(exact: Served, upstream: Upstream) -> None:
    """RFC 9111 section 5.2.1.7: 504 where nothing stored can be used."""
    headers = {"Cache-Control": "only-if-cached"}
    absent = await exact.chat("hi", headers=headers)
    assert absent.status == 504
    assert absent.json["error"]["type"] == "not_cached"
    assert upstream.calls == []
    await exact.chat("hi")
    assert is_hit(await exact.chat("hi", headers=headers))
    assert len(upstream.calls) == 1


async def test_answers_survive_a_restart_of_gateway_and_store(upstream: Upstream, tmp_path: Path) -> None:
    config = config_of(tmp_path, main_of(upstream))
    async with gateway_of(config, EXACT) as served:
        first = await served.chat("hi")
    async with gateway_of(config, EXACT) as served:
        again = await served.chat("hi")
        assert is_hit(again)
        assert again.body == first.body
    assert len(upstream.calls) == 1


async def test_answers_survive_kill_9_of_the_gateway(upstream: Upstream, tmp_path: Path) -> None:
    """Also when the next gateway starts while the killed one's store has not ended yet."""
    config = write_config(tmp_path, main_of(upstream), EXACT)
    bodies = set()
    for i in range(3):
        async with served_by_process(config) as served:
            await served.recovered()
            answer = await served.chat("hi")
            assert is_hit(answer) == (i > 0), answer.cache_status
            bodies.add(answer.body)
            await served.kill()
    assert len(bodies) == len(upstream.calls) == 1


async def test_a_second_gateway_on_the_same_data_is_refused(upstream: Upstream, tmp_path: Path) -> None:
    config = config_of(tmp_path, main_of(upstream))
    async with gateway_of(config, EXACT) as served:
        await served.chat("hi")
        with pytest.raises(StartupError, match="another gateway uses the data directory"):
            async with gateway_of(config, EXACT):
                pass
        assert is_hit(await served.chat("hi"))
