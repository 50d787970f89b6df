"""What chat completions can do, each with the official client: whole, streamed, and from the cache."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web
from pydantic import BaseModel

from gateway.dialects.openai.answers import assemble, split
from tests.fixtures.gateways import BOTH_CACHES, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream, chunk, completion, question_of
from tests.http_server.conftest import openai_client

ASK: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "What is the weather in Paris and Rome?"}],
}
Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


def answering(text: str | None = None, finish: str = "stop", **message: Any) -> Answer:
    """In the form that is asked for."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        said = f"upstream answers: {question_of(call)}" if text is None and not message else text
        whole = json.dumps(completion(call, said, finish, **message)).encode()  # type: ignore[arg-type]
        if not call.get("stream"):
            return web.Response(body=whole, content_type="application/json")
        frames = b"".join(event.frame() for event in split("chat.completions", whole))
        return web.Response(body=frames, content_type="text/event-stream")

    return answer


def policy(cache: str) -> str:
    return BOTH_CACHES.replace("cache: {", f"cache: {{{cache}, ")


@pytest.fixture
async def with_tools(upstream: Upstream, tmp_path: Path) -> AsyncIterator[openai.AsyncOpenAI]:
    """Calls of tools are stored."""
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, policy("admit: {tools: on}")) as served, openai_client(served) as client:
        yield client


@pytest.fixture
async def similar(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    """With a plain threshold, so that the words alone decide."""
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, BOTH_CACHES.replace("max_wrong_hits: 1%", "min_similarity: 0.8")) as served:
        yield served


async def status_of(client: openai.AsyncOpenAI, **fields: Any) -> str:
    raw = await client.chat.completions.with_raw_response.create(**{**ASK, **fields})
    return str(raw.headers["cache-status"]).split("; ttl")[0]


MISS, HIT, SEMANTIC = "nearhit; fwd=miss; stored", "nearhit; hit; detail=exact", "nearhit; hit; detail=semantic"
NOT_STORED = "nearhit; fwd=miss"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALLS = [
    {"id": f"call_{i}", "type": "function", "function": {"name": "weather", "arguments": json.dumps({"city": city})}}
    for i, city in enumerate(("Paris", "Rome"))
]


@pytest.mark.parametrize("stored_by", ["whole", "stream"])
async def test_parallel_calls_of_tools_come_whole_and_streamed(
    with_tools: openai.AsyncOpenAI, upstream: Upstream, stored_by: str
) -> None:
    upstream.answer = answering(None, "tool_calls", tool_calls=CALLS)
    ask = {**ASK, "tools": [TOOL], "parallel_tool_calls": True}
    for form in (stored_by, "whole", "stream", "whole", "stream"):
        if form == "whole":
            final: Any = await with_tools.chat.completions.create(**ask)
        else:
            async with with_tools.chat.completions.stream(**ask) as stream:
                kinds = [event.type async for event in stream]
                final = await stream.get_final_completion()
            assert kinds.count("tool_calls.function.arguments.done") == 2
        (choice,) = final.choices
        calls = [(c.id, c.function.name, json.loads(c.function.arguments)["city"]) for c in choice.message.tool_calls]
        assert calls == [("call_0", "weather", "Paris"), ("call_1", "weather", "Rome")]
        assert choice.finish_reason == "tool_calls"
    assert len(upstream.calls) == 1


async def test_calls_of_tools_are_not_stored_by_default(client: openai.AsyncOpenAI, upstream: Upstream) -> None:
    upstream.answer = answering(None, "tool_calls", tool_calls=CALLS)
    assert [await status_of(client, tools=[TOOL]) for _ in range(2)] == [NOT_STORED] * 2


class Weather(BaseModel):
    city: str
    celsius: int


async def test_structured_answers_are_parsed(client: openai.AsyncOpenAI, upstream: Upstream) -> None:
    upstream.answer = answering('{"city": "Paris", "celsius": 21}')
    for _ in range(2):
        parsed = await client.chat.completions.parse(**ASK, response_format=Weather)
        assert parsed.choices[0].message.parsed == Weather(city="Paris", celsius=21)
        async with client.chat.completions.stream(**ASK, response_format=Weather) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.parsed == Weather(city="Paris", celsius=21)
    assert len(upstream.calls) == 1
    assert await status_of(client) == MISS  # asked for in another format, it is another question


async def test_a_refusal_is_a_refusal_in_both_forms(client: openai.AsyncOpenAI, upstream: Upstream) -> None:
    upstream.answer = answering(None, refusal="I cannot say.")
    for _ in range(2):
        whole = await client.chat.completions.parse(**ASK, response_format=Weather)
        assert (whole.choices[0].message.refusal, whole.choices[0].message.parsed) == ("I cannot say.", None)
        async with client.chat.completions.stream(**ASK) as stream:
            refused = [event.delta async for event in stream if event.type == "refusal.delta"]
        assert "".join(refused) == "I cannot say."


