"""The end of a stream of a server that leaves out the end marker, or says more after it: in both protocols, for streams
and whole answers, alone and from the cache."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from tests.fixtures.anthropic_upstream import events_of, message
from tests.fixtures.gateways import EXACT_CACHE, NO_CACHE, Answer, Served, config_of, gateway_of
from tests.fixtures.upstream import USAGE, Upstream, chunk, frame

ADMITS = EXACT_CACHE.replace("cache: {", "cache: {admit: {tools: on}, ")
CALL: dict[str, Any] = {"model": "m"}
USAGE_CHUNK = frame({"id": "1", "object": "chat.completion.chunk", "model": "m", "choices": [], "usage": USAGE})
DONE = b"data: [DONE]\n\n"


def saying(upstream: Upstream, *pieces: bytes) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        return response

    upstream.answer = answer


def served_by(adapter: str, policy: str) -> Any:
    @pytest.fixture
    async def served(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
        backend = {"adapter": adapter, "url": upstream.url, "retries": {"attempts": 1}}
        async with gateway_of(config_of(tmp_path, {"main": backend}), policy) as gateway:
            yield gateway

    return served


openai_served, uncached, anthropic_served = (
    served_by("openai", ADMITS), served_by("openai", NO_CACHE), served_by("anthropic", ADMITS),
)  # fmt: skip


async def ask_message(served: Served, **fields: Any) -> Answer:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], **fields}
    return await served.post("/v1/messages", body, {"anthropic-version": "2023-06-01"})


def made(call_id: str, name: str, index: int) -> dict[str, Any]:
    return {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": '{"a":1}'}}


TEXT = [chunk(CALL, {"role": "assistant", "content": "it "}), chunk(CALL, {"content": "is"})]
FINISHED = [*TEXT, chunk(CALL, {}, "stop")]
TWO_CALLS = [chunk(CALL, {"tool_calls": [made("a", "f", 0)]}), chunk(CALL, {"tool_calls": [made("b", "g", 1)]})]
NOTES = [frame({"note": i}) for i in range(40)]
ENDED = {
    "no-marker": FINISHED,
    "no-marker-after-the-usage": [*FINISHED, USAGE_CHUNK],
    "no-blank-line": [*FINISHED[:-1], FINISHED[-1].rstrip()],
    "notes-after-the-marker": [*FINISHED, DONE, *NOTES],
    "no-json-after-the-marker": [*FINISHED, DONE, b"data: bye\n\n"],
    "an-empty-object-after-the-marker": [*FINISHED, DONE, b"data: {}\n\n"],
    "two-markers": [*FINISHED, DONE, DONE],
}


@pytest.mark.parametrize("pieces", ENDED.values(), ids=ENDED)
async def test_a_stream_whose_choices_are_finished_is_complete(
    openai_served: Served, upstream: Upstream, pieces: list[bytes]
) -> None:
    saying(upstream, *pieces)
    miss, hit = [await openai_served.chat("hi", stream=True) for _ in range(2)]
    assert b"error" not in miss.body
    assert b"[DONE]" in miss.body
    assert hit.cache_status.startswith("nearhit; hit")
    assert hit.body == miss.body
    whole = await openai_served.chat("hi")
    assert whole.json["choices"][0]["message"]["content"] == "it is"
    assert len(upstream.calls) == 1


@pytest.mark.parametrize("pieces", ENDED.values(), ids=ENDED)
async def test_its_translation_closes_its_blocks_and_is_stored(
    openai_served: Served, upstream: Upstream, pieces: list[bytes]
) -> None:
    saying(upstream, *pieces)
    stream = await ask_message(openai_served, stream=True)
    names = [line.removeprefix("event: ") for line in stream.body.decode().splitlines() if line.startswith("event: ")]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert names.count("message_stop") == 1
    whole = await ask_message(openai_served)
    assert whole.cache_status.startswith("nearhit; hit")
    assert whole.json["content"] == [{"type": "text", "text": "it is"}]
    assert len(upstream.calls) == 1


@pytest.mark.parametrize(
    "end",
    [[chunk(CALL, {}, "tool_calls")], [DONE], [chunk(CALL, {}, "tool_calls"), DONE]],
    ids=["finish", "done", "both"],
)
async def test_both_tool_calls_are_translated_however_the_stream_ends(
    openai_served: Served, upstream: Upstream, end: list[bytes]
) -> None:
    saying(upstream, *TWO_CALLS, *end)
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in ("f", "g")]
    stream = await ask_message(openai_served, stream=True, tools=tools)
    assert stream.body.decode().count("content_block_start") == stream.body.decode().count("content_block_stop") > 0
    assert '"stop_reason":"tool_use"' in stream.body.decode()
    whole = await ask_message(openai_served, tools=tools)
    assert [(use["id"], use["name"]) for use in whole.json["content"]] == [("a", "f"), ("b", "g")]
    assert len(upstream.calls) == 1


async def test_a_route_without_a_cache_gets_the_end_marker_too(uncached: Served, upstream: Upstream) -> None:
    saying(upstream, *FINISHED)
    stream = await uncached.chat("hi", stream=True)
    assert stream.body == b"".join([*FINISHED, DONE])


SECOND_CHOICE = frame(
    {"id": "1", "model": "m", "choices": [{"index": 1, "delta": {"content": "b"}, "finish_reason": None}]}
)
BROKEN = {"before-the-finish-reason": TEXT, "one-choice-of-two": [SECOND_CHOICE, *FINISHED]}


@pytest.mark.parametrize("pieces", BROKEN.values(), ids=BROKEN)
async def test_a_stream_that_ends_before_its_finish_reasons_is_broken(
    openai_served: Served, upstream: Upstream, pieces: list[bytes]
) -> None:
    saying(upstream, *pieces)
    for _ in range(2):
        stream = await openai_served.chat("hi", stream=True)
        assert b'"error"' in stream.body.splitlines()[-2]
        translated = await ask_message(openai_served, stream=True)
        assert b"event: error" in translated.body
        assert b"message_stop" not in translated.body
    assert len(upstream.calls) == 4


def choice(index: int, finish: str | None) -> bytes:
    delta = {"content": "a"} if finish is None else {}
    return frame({"id": "1", "model": "m", "choices": [{"index": index, "delta": delta, "finish_reason": finish}]})


STANDING = [choice(1, None), *[choice(0, None)] * 40, choice(0, "stop")]


async def test_a_choice_that_stood_still_is_not_ended_by_the_others(openai_served: Served, upstream: Upstream) -> None:
    saying(upstream, *STANDING)
    for _ in range(2):
        stream = await openai_served.chat("hi", stream=True, n=2)
        assert b"[DONE]" not in stream.body
        assert b'"error"' in stream.body.splitlines()[-2]
    assert len(upstream.calls) == 2


@pytest.mark.parametrize("end", [[], [USAGE_CHUNK], NOTES], ids=["nothing", "usage", "notes"])
async def test_choices_that_finish_one_long_after_the_other_are_complete(
    openai_served: Served, upstream: Upstream, end: list[bytes]
) -> None:
    saying(upstream, choice(1, None), choice(1, "stop"), *[choice(0, None)] * 40, choice(0, "stop"), *end[:5])
    miss, hit = [await openai_served.chat("hi", stream=True, n=2) for _ in range(2)]
    assert miss.body.endswith(b"data: [DONE]\n\n")
    assert hit.cache_status.startswith("nearhit; hit")
    assert len(upstream.calls) == 1


EVENTS = [
    b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event))
    for event in events_of(message([{"type": "text", "text": "it is"}]))
]


async def test_a_message_that_lacks_only_its_last_event_is_complete(
    anthropic_served: Served, upstream: Upstream
) -> None:
    saying(upstream, *EVENTS[:-1])
    own = await ask_message(anthropic_served, stream=True)
    assert own.body.endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
    assert (await ask_message(anthropic_served)).cache_status.startswith("nearhit; hit")
    chat = await anthropic_served.chat("hi", stream=True)
    assert chat.body.endswith(DONE)
    assert (await anthropic_served.chat("hi")).cache_status.startswith("nearhit; hit")
    assert len(upstream.calls) == 2


async def test_notes_after_a_message_are_passed_on(anthropic_served: Served, upstream: Upstream) -> None:
    note = b'event: note\ndata: {"type":"note"}\n\n'
    saying(upstream, *EVENTS, note, DONE)
    own = await ask_message(anthropic_served, stream=True)
    assert note in own.body
    assert (await ask_message(anthropic_served)).cache_status.startswith("nearhit; hit")
    assert (await anthropic_served.chat("hi", stream=True)).body.endswith(DONE)
    assert (await anthropic_served.chat("hi")).cache_status.startswith("nearhit; hit")


async def test_a_message_that_is_cut_is_broken(anthropic_served: Served, upstream: Upstream) -> None:
    saying(upstream, *EVENTS[:-2])
    for _ in range(2):
        assert b"event: error" in (await ask_message(anthropic_served, stream=True)).body
        assert b'"error"' in (await anthropic_served.chat("hi", stream=True)).body
    assert len(upstream.calls) == 4
