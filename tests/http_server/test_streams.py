"""Streams: relayed as they come, never retried once begun, and never ended as if they were whole when they are not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web

from tests.fixtures.gateways import TIERS, Served, aboard, config_of, gateway_of
from tests.fixtures.upstream import Upstream, chunk, completion, frame, stream
from tests.fixtures.waiting import until

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Tell me a long story"}]}
# An event in the wire form that the gateway makes of an error; the rest of it is the message.
ERROR_EVENT = b'data: {"error":{"message":'
LATE, SILENT = {"first_byte": "1s"}, {"idle": "300ms"}
TEXT_EVENTS = {"Content-Type": "text/event-stream"}


@pytest.fixture
async def impatient(upstream: Upstream, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    """With the time limits that a test names, and no others."""
    backend = {"adapter": "openai", "url": upstream.url, "timeouts": request.param}
    async with gateway_of(config_of(tmp_path, {"main": backend})) as gateway:
        yield gateway


@pytest.fixture
async def impatient_tiers(light: Upstream, large: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    """Simple questions go to `light`, which has little time, and to `large` where that fails."""
    backends = {
        "light": {"adapter": "openai", "url": light.url, "timeouts": LATE},
        "large": {"adapter": "openai", "url": large.url},
    }
    async with gateway_of(config_of(tmp_path, backends), TIERS) as gateway:
        yield gateway


async def stored(served: Served) -> int:
    return (await served.gateway.parts.store.stats()).entries


def inflight(served: Served) -> int:
    return sum(pool.inflight for pool in served.gateway.parts.pools.values())


def breaking(upstream: Upstream, **how: Any) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, call, "Once upon a time there was", **how)

    upstream.answer = answer


async def test_a_stream_that_breaks_raises_the_sdks_own_error(
    client: openai.AsyncOpenAI, served: Served, upstream: Upstream
) -> None:
    breaking(upstream, cut=True)
    text = ""
    with pytest.raises(openai.APIError, match="main"):
        async for part in await client.chat.completions.create(**ASK, stream=True):
            text += part.choices[0].delta.content or ""
    assert text.startswith("Once upon")
    assert await stored(served) == 0


async def test_a_stream_that_breaks_ends_with_an_error_event_and_no_end_marker(
    served: Served, upstream: Upstream
) -> None:
    breaking(upstream, cut=True)
    answer = await served.chat("story", stream=True)
    *_, last, nothing = answer.body.split(b"\n\n")
    assert answer.status == 200
    assert last.startswith(ERROR_EVENT)
    assert nothing == b""
    assert b"[DONE]" not in answer.body


async def test_nothing_is_retried_after_the_first_byte(tiered: Served, light: Upstream, large: Upstream) -> None:
    breaking(light, cut=True)
    answer = await tiered.chat("hi", stream=True)
    assert ERROR_EVENT in answer.body
    assert (len(light.chats), len(large.chats)) == (1, 0)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_break_before_the_first_byte_is_another_backends_chance(
    tiered: Served, light: Upstream, large: Upstream, streamed: bool
) -> None:
    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    light.answer = answer
    answered = await tiered.chat("hi", stream=streamed)
    assert answered.status == 200
    assert answered.headers["x-nearhit-backend"] == "large"
    assert b"large" in answered.body


async def test_a_whole_answer_that_breaks_is_another_backends_chance_too(tiered: Served, light: Upstream) -> None:
    """Nothing of it has gone to the client yet."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"id": ')
        assert request.transport is not None
        request.transport.close()
        return response

    light.answer = answer
    assert (await tiered.chat("hi")).text == "large answers: hi"


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_that_breaks_off_is_no_answer_to_who_waits_for_the_whole(
    served: Served, upstream: Upstream, streamed: bool
) -> None:
    """Two clients share a stream that ends too early: the one gets an error event, the other an error status."""
    upstream.gate.clear()
    breaking(upstream, cut=True)
    leader = asyncio.create_task(served.chat("story", stream=True))
    await until(upstream.arrived.is_set)
    follower = asyncio.create_task(served.chat("story", stream=streamed))
    await joined(served, 2)
    upstream.gate.set()
    assert ERROR_EVENT in (await leader).body
    answer = await follower
    assert (answer.status, ERROR_EVENT in answer.body) == ((200, True) if streamed else (502, False))
    assert len(upstream.chats) == 1


async def joined(served: Served, clients: int) -> None:
    """Returns once so many clients wait for the one flight in the air."""
    await until(lambda: aboard(served) >= clients)


