"""Reports about gateways, rebuilt: bodies, framing and streams between a backend and a client."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web

from tests.fixtures.anthropic_upstream import events_of, message
from tests.fixtures.gateways import BOTH_CACHES, NO_CACHE, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream, chunk, completion
from tests.fixtures.wire import Message, Wire, connected, wire_upstream
from tests.http_server.conftest import openai_client
from tests.wires.test_reports_gateways_usage import ASK, CLAUDE, events_in

TEXT_EVENTS = {"Content-Type": "text/event-stream"}


async def test_a_reset_in_a_stream_of_responses_ends_it_with_an_event_that_clients_know(
    served: Served, upstream: Upstream
) -> None:
    """QuantumNous/new-api #7059: a 200 stream just ends, and clients of the Responses API wait for an end."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers=TEXT_EVENTS)
        await response.prepare(request)
        begun = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "output": []}
        for at, kind in enumerate(("response.created", "response.in_progress")):
            event = {"type": kind, "sequence_number": at, "response": {**begun, "status": "in_progress"}}
            await response.write(b"event: %s\ndata: %s\n\n" % (kind.encode(), json.dumps(event).encode()))
        assert request.transport is not None
        request.transport.abort()
        return response

    upstream.answer = answer
    raw = await served.post("/v1/responses", {"model": "m", "input": "Tell me", "stream": True})
    assert [event["type"] for event in events_in(raw.body)] == ["response.created", "response.in_progress", "error"]
    async with openai_client(served) as client:
        with pytest.raises(openai.APIError, match="main"):
            async for _ in await client.responses.create(model="m", input="Tell me", stream=True):
                pass


@pytest.mark.parametrize("policy", [BOTH_CACHES, NO_CACHE], ids=["cached", "not cached"])
@pytest.mark.parametrize("coding", ["gzip", "identity"])
async def test_an_answer_has_one_framing(upstream: Upstream, tmp_path: Path, policy: str, coding: str) -> None:
    """Portkey-AI/gateway #1305: the length of the compressed body beside `Transfer-Encoding`; nginx refuses it."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        body = json.dumps(completion(call, "It is in the shed.")).encode()
        body = gzip.compress(body) if coding == "gzip" else body
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Encoding": coding})
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(body[:20])
        await response.write(body[20:])
        return response

    upstream.answer = answer
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Where?"}]}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
    head += b"Accept-Encoding: gzip, deflate\r\nContent-Length: %d\r\n\r\n" % len(body)
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, policy) as served, connected(served.url) as wire:
        for _ in range(3):  # a miss, and twice a hit if there are caches
            await wire.send(head + body)
            reply = await wire.message()
            assert reply.status == 200
            assert len(reply.all("content-length")) + len(reply.all("transfer-encoding")) == 1
            packed = reply.all("content-encoding") == ["gzip"]
            text = json.loads(gzip.decompress(reply.body) if packed else reply.body)
            assert text["choices"][0]["message"]["content"] == "It is in the shed."


@pytest.mark.parametrize("policy", [BOTH_CACHES, NO_CACHE], ids=["cached", "not cached"])
@pytest.mark.parametrize("stream_format", ["audio", "sse"])
async def test_spoken_answers_arrive_as_they_are_with_their_own_type(
    upstream: Upstream, tmp_path: Path, policy: str, stream_format: str
) -> None:
    """vllm-project/production-stack #880: sound was labelled as events, and its bytes were decoded as text."""
    sound = bytes(range(256)) * 8 + b"\n\ndata: \xff\xfe\n\n"
    more = asyncio.Event()

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "audio/mpeg"})
        await response.prepare(request)
        await response.write(sound[:100])
        await more.wait()
        await response.write(sound[100:])
        return response

    upstream.answer = answer
    async with gateway_of(config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}), policy) as served:
        ask = {"model": "tts", "input": "Hello", "voice": "alloy", "stream_format": stream_format}
        async with served.session.post(f"{served.url}/v1/audio/speech", json=ask) as response:
            assert response.headers["Content-Type"] == "audio/mpeg"
            assert await response.content.readexactly(100) == sound[:100]  # while the rest is still to come
            more.set()
            assert await response.content.read() == sound[100:]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_refusal_that_is_translated_has_its_own_length(
    served: Served, upstream: Upstream, streamed: bool
) -> None:
    """sgl-project/sglang #27523: the length of the backend's error stays with the longer one that is made of it."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no such effort: é"}}, status=400)

    upstream.answer = answer
    body = json.dumps({**ASK, "stream": streamed}).encode()
    head = b"POST /v1/messages HTTP/1.1\r\nHost: gateway\r\nx-api-key: k\r\nContent-Type: application/json\r\n"
    head += b"Content-Length: %d\r\n\r\n" % len(body)
    async with connected(served.url) as wire:
        for _ in range(2):  # and the connection goes on
            await wire.send(head + body)
            reply = await wire.message()
            assert (reply.status, len(reply.all("content-length"))) == (400, 1)
            assert json.loads(reply.body)["error"]["message"] == "no such effort: é"


async def test_without_tools_no_choice_of_a_tool_is_sent(served: Served, upstream: Upstream) -> None:
    """apache/apisix #13583: OpenAI refuses `tool_choice` and `parallel_tool_calls` without `tools`."""
    for tools in ({}, {"tools": []}):
        choice = {"type": "auto", "disable_parallel_tool_use": True}
        answer = await served.post("/v1/messages", {**ASK, **tools, "tool_choice": choice}, CLAUDE)
        assert answer.status == 200
    for call in upstream.calls:
        assert call.json.keys().isdisjoint(("tools", "tool_choice", "parallel_tool_calls"))


