"""A crowd that asks the same makes one call: over real sockets, before a scripted upstream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.cache import flight as flights
from tests.fixtures.gateways import EXACT_CACHE, Answer, Served, aboard, config_of, gateway_of
from tests.fixtures.upstream import Upstream, chunk, stream
from tests.fixtures.waiting import until

TEXT = "one two three four five six"


class Steps:
    """A stream that says one word each time it is told to."""

    def __init__(self, upstream: Upstream, text: str = TEXT) -> None:
        self._go = asyncio.Semaphore(0)
        self._text = text
        upstream.answer = self.answer

    def go(self, words: int = 1) -> None:
        for _ in range(words):
            self._go.release()

    def finish(self) -> None:
        self.go(100)

    async def answer(self, request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, call, self._text, between=self._step)

    async def _step(self) -> None:
        await self._go.acquire()


def words_of(answer: Answer) -> str:
    if not answer.headers["Content-Type"].startswith("text/event-stream"):
        return answer.text
    chunks = [json.loads(line[6:]) for line in answer.body.split(b"\n\n") if line.startswith(b"data: {")]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


async def crowd(served: Served, sizes: int, **fields: Any) -> list[asyncio.Task[Answer]]:
    """Asks so many times, every other time for a stream, and waits until all are on board."""
    before = aboard(served)
    tasks = [asyncio.create_task(served.chat("hi", stream=i % 2 == 0, **fields)) for i in range(sizes)]
    await until(lambda: aboard(served) == before + sizes)
    return tasks


async def test_identical_concurrent_requests_reach_the_backend_once(served: Served, upstream: Upstream) -> None:
    steps = Steps(upstream)
    tasks = await crowd(served, 100)
    steps.finish()
    answers = await asyncio.gather(*tasks)
    assert len(upstream.calls) == 1
    assert {words_of(answer) for answer in answers} == {TEXT}
    statuses = sorted(answer.cache_status for answer in answers)
    assert statuses == ["nearhit; fwd=miss"] + ["nearhit; fwd=miss; collapsed"] * 99
    assert (await served.gateway.parts.store.stats()).entries == 1
    assert served.gateway.parts.flights == {}


async def test_a_whole_answer_is_shared_by_streams_and_wholes(served: Served, upstream: Upstream) -> None:
    upstream.gate.clear()
    first = asyncio.create_task(served.chat("hi"))  # not a stream: what comes back is whole
    await until(lambda: aboard(served) == 1)
    tasks = [first, *await crowd(served, 20)]
    upstream.gate.set()
    answers = await asyncio.gather(*tasks)
    assert len(upstream.calls) == 1
    assert {words_of(answer) for answer in answers} == {"upstream answers: hi"}


async def test_who_comes_late_gets_the_past_and_the_live_tail(served: Served, upstream: Upstream) -> None:
    steps = Steps(upstream)
    url, body = f"{served.url}/v1/chat/completions", {"model": "m", "stream": True}
    asked = {**body, "messages": [{"role": "user", "content": "hi"}]}
    async with served.session.post(url, json=asked) as early:
        steps.go(3)
        seen = b""
        while b"three" not in seen:
            seen += await early.content.readany()
        async with served.session.post(url, json=asked) as late:
            assert late.headers["Cache-Status"] == "nearhit; fwd=miss; collapsed"
            caught_up = b""
            while b"three" not in caught_up:
                caught_up += await late.content.readany()
            assert caught_up == seen, "the past, while the rest is not yet said"
            steps.finish()
            assert (await late.content.read()) == (await early.content.read())
    assert len(upstream.calls) == 1


async def test_the_leader_may_leave_while_others_wait(served: Served, upstream: Upstream) -> None:
    steps = Steps(upstream)
    leader = asyncio.create_task(served.chat("hi", stream=True))
    await until(lambda: aboard(served) == 1)
    followers = await crowd(served, 4)
    leader.cancel()
    await until(lambda: aboard(served) == 4)
    steps.finish()
    assert {words_of(answer) for answer in await asyncio.gather(*followers)} == {TEXT}
    assert (len(upstream.calls), upstream.cancelled) == (1, 0)
    assert (await served.chat("hi")).cache_status.startswith("nearhit; hit")


@pytest.mark.parametrize("begun", [False, True], ids=["before-the-first-byte", "in-the-stream"])
async def test_the_last_one_that_leaves_cancels_the_call_upstream(
    served: Served, upstream: Upstream, begun: bool
) -> None:
    steps = Steps(upstream)
    if not begun:
        upstream.gate.clear()
    tasks = await crowd(served, 3)
    if begun:
        steps.go(2)
    await upstream.arrived.wait()
    for task in tasks:
        assert upstream.cancelled == 0
        task.cancel()
    await until(lambda: upstream.cancelled == 1)
    assert served.gateway.parts.flights == {}
    assert served.gateway.parts.pools["main"].inflight == 0


async def test_who_comes_after_a_cancelled_call_gets_one_of_their_own(served: Served, upstream: Upstream) -> None:
    upstream.gate.clear()
    task = asyncio.create_task(served.chat("hi"))
    await upstream.arrived.wait()
    task.cancel()
    again = asyncio.create_task(served.chat("hi"))  # at once: the first call may still be on its way out
    await until(lambda: len(upstream.calls) == 2)
    upstream.gate.set()
    assert (await again).text == "upstream answers: hi"


async def test_an_error_is_shared_but_neither_stored_nor_repeated(served: Served, upstream: Upstream) -> None:
    async def fail(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "busy"}}, status=500)

    upstream.answer = fail
    upstream.gate.clear()
    tasks = await crowd(served, 10)
    upstream.gate.set()
    answers = await asyncio.gather(*tasks)
    assert {(answer.status, answer.json["error"]["message"]) for answer in answers} == {(500, "busy")}
    assert len(upstream.calls) == 1
    upstream.answer = None
    assert (await served.chat("hi")).cache_status == "nearhit; fwd=miss; stored"
    assert len(upstream.calls) == 2


async def test_a_backend_that_cannot_be_reached_is_tried_once_for_all(served: Served, upstream: Upstream) -> None:
    async def drop(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    upstream.answer = drop
    upstream.gate.clear()
    tasks = await crowd(served, 10)
    upstream.gate.set()
    assert {answer.status for answer in await asyncio.gather(*tasks)} == {502}
    assert len(upstream.calls) == 2, "the one retry"


async def test_a_break_in_the_stream_reaches_everybody_as_an_error(served: Served, upstream: Upstream) -> None:
    async def cut(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, call, TEXT, cut=True)

    upstream.answer = cut
    upstream.gate.clear()
    tasks = await crowd(served, 10)
    upstream.gate.set()
    for i, answer in enumerate(await asyncio.gather(*tasks)):
        assert b"upstream_error" in answer.body
        assert answer.status == (200 if i % 2 == 0 else 502), "a stream has begun, a whole answer has not"
    assert (await served.gateway.parts.store.stats()).entries == 0


async def test_different_tenants_are_never_coalesced(served: Served, upstream: Upstream) -> None:
    upstream.gate.clear()
    headers = [{"Authorization": f"Bearer {tenant}"} for tenant in ("a", "b", "a", "b", "c")]
    tasks = [asyncio.create_task(served.chat("hi", headers=each)) for each in headers]
    await until(lambda: aboard(served) == 5)
    upstream.gate.set()
    await asyncio.gather(*tasks)
    assert sorted(call.headers["Authorization"][-1] for call in upstream.calls) == ["a", "b", "c"]


@pytest.mark.parametrize("directive", ["no-cache", "no-store"])
async def test_who_wants_a_fresh_answer_does_not_join_a_flight(
    served: Served, upstream: Upstream, directive: str
) -> None:
    upstream.gate.clear()
    shared = asyncio.create_task(served.chat("hi"))
    await until(lambda: len(upstream.calls) == 1)
    alone = asyncio.create_task(served.chat("hi", headers={"Cache-Control": directive}))
    await until(lambda: len(upstream.calls) == 2)
    upstream.gate.set()
    assert (await alone).cache_status.startswith("nearhit; fwd=bypass")
    await shared


async def test_answers_that_may_not_be_stored_do_not_line_up_their_crowd(served: Served, upstream: Upstream) -> None:
    """All of them are answered by the one call, not one after the other."""

    async def cut_short(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, call, TEXT, finish="length")

    upstream.answer = cut_short
    upstream.gate.clear()
    tasks = await crowd(served, 20)
    upstream.gate.set()
    assert {words_of(answer) for answer in await asyncio.gather(*tasks)} == {TEXT}
    assert len(upstream.calls) == 1


async def test_who_comes_when_the_beginning_is_gone_gets_a_call_of_its_own(
    served: Served, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half an answer must not pass for a whole one."""
    monkeypatch.setattr(flights, "MAX_BUFFER_BYTES", 300)
    steps = Steps(upstream)
    asked = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    async with served.session.post(f"{served.url}/v1/chat/completions", json=asked) as early:
        steps.go(5)
        seen = b""
        while b"five" not in seen:
            seen += await early.content.readany()
        (flight,) = served.gateway.parts.flights.values()
        await until(lambda: not flight.is_joinable)
        late = asyncio.create_task(served.chat("hi", stream=True))
        await until(lambda: len(upstream.calls) == 2)
        steps.finish()
        assert words_of(await late) == TEXT
        assert (seen + await early.content.read()).endswith(b"data: [DONE]\n\n")