def shown(text: str, *parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": text}, *parts]}]


def image(data: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
FILE = {"type": "file", "file": {"file_id": "file-1"}}
WORDS = "what animal do you see sitting on the old wooden fence in this picture that I took"
OTHER_WORDS = "what animal do you see sitting on the old wooden fence in this image that I took"


@pytest.mark.parametrize(
    ("part", "another"),
    [
        (image("AAAA"), image("BBBB")),
        (SOUND, {**SOUND, "input_audio": {"data": "BBBB", "format": "wav"}}),
        (FILE, {**FILE, "file": {"file_id": "file-2"}}),
    ],
)
async def test_what_stands_beside_the_text_is_matched_only_when_it_is_equal(
    similar: Served, part: dict[str, Any], another: dict[str, Any]
) -> None:
    async with openai_client(similar) as client:
        assert await status_of(client, messages=shown(WORDS, part)) == MISS
        assert await status_of(client, messages=shown(WORDS, part)) == HIT
        assert await status_of(client, messages=shown(OTHER_WORDS, part)) == SEMANTIC
        assert await status_of(client, messages=shown(OTHER_WORDS, another)) == MISS
        assert await status_of(client, messages=shown(OTHER_WORDS)) == MISS


@pytest.mark.parametrize("role", ["system", "developer"])
async def test_instructions_of_either_role_part_the_cache(similar: Served, role: str) -> None:
    async with openai_client(similar) as client:
        for word in ("brief", "thorough"):
            turns = [{"role": role, "content": f"Be {word}."}]
            assert await status_of(client, messages=[*turns, {"role": "user", "content": WORDS}]) == MISS
            assert await status_of(client, messages=[*turns, {"role": "user", "content": OTHER_WORDS}]) == SEMANTIC


@pytest.mark.parametrize(
    "fields",
    [
        {"prediction": {"type": "content", "content": "It is sunny."}},
        {"service_tier": "flex"},
        {"reasoning_effort": "low"},
        {"verbosity": "low"},
        {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}},
        {"logprobs": True, "top_logprobs": 2},
        {"n": 2},
        {"store": True},
    ],
)
async def test_every_field_that_may_decide_is_part_of_the_key(
    client: openai.AsyncOpenAI, upstream: Upstream, fields: dict[str, Any]
) -> None:
    assert await status_of(client) == MISS
    assert [await status_of(client, **fields) for _ in range(2)] == [MISS, HIT]
    assert all(upstream.calls[1].json[key] == value for key, value in fields.items())  # and reaches the backend


CITED = [{"type": "url_citation", "url_citation": {"url": "http://x", "title": "t", "start_index": 0, "end_index": 1}}]


@pytest.mark.parametrize(("fields", "message"), [({"web_search_options": {}}, {}), ({}, {"annotations": CITED})])
async def test_what_was_searched_for_ages_and_is_not_stored(
    client: openai.AsyncOpenAI, upstream: Upstream, fields: dict[str, Any], message: dict[str, Any]
) -> None:
    upstream.answer = answering("Sunny.", **message)
    assert [await status_of(client, **fields) for _ in range(2)] == [NOT_STORED] * 2


async def test_what_was_searched_for_is_stored_where_tools_are(
    with_tools: openai.AsyncOpenAI, upstream: Upstream
) -> None:
    upstream.answer = answering("Sunny.", annotations=CITED)
    for _ in range(2):
        answer = await with_tools.chat.completions.create(**ASK, web_search_options={})
        assert answer.choices[0].message.annotations is not None
        assert answer.choices[0].message.annotations[0].url_citation.url == "http://x"
    assert len(upstream.calls) == 1


async def test_a_completion_that_is_stored_upstream_keeps_its_id(upstream: Upstream, tmp_path: Path) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, policy("fresh_ids: on")) as served, openai_client(served) as client:
        assert {(await client.chat.completions.create(**ASK, store=True)).id for _ in range(3)} == {"cmpl-1"}
        assert len({(await client.chat.completions.create(**ASK)).id for _ in range(3)}) == 3


async def test_sound_comes_whole_from_the_pieces_of_a_stream(client: openai.AsyncOpenAI, upstream: Upstream) -> None:
    """Each piece is encoded by itself, with its own padding."""
    pieces = [b"one", b"t", b"wo", b"three"]

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(chunk(call, {"role": "assistant", "audio": {"id": "audio_1", "transcript": "One "}}))
        for piece in pieces:
            sound = {"data": base64.b64encode(piece).decode()}
            await response.write(chunk(call, {"audio": sound}))
        await response.write(chunk(call, {"audio": {"transcript": "two three", "expires_at": 1700000000}}))
        await response.write(chunk(call, {}, "stop") + b"data: [DONE]\n\n")
        return response

    upstream.answer = answer
    ask = {**ASK, "modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "pcm16"}}
    assert [c async for c in await client.chat.completions.create(**ask, stream=True)]
    audio = (await client.chat.completions.create(**ask)).choices[0].message.audio
    assert audio is not None
    assert (base64.b64decode(audio.data), audio.transcript) == (b"".join(pieces), "One two three")
    assert (audio.id, audio.expires_at) == ("audio_1", 1700000000)
    assert len(upstream.calls) == 1


def test_a_sound_survives_its_stream() -> None:
    audio = {"id": "a", "data": base64.b64encode(b"four").decode(), "transcript": "4", "expires_at": 1}
    body = completion({"model": "m"}, "", audio=audio)
    payload = [event.data for event in split("chat.completions", json.dumps(body).encode())]
    assert json.loads(assemble("chat.completions", payload)) == body
