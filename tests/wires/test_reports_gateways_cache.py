"""Reports about gateways, rebuilt: what their caches lose, confuse or keep too long."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.fixtures.gateways import BOTH_CACHES, LOOSE, Served, config_of, gateway_of
from tests.fixtures.responses import answering, text_item
from tests.fixtures.upstream import Upstream, chunk, completion, frame
from tests.fixtures.wire import connected, wire_upstream
from tests.wires.test_reports_gateways_usage import events_in

TEXT_EVENTS = {"Content-Type": "text/event-stream"}


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("stored_by", ["whole", "stream"])
async def test_reasoning_is_in_a_streamed_hit(served: Served, upstream: Upstream, stored_by: str, field: str) -> None:
    """BerriAI/litellm #32068: the stored message has it, and the stream that is made of it has not."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if not call.get("stream"):
            return web.json_response(completion(call, "Four.", **{field: "Two and two."}))
        parts = [chunk(call, {"role": "assistant", field: "Two "}), chunk(call, {field: "and two."})]
        parts += [chunk(call, {"content": "Four."}), chunk(call, {}, "stop"), b"data: [DONE]\n\n"]
        return web.Response(body=b"".join(parts), headers=TEXT_EVENTS)

    upstream.answer = answer
    await served.chat("How many?", stream=stored_by == "stream")
    hit = await served.chat("How many?", stream=True)
    assert hit.cache_status.startswith("nearhit; hit")
    deltas = [event["choices"][0]["delta"] for event in events_in(hit.body) if event["choices"]]
    assert "".join(delta.get(field) or "" for delta in deltas) == "Two and two."
    assert "".join(delta.get("content") or "" for delta in deltas) == "Four."


async def test_a_streamed_response_is_stored_and_replayed(served: Served, upstream: Upstream) -> None:
    """BerriAI/litellm #24579: whole responses are cached, the same request with `stream` is sent each time."""
    upstream.answer = answering(text_item("It is in the shed."))
    ask = {"model": "m", "input": "Where is the ladder?", "stream": True}
    miss, *hits = [await served.post("/v1/responses", ask) for _ in range(3)]
    assert miss.cache_status.startswith("nearhit; fwd=miss")
    assert [hit.cache_status.split("; ttl")[0] for hit in hits] == ["nearhit; hit; detail=exact"] * 2
    assert [event["type"] for event in events_in(hits[0].body)] == [event["type"] for event in events_in(miss.body)]
    assert b"It is in the shed." in hits[1].body
    assert len(upstream.calls) == 1


@pytest.mark.parametrize(
    "field",
    [
        {"response_format": {"type": "json_object"}},
        {"stop": ["END"]},
        {"presence_penalty": 0.5},
        {"logit_bias": {"50256": -100}},
        {"seed": 7},
        {"reasoning_effort": "high"},
        {"n": 2},
        {"max_tokens": 16},
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"},
        {"a_field_of_tomorrow": True},
    ],
    ids=lambda field: next(iter(field)),
)
async def test_a_field_that_changes_answers_asks_for_another_one(
    served: Served, upstream: Upstream, field: dict[str, Any]
) -> None:
    """lunargate-ai/gateway #2: the key knew a list of fields; whatever was not on it was answered alike."""
    await served.chat("Where is the ladder?")
    for other in (field, {}, field):
        answer = await served.chat("Where is the ladder?", **other)
        assert answer.status == 200
    assert len(upstream.calls) == 2


@pytest.mark.parametrize("header", ["OpenAI-Beta", "anthropic-beta"])
async def test_a_header_that_changes_answers_asks_for_another_one(
    served: Served, upstream: Upstream, header: str
) -> None:
    """lunargate-ai/gateway #2, too: headers by which clients choose a behaviour of the backend."""
    for value in ("one", "two", "one"):
        await served.chat("Where is the ladder?", headers={header: value})
    assert len(upstream.calls) == 2