async def test_a_client_that_does_not_read_is_dropped_and_the_others_are_served(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The buffer is bounded: beyond it a reader that takes nothing would hold up all others. Little is read ahead."""
    monkeypatch.setattr(flights, "MAX_BUFFER_BYTES", 64 * 1024)
    monkeypatch.setattr(flights, "MAX_STALL_S", 5.0)  # more than one that reads ever needs
    piece, count = "x" * 10_000, 3000  # 30 MB: more than the sockets on the way hold

    async def pour(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(count):
            await response.write(chunk(call, {"content": piece}))
        await response.write(chunk(call, {}, "stop") + b"data: [DONE]\n\n")
        return response

    upstream.answer = pour
    upstream.gate.clear()
    backends = {"main": {"adapter": "openai", "url": upstream.url}}
    config = config_of(tmp_path, backends, server={"max_unread": "4MiB"})
    async with gateway_of(config, EXACT_CACHE) as served:
        asked = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        url = f"{served.url}/v1/chat/completions"

        def post() -> Awaitable[aiohttp.ClientResponse]:
            return served.session.post(url, json=asked, read_bufsize=2**14)

        opening = [asyncio.ensure_future(post())]
        await until(lambda: aboard(served) == 1)  # the first one stalls: where all are equally far, it is the slowest
        opening += [asyncio.ensure_future(post()) for _ in range(2)]
        await until(lambda: aboard(served) == 3)
        upstream.gate.set()
        stalled, *lively = await asyncio.gather(*opening)
        received = await asyncio.gather(*(each.content.read() for each in lively))
        assert [len(body) > count * len(piece) for body in received] == [True, True]
        assert all(body.endswith(b"data: [DONE]\n\n") for body in received)
        late = await stalled.content.read()
        assert b"upstream_error" in late
        assert len(late) < len(received[0])
        assert len(upstream.calls) == 1
