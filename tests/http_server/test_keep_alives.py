"""Signs of life of a silent backend reach its clients, and streams that are silent get some of the gateway's own. None
of them is stored."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import openai
import pytest
from aiohttp import web

from tests.fixtures.anthropic_upstream import events_of, message
from tests.fixtures.gateways import EXACT_CACHE, NO_CACHE, Served, aboard, config_of, gateway_of
from tests.fixtures.upstream import Upstream, chunk, completion
from tests.fixtures.waiting import until

CALL: dict[str, Any] = {"model": "m"}
TEXT = [chunk(CALL, {"role": "assistant", "content": "it "}), chunk(CALL, {"content": "is"}), chunk(CALL, {}, "stop")]
DONE = b"data: [DONE]\n\n"
PROCESSING = b": OPENROUTER PROCESSING\n\n"


class Script:
    """An answer in pieces. Each waits for its `go`."""

    def __init__(self, upstream: Upstream, pieces: Sequence[bytes], content_type: str = "text/event-stream") -> None:
        self._go = asyncio.Semaphore(0)
        self._pieces = pieces
        self._content_type = content_type
        upstream.answer = self.answer

    def go(self, pieces: int = 1) -> None:
        for _ in range(pieces):
            self._go.release()

    async def answer(self, request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": self._content_type})
        await response.prepare(request)
        for piece in self._pieces:
            await self._go.acquire()
            await response.write(piece)
        return response


@asynccontextmanager
async def gateway_before(
    upstream: Upstream,
    data_dir: Path,
    *,
    adapter: str = "openai",
    policy: str = EXACT_CACHE,
    client: str = "own",
    silence: str = "15s",
    **timeouts: str,
) -> AsyncIterator[Served]:
    backend = {"adapter": adapter, "url": upstream.url, "client": client, "retries": {"attempts": 1}}
    backend |= {"timeouts": timeouts} if timeouts else {}
    config = config_of(data_dir, {"main": backend}, server={"stream_keep_alive": silence})
    async with gateway_of(config, policy) as served:
        yield served


def asked(path: str, **fields: Any) -> tuple[str, dict[str, Any], dict[str, str]]:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], **fields}
    return path, body, {"anthropic-version": "2023-06-01"} if path == MESSAGES else {}


CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


@asynccontextmanager
async def reading(served: Served, path: str, **headers: str) -> AsyncIterator[aiohttp.ClientResponse]:
    target, body, own = asked(path, stream=True)
    async with served.session.post(served.url + target, json=body, headers={**own, **headers}) as response:
        yield response


async def read_until(response: aiohttp.ClientResponse, wanted: bytes, times: int = 1) -> bytes:
    seen = b""
    while seen.count(wanted) < times:
        piece = await response.content.readany()
        assert piece, seen
        seen += piece
    return seen


COMMENTS = {
    "a-block": b": OPENROUTER PROCESSING\n\n",
    "a-line": b": keep-alive\n",
    "without-a-space": b":hb\n\n",
    "empty": b":\n\n",
    "with-carriage-returns": b": ping\r\n\r\n",
}


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("client", ["own", "aiohttp"])
@pytest.mark.parametrize("policy", [NO_CACHE, EXACT_CACHE], ids=["uncached", "cached"])
@pytest.mark.parametrize("comment", COMMENTS.values(), ids=COMMENTS)
async def test_a_comment_reaches_the_client_before_the_next_piece(
    upstream: Upstream, tmp_path: Path, path: str, client: str, policy: str, comment: bytes
) -> None:
    script = Script(upstream, [comment, TEXT[0], comment, *TEXT[1:], DONE])
    text = comment.splitlines()[0] + b"\n\n"
    async with gateway_before(upstream, tmp_path, client=client, policy=policy) as served:
        script.go()
        async with reading(served, path) as response:
            assert await read_until(response, text) == text
            script.go(2)
            await read_until(response, text)
            script.go(4)
            rest = await response.read()
            assert b"is" in rest
            assert text not in rest


@pytest.mark.parametrize("upgrade", [False, True], ids=["plain", "by-aiohttp"])
async def test_comments_are_for_those_who_wait_and_are_never_stored(
    upstream: Upstream, tmp_path: Path, upgrade: bool
) -> None:
    script = Script(upstream, [PROCESSING, PROCESSING + TEXT[0], *TEXT[1:], DONE])
    headers = {"Upgrade": "h2c", "Connection": "Upgrade"} if upgrade else {}
    async with gateway_before(upstream, tmp_path) as served:
        script.go()
        async with reading(served, CHAT, **headers) as early:
            await read_until(early, PROCESSING)
            async with reading(served, CHAT, **headers) as late:
                await read_until(late, PROCESSING)
                whole = asyncio.create_task(served.chat("hi", max_tokens=9))
                await until(lambda: aboard(served) == 3)
                script.go(4)
                bodies = [await early.read(), await late.read()]
        assert bodies == [PROCESSING + b"".join([*TEXT, DONE])] * 2
        assert (await whole).json["choices"][0]["message"]["content"] == "it is"
        hits = [await served.chat("hi", max_tokens=9, stream=stream) for stream in (True, False, True)]
    assert [hit.cache_status.split(";")[1] for hit in hits] == [" hit"] * 3
    assert hits[0].body == hits[2].body == b"".join([*TEXT, DONE])
    assert len(upstream.calls) == 1


async def test_a_comment_within_an_event_is_no_part_of_it(upstream: Upstream, tmp_path: Path) -> None:
    script = Script(upstream, [b": a\n", b"data: ", TEXT[0][6:-1] + b": b\n\n", *TEXT[1:], DONE])
    script.go(6)
    async with gateway_before(upstream, tmp_path) as served:
        assert (await served.chat("hi", stream=True)).body == b": a\n\n: b\n\n" + b"".join([*TEXT, DONE])
        assert (await served.chat("hi")).json["choices"][0]["message"]["content"] == "it is"


MESSAGE_EVENTS = [
    b"event: %b\ndata: %b\n\n" % (event["type"].encode(), json.dumps(event).encode())
    for event in events_of(message([{"type": "text", "text": "it is"}]))
]
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
OWN = {CHAT: b": keep-alive\n\n", MESSAGES: PING}


@pytest.mark.parametrize("upgrade", [False, True], ids=["plain", "by-aiohttp"])
@pytest.mark.parametrize("policy", [NO_CACHE, EXACT_CACHE], ids=["uncached", "cached"])
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("adapter", ["openai", "anthropic"])
async def test_a_silent_stream_gets_keep_alives_of_the_gateway(
    upstream: Upstream, tmp_path: Path, adapter: str, path: str, policy: str, upgrade: bool
) -> None:
    pieces = [*TEXT, DONE] if adapter == "openai" else MESSAGE_EVENTS
    script = Script(upstream, pieces)
    headers = {"Upgrade": "h2c", "Connection": "Upgrade"} if upgrade else {}
    async with gateway_before(upstream, tmp_path, adapter=adapter, policy=policy, silence="50ms") as served:
        script.go()
        async with reading(served, path, **headers) as response:
            seen = await read_until(response, OWN[path], 3)
            script.go(len(pieces))
            seen += await response.read()
            assert seen.replace(OWN[path], b"").count(b"\n\n") >= 4
        if policy is EXACT_CACHE:
            target, body, own = asked(path, stream=True)
            hit = await served.post(target, body, own)
            assert hit.cache_status.startswith("nearhit; hit")
            assert b": keep-alive" not in hit.body
            assert (hit.body.count(b"ping") > 0) == (adapter == "anthropic" and path == MESSAGES)


async def test_the_official_clients_read_over_keep_alives(upstream: Upstream, tmp_path: Path) -> None:
    script = Script(upstream, [*TEXT, DONE])
    async with gateway_before(upstream, tmp_path, policy=NO_CACHE, silence="20ms") as served:

        async def release() -> None:
            for _ in range(4):
                await asyncio.sleep(0.05)
                script.go()

        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="k", max_retries=0) as client:
            script.go()
            going = asyncio.create_task(release())
            stream = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            assert "".join([piece.choices[0].delta.content or "" async for piece in stream]) == "it is"
            await going
        async with anthropic.AsyncAnthropic(base_url=served.url, api_key="k", max_retries=0) as claude:
            going = asyncio.create_task(release())
            async with claude.messages.stream(
                model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
            ) as events:
                assert (await events.get_final_message()).content[0].text == "it is"
            await going


async def test_ping_events_of_an_openai_server_are_no_part_of_the_answer(upstream: Upstream, tmp_path: Path) -> None:
    ping = b'event: ping\ndata: {"type": "ping"}\n\n'
    script = Script(upstream, [ping, TEXT[0], ping, *TEXT[1:], DONE])
    script.go(6)
    async with gateway_before(upstream, tmp_path) as served:
        assert (await served.chat("hi", stream=True)).body.count(b'{"type": "ping"}') == 2
        whole = await served.chat("hi")
        assert whole.cache_status.startswith("nearhit; hit")
        assert "type" not in whole.json
        script.go(6)
        target, body, own = asked(MESSAGES, stream=True)
        stream = await served.post(target, body, own)
        assert b'"id":"msg_cmpl-1"' in stream.body.split(b"\n\n")[0]


@pytest.mark.parametrize("client", ["own", "aiohttp"])
async def test_blank_lines_before_a_whole_answer_are_no_silence(
    upstream: Upstream, tmp_path: Path, client: str
) -> None:
    """Their sum is longer than the limits for the first byte and for a silence."""
    body = json.dumps(completion({**CALL, "messages": []}, "it is")).encode()

    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for _ in range(12):
            await response.write(b"\n")
            await asyncio.sleep(0.1)
        await response.write(body)
        return response

    upstream.answer = answer
    limits = {"first_byte": "1s", "idle": "1s"}
    async with gateway_before(upstream, tmp_path, client=client, **limits) as served:
        miss, hit = [await served.chat("hi") for _ in range(2)]
        assert miss.json["choices"][0]["message"]["content"] == "it is"
        assert hit.cache_status.startswith("nearhit; hit")
        target, message_body, own = asked(MESSAGES)
        assert (await served.post(target, message_body, own)).json["content"][0]["text"] == "it is"


@pytest.mark.parametrize("upgrade", [False, True], ids=["plain", "by-aiohttp"])
@pytest.mark.parametrize("client", ["own", "aiohttp"])
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_a_stream_that_is_silent_from_its_head_on_gets_keep_alives(
    upstream: Upstream, tmp_path: Path, path: str, client: str, upgrade: bool
) -> None:
    script = Script(upstream, [*TEXT, DONE])
    headers = {"Upgrade": "h2c", "Connection": "Upgrade"} if upgrade else {}
    async with gateway_before(upstream, tmp_path, client=client, silence="50ms") as served:
        async with reading(served, path, **headers) as response:
            assert response.status == 200
            await read_until(response, OWN[path], 2)
            script.go(4)
            assert b"is" in await response.read()
        target, body, own = asked(path)
        assert (await served.post(target, body, own)).cache_status.startswith("nearhit; hit")


async def test_a_stream_that_is_silent_and_then_fails_ends_with_the_error(upstream: Upstream, tmp_path: Path) -> None:
    script = Script(upstream, [b'data: {"error": {"message": "overloaded", "code": 529}}\n\n'])
    async with gateway_before(upstream, tmp_path, silence="50ms") as served:
        for _ in range(2):
            async with reading(served, CHAT) as response:
                await read_until(response, OWN[CHAT])
                script.go()
                assert b"overloaded" in await response.read()
    assert len(upstream.calls) == 2


@pytest.mark.parametrize("client", ["own", "aiohttp"])
async def test_without_keep_alives_the_head_waits_for_the_first_event(
    upstream: Upstream, tmp_path: Path, client: str
) -> None:
    script = Script(upstream, [*TEXT, DONE])
    async with gateway_before(upstream, tmp_path, client=client, silence="0s") as served:
        stream = asyncio.create_task(served.chat("hi", stream=True))
        await upstream.arrived.wait()
        script.go(4)
        assert (await stream).body == b"".join([*TEXT, DONE])