async def test_a_hit_has_its_own_framing(tmp_path: Path) -> None:
    """headroomlabs-ai/headroom #3019: the framing headers of the stored answer make the hit an unreadable 200."""
    body = json.dumps(completion({"model": "m"}, "In the shed.")).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
    head += b"Connection: keep-alive, X-Hop\r\nKeep-Alive: timeout=5\r\nTrailer: X-Sum\r\nX-Hop: 1\r\n\r\n"
    ask = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Where?"}]}).encode()
    sent = b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\n"
    async with wire_upstream() as upstream:
        upstream.answer(head + b"%x\r\n%s\r\n0\r\nX-Sum: 1\r\n\r\n" % (len(body), body))
        config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
        async with gateway_of(config, BOTH_CACHES) as served, connected(served.url) as wire:
            for _ in range(4):  # a miss, and hits of memory and of the fast path
                await wire.send(sent + b"Content-Length: %d\r\n\r\n%s" % (len(ask), ask))
                reply = await wire.message()
                assert json.loads(reply.body)["choices"][0]["message"]["content"] == "In the shed."
                assert reply.all("content-length") == [str(len(reply.body))]
                assert not [each for each in ("transfer-encoding", "keep-alive", "trailer", "x-hop") if reply.all(each)]
        assert len(upstream.requests) == 1


PICTURES = [f"data:image/png;base64,iVBORw0KGgo{letter}" for letter in "AB"]


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("/v1/chat/completions", lambda url: {"type": "image_url", "image_url": {"url": url}}),
        ("/v1/chat/completions", lambda url: {"type": "input_audio", "input_audio": {"data": url, "format": "wav"}}),
        ("/v1/chat/completions", lambda url: {"type": "file", "file": {"filename": "a.pdf", "file_data": url}}),
        ("/v1/responses", lambda url: {"type": "input_image", "image_url": url}),
        ("/v1/responses", lambda url: {"type": "input_file", "filename": "a.pdf", "file_data": url}),
    ],
)
async def test_another_picture_is_another_question(upstream: Upstream, tmp_path: Path, path: str, part: Any) -> None:
    """langchain-ai/langchainjs #10092: only the text is in the key, so each picture has the first one's description."""
    if path == "/v1/responses":
        upstream.answer = answering(text_item("A picture."))
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, LOOSE) as served:
        for url in (*PICTURES, *PICTURES):
            text = {"type": "input_text" if path == "/v1/responses" else "text", "text": "Describe this picture"}
            turns = [{"role": "user", "content": [part(url), text]}]
            answer = await served.post(path, {"model": "m", "input" if "responses" in path else "messages": turns})
            assert answer.status == 200
    assert len(upstream.calls) == 2


@pytest.mark.parametrize(
    "last",
    [
        [b"data: [DONE]\n\n"],
        [],
        [frame({"choices": [{"index": 0, "delta": {}, "finish_reason": None}]}), b"data: [DONE]\n\n"],
        [frame({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}), b"data: [DONE]\n\n"],
    ],
    ids=["end marker", "nothing", "no reason", "usage"],
)
async def test_an_answer_without_a_finish_is_not_stored(served: Served, upstream: Upstream, last: list[bytes]) -> None:
    """gonka-ai/gonka #1722: reasoning that breaks off was replayed for an hour; an end marker alone is no finish."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        parts = [chunk(call, {"role": "assistant", "reasoning_content": "Let me see"}), *last]
        return web.Response(body=b"".join(parts), headers=TEXT_EVENTS)

    upstream.answer = answer
    for _ in range(3):
        await served.chat("Where?", stream=True)
    assert len(upstream.calls) == 3


async def test_a_first_chunk_without_content_is_stored_and_replayed(served: Served, upstream: Upstream) -> None:
    """higress-group/higress #3953: a first chunk that has only the role, and nothing is stored."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        parts = [chunk(call, {"role": "assistant"}), chunk(call, {"content": "Here."}), chunk(call, {}, "stop")]
        return web.Response(body=b"".join([*parts, b"data: [DONE]\n\n"]), headers=TEXT_EVENTS)

    upstream.answer = answer
    for _ in range(2):
        assert (await served.chat("Where?", stream=True)).status == 200
        assert (await served.chat("Where?")).text == "Here."
    assert len(upstream.calls) == 1


@pytest.mark.parametrize("stored_by", ["whole", "stream"])
async def test_all_chunks_of_a_replayed_stream_have_one_id(served: Served, upstream: Upstream, stored_by: str) -> None:
    """BerriAI/litellm #32607: each chunk has an id of its own, and clients take each for another answer."""
    await served.chat("Where is the ladder?", stream=stored_by == "stream")
    for _ in range(2):
        hit = await served.chat("Where is the ladder?", stream=True)
        assert hit.cache_status.startswith("nearhit; hit")
        said = events_in(hit.body)
        assert len({(event["id"], event["created"], event["model"]) for event in said}) == 1
        assert len(said) > 2