@pytest.mark.parametrize("begun", [True, False])
async def test_a_translated_stream_that_says_nothing_ends(served: Served, upstream: Upstream, begun: bool) -> None:
    """apache/apisix #13583, too: `[DONE]` before any content, and the client waits for `message_stop`."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        first = chunk(call, {"role": "assistant"}) if begun else b""
        return web.Response(body=first + b"data: [DONE]\n\n", headers=TEXT_EVENTS)

    upstream.answer = answer
    raw = await served.post("/v1/messages", {**ASK, "stream": True}, CLAUDE)
    if raw.status == 200:
        assert events_in(raw.body)[-1]["type"] in ("message_stop", "error")
    else:
        assert raw.json["type"] == "error"


async def test_a_kept_connection_that_the_backend_closes_costs_no_answer(tmp_path: Path) -> None:
    """maximhq/bifrost #1305: the second message in quick succession fails, for its connection was being closed."""
    body = json.dumps(completion({"model": "m"}, "Here.")).encode()
    reply = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    answered: set[Wire] = set()

    async def script(wire: Wire, _: Message) -> None:
        if wire in answered:
            raise ConnectionError  # it is closed without a word, at its second request
        answered.add(wire)
        await wire.send(reply)

    async with wire_upstream() as upstream:
        upstream.script = script
        config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
        async with gateway_of(config, NO_CACHE) as served:
            for _ in range(3):
                assert (await served.chat("Where?")).text == "Here."


@pytest.mark.parametrize("end", [b"data: [DONE]\n", b"data: [DONE]", b"data: [DONE]\r\n"])
async def test_the_last_event_ends_with_a_blank_line(served: Served, upstream: Upstream, end: bytes) -> None:
    """Kong/kong #14500 and #12903: a last event without its blank line, and a line break within a piece of text."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        parts = [chunk(call, {"role": "assistant", "content": "one\r\ntwo\n\nthree"}), chunk(call, {}, "stop"), end]
        return web.Response(body=b"".join(parts), headers=TEXT_EVENTS)

    upstream.answer = answer
    for _ in range(2):  # as it comes, and from the cache
        raw = await served.chat("Say it", stream=True)
        assert raw.body.endswith(b"\n\ndata: [DONE]\n\n")
        assert events_in(raw.body)[0]["choices"][0]["delta"]["content"] == "one\r\ntwo\n\nthree"
    assert raw.cache_status.startswith("nearhit; hit")


@pytest.mark.parametrize("line", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [1, 7])
async def test_events_cut_anywhere_are_translated_whole(
    upstream: Upstream, tmp_path: Path, line: bytes, size: int
) -> None:
    """higress-group/higress #4616: pieces of a body were taken for whole lines, and `message_start` was lost."""
    text = "Die Leiter steht im Schüppchen 梯子"
    whole = message([{"type": "text", "text": text}])
    frames = [b"event: %s\ndata: %s\n\n" % (e["type"].encode(), json.dumps(e, ensure_ascii=False).encode())
              for e in events_of(whole)]  # fmt: skip
    stream = b"".join(frames).replace(b"\n", line).rstrip(line)  # the last event lacks its end

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers=TEXT_EVENTS)
        await response.prepare(request)
        for at in range(0, len(stream), size):
            await response.write(stream[at : at + size])
        return response

    upstream.answer = answer
    config = config_of(tmp_path, {"main": {"adapter": "anthropic", "url": upstream.url}})
    async with gateway_of(config, BOTH_CACHES) as served:
        raw = await served.chat("Wo?", stream=True, stream_options={"include_usage": True})
        again = await served.chat("Wo?")
    said = events_in(raw.body)
    assert "".join(e["choices"][0]["delta"].get("content") or "" for e in said if e["choices"]) == text == again.text
    assert said[-1]["usage"]["prompt_tokens"] == 7
    assert raw.body.endswith(b"data: [DONE]\n\n")
    assert len(upstream.calls) == 1


@pytest.mark.parametrize("streamed", [False, True])
async def test_stop_sequences_go_to_the_other_protocol(served: Served, upstream: Upstream, streamed: bool) -> None:
    """BerriAI/litellm #37118: `/v1/messages` drops them, and the model goes on."""
    await served.post("/v1/messages", {**ASK, "stop_sequences": ["HALT", "\n\n"], "stream": streamed}, CLAUDE)
    assert upstream.calls[0].json["stop"] == ["HALT", "\n\n"]


@pytest.mark.parametrize("policy", [BOTH_CACHES, NO_CACHE], ids=["cached", "not cached"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_what_came_before_a_break_in_the_same_packet_reaches_the_client(
    tmp_path: Path, policy: str, path: str
) -> None:
    """api7/aisix #177: two events and the end of the connection at once; the client got a 502 and neither event."""
    events = chunk({"model": "m"}, {"role": "assistant"}) + chunk({"model": "m"}, {"content": "partial"})
    async with wire_upstream() as upstream:

        async def script(wire: Wire, _: Message) -> None:
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            await wire.send(head + b"%x\r\n%s\r\n" % (len(events), events))
            raise ConnectionError

        upstream.script = script
        config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
        async with gateway_of(config, policy) as served:
            raw = await served.post(path, {**ASK, "stream": True}, CLAUDE if path == "/v1/messages" else None)
    assert raw.status == 200
    assert b"partial" in raw.body
    assert "error" in events_in(raw.body)[-1]
    assert b"[DONE]" not in raw.body
    assert len(upstream.requests) == 1