@pytest.mark.parametrize("ending", [b"", b"data: {half a chunk", b"data: {half a chunk\n\ndata: [DONE]\n\n"])
async def test_half_a_stream_never_becomes_a_whole_answer(served: Served, upstream: Upstream, ending: bytes) -> None:
    """A connection that ends cleanly says nothing of the answer: without its end marker it is cut."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers=TEXT_EVENTS)
        await response.prepare(request)
        await response.write(chunk(call, {"role": "assistant", "content": "half"}) + ending)
        return response

    upstream.answer = answer
    assert (await served.chat("hi")).status == 502  # this upstream streams whatever it is asked for
    assert (await served.chat("hi", stream=True)).status == 200
    assert await stored(served) == 0


@pytest.mark.parametrize("body", [b"<html>busy</html>", b"[]", b'{"choices": 1}', b'{"choices": [1]}', b"", b"null"])
async def test_an_answer_that_is_no_answer_is_never_an_internal_error(
    served: Served, upstream: Upstream, body: bytes
) -> None:
    async def answer(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.Response(body=body, content_type="application/json")

    upstream.answer = answer
    assert (await served.chat("hi")).body == body  # relayed, as nothing had to be made of it
    assert (await served.chat("hi", stream=True)).status == 502
    assert await stored(served) == 0


async def test_an_error_in_a_stream_is_passed_on_and_not_stored(
    client: openai.AsyncOpenAI, served: Served, upstream: Upstream
) -> None:
    """Some servers say it in an event and end as if nothing were."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers=TEXT_EVENTS)
        await response.prepare(request)
        await response.write(chunk(call, {"role": "assistant", "content": "half"}))
        await response.write(frame({"error": {"message": "out of memory", "type": "server_error"}}))
        await response.write(b"data: [DONE]\n\n")
        return response

    upstream.answer = answer
    with pytest.raises(openai.APIError, match="out of memory"):
        async for _ in await client.chat.completions.create(**ASK, stream=True):
            pass
    assert (await served.chat("hi")).status == 502
    assert await stored(served) == 0


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_leaves_before_the_answer_cancels_the_call(
    served: Served, upstream: Upstream, streamed: bool
) -> None:
    upstream.gate.clear()
    request = asyncio.create_task(served.chat("story", stream=streamed))
    await until(upstream.arrived.is_set)
    assert inflight(served) == 1
    request.cancel()
    await until(upstream.left.is_set)
    assert (inflight(served), upstream.cancelled) == (0, 1)


async def test_a_client_that_leaves_in_mid_stream_cancels_the_call(served: Served, upstream: Upstream) -> None:
    breaking(upstream, between=asyncio.Event().wait)
    async with served.session.post(served.url + "/v1/chat/completions", json={**ASK, "stream": True}) as response:
        await response.content.readany()
        assert inflight(served) == 1
        response.close()
        await until(upstream.left.is_set)
    assert (inflight(served), upstream.cancelled) == (0, 1)
    assert await stored(served) == 0


async def test_one_of_two_clients_may_leave_without_harm_to_the_other(served: Served, upstream: Upstream) -> None:
    go_on = asyncio.Event()
    breaking(upstream, between=go_on.wait)
    async with served.session.post(served.url + "/v1/chat/completions", json={**ASK, "stream": True}) as first:
        await first.content.readany()
        other = asyncio.create_task(served.post("/v1/chat/completions", {**ASK, "stream": True}))
        await joined(served, 2)
        first.close()
    go_on.set()
    assert (await other).body.endswith(b"data: [DONE]\n\n")
    assert upstream.cancelled == 0


@pytest.mark.parametrize("impatient", [LATE], indirect=True, ids=["late"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_slow_first_byte_is_a_gateway_timeout(impatient: Served, upstream: Upstream, streamed: bool) -> None:
    upstream.gate.clear()
    answer = await impatient.chat("hi", stream=streamed)
    assert (answer.status, answer.json["error"]["type"]) == (504, "upstream_error")
    # On a busy machine the time may be over before the call is there.
    await until(lambda: upstream.cancelled == len(upstream.calls))
    assert inflight(impatient) == 0


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_slow_first_byte_is_another_backends_chance(
    impatient_tiers: Served, light: Upstream, streamed: bool
) -> None:
    light.gate.clear()
    answer = await impatient_tiers.chat("hi", stream=streamed)
    assert answer.headers["x-nearhit-backend"] == "large"
    assert b"large" in answer.body


@pytest.mark.parametrize("impatient", [SILENT], indirect=True, ids=["silent"])
async def test_a_stream_that_falls_silent_ends_with_an_error_event(impatient: Served, upstream: Upstream) -> None:
    breaking(upstream, between=asyncio.Event().wait)
    answer = await impatient.chat("hi", stream=True)
    assert answer.body.rstrip().split(b"\n\n")[-1].startswith(ERROR_EVENT)
    await until(upstream.left.is_set)
    assert (inflight(impatient), await stored(impatient)) == (0, 0)


async def test_a_stored_stream_is_replayed_in_one_burst(served: Served, upstream: Upstream) -> None:
    answer = await served.chat("story", stream=True)
    again = await served.chat("story", stream=True)
    assert again.body == answer.body
    assert len(upstream.chats) == 1


async def test_a_whole_answer_is_a_stream_to_who_asked_for_one(served: Served, upstream: Upstream) -> None:
    """Of a backend that does not stream, or of an entry that was stored whole."""

    async def answer(_: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(completion(call, "all at once"))

    upstream.answer = answer
    streamed = await served.chat("hi", stream=True)
    assert streamed.headers["Content-Type"].startswith("text/event-stream")
    assert b"".join(streamed.body.split()).count(b"[DONE]") == 1
