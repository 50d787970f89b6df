"""Only complete, successful answers are stored; all others reach their client as they came."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.fixtures.gateways import Served, config_of, gateway_of
from tests.fixtures.upstream import Answer as Script
from tests.fixtures.upstream import Upstream, chunk, completion, stream

MAX_ENTRY = 4096
CALL = {"model": "m"}
TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.fixture
async def small(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    """Stores entries of up to 4 kB."""
    backends = {"main": {"adapter": "openai", "url": upstream.url}}
    async with gateway_of(config_of(tmp_path, backends, store={"max_entry": f"{MAX_ENTRY}B"})) as served:
        yield served


def whole(**body: Any) -> Script:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({**completion(call, "text"), **body})

    return answer


def plain(status: int, body: bytes, content_type: str = "application/json", **headers: str) -> Script:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=status, body=body, content_type=content_type, headers=headers)

    return answer


def streamed(text: str = "one two three four", **options: Any) -> Script:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, call, text, **options)

    return answer


def events(*frames: bytes) -> Script:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        body = b"".join(frames)
        return web.Response(body=body, content_type="text/event-stream")

    return answer


def choice(finish: str | None, **message: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": "text", **message}
    return {"choices": [{"index": 0, "message": said, "finish_reason": finish}]}


NEVER_STORED_WHOLE = {
    "status-500": plain(500, b"broken", "text/plain"),
    "status-503": plain(503, b""),
    "length": whole(**choice("length")),
    "tool-calls": whole(**choice("tool_calls", content=None, tool_calls=[TOOL_CALL])),
    "no-json": plain(200, b'{"choices": [{"ind'),
    "too-large": whole(padding="x" * MAX_ENTRY),
}


async def stored_entries(served: Served) -> int:
    return (await served.gateway.parts.store.stats()).entries


async def direct(served: Served, upstream: Upstream, **fields: Any) -> tuple[int, bytes]:
    """The same request without the gateway."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    async with served.session.post(f"{upstream.url}/chat/completions", json=body) as response:
        return response.status, await response.read()


@pytest.mark.parametrize("name", ["status-503", "too-large"])
async def test_an_answer_that_is_not_a_complete_success_is_passed_on_and_not_stored(
    small: Served, upstream: Upstream, name: str
) -> None:
    upstream.answer = NEVER_STORED_WHOLE[name]
    expected = await direct(small, upstream)
    for _ in range(2):
        answer = await small.chat("hi")
        assert (answer.status, answer.body) == expected
        assert answer.cache_status == "nearhit; fwd=miss"
    retries = 2 if name == "status-503" else 0  # a lone upstream that is overloaded is asked once more
    assert len(upstream.calls) == 3 + retries
    parts = small.gateway.parts
    assert (await stored_entries(small), parts.space.index.size, len(parts.store)) == (0, 0, 0)


async def test_a_stream_that_is_too_large_is_passed_on_and_not_stored(small: Served, upstream: Upstream) -> None:
    upstream.answer = streamed("word " * MAX_ENTRY)
    _, expected = await direct(small, upstream, stream=True)
    for _ in range(2):
        answer = await small.chat("hi", stream=True)
        assert answer.status == 200
        assert answer.body.replace(b"\r\n", b"\n") == expected
    assert len(upstream.calls) == 3
    parts = small.gateway.parts
    assert (await stored_entries(small), parts.space.index.size, len(parts.store)) == (0, 0, 0)


HALF = chunk(CALL, {"content": "c"}, "stop")
CUT_STREAMS = {
    "no-end": (chunk(CALL, {"content": "a"}), chunk(CALL, {"content": "b"})),
    "half-an-event": (chunk(CALL, {"content": "a"}), HALF[: len(HALF) // 2]),
    "half-an-end-marker": (chunk(CALL, {"content": "a"}), b"data: [DO"),
    "an-event-without-its-data": (chunk(CALL, {"content": "a"}), b"event: x\ndata:"),
}


@pytest.mark.parametrize("name", CUT_STREAMS)
async def test_a_stream_that_ends_without_its_end_ends_with_an_error(
    small: Served, upstream: Upstream, name: str
) -> None:
    """Its framing is whole: the body ends where its length, or the last chunk, says."""
    upstream.answer = events(*CUT_STREAMS[name])
    for _ in range(2):
        answer = await small.chat("hi", stream=True)
        assert answer.cache_status == "nearhit; fwd=miss"
        *passed, error, rest = answer.body.split(b"\n\n")
        whole = b"".join(part for part in CUT_STREAMS[name] if part.endswith(b"\n\n"))
        assert b"".join(part + b"\n\n" for part in passed) == whole
        assert json.loads(error.removeprefix(b"data: "))["error"]["type"] == "upstream_error"
        assert rest == b""
    assert (await small.chat("hi")).status == 502
    assert len(upstream.calls) == 3
    assert (await stored_entries(small), len(small.gateway.parts.store)) == (0, 0)


@pytest.mark.parametrize("ending", [b"data: [DONE]", b"data: [DONE]\n", b""])
async def test_an_end_without_its_blank_line_is_one(small: Served, upstream: Upstream, ending: bytes) -> None:
    """Many servers forget it; a chunk with a finish reason is an end as well."""
    whole = chunk(CALL, {"content": "a"}, "stop")
    upstream.answer = events(whole if ending else whole.rstrip(b"\n"), ending)
    answer = await small.chat("hi", stream=True)
    assert b"error" not in answer.body
    assert answer.body.startswith(whole)


async def test_a_stream_that_is_cut_ends_with_an_error_and_is_not_stored(small: Served, upstream: Upstream) -> None:
    upstream.answer = streamed(cut=True)
    answer = await small.chat("hi", stream=True)
    assert answer.body.count(b'"error"') == 1
    assert b"upstream_error" in answer.body.split(b"\n\n")[-2]
    assert b"[DONE]" not in answer.body
    upstream.answer = None
    # The head of a stream does not promise what only its end decides.
    assert (await small.chat("hi", stream=True)).cache_status == "nearhit; fwd=miss"
    assert await stored_entries(small) == 1


async def test_a_cut_stream_is_an_error_for_who_wanted_it_whole(small: Served, upstream: Upstream) -> None:
    """An upstream that streams unasked, and breaks: half an answer must not pass for a whole one."""
    upstream.answer = streamed(cut=True)
    answer = await small.chat("hi")
    assert answer.status == 502
    assert answer.json["error"]["type"] == "upstream_error"
    assert await stored_entries(small) == 0


async def test_the_largest_entry_that_fits_is_stored(small: Served, upstream: Upstream) -> None:
    upstream.answer = whole(padding="")
    _, empty = await direct(small, upstream)
    upstream.answer = whole(padding="x" * (MAX_ENTRY - len(empty)))
    assert (await small.chat("hi")).cache_status == "nearhit; fwd=miss; stored"
    upstream.answer = whole(padding="x" * (MAX_ENTRY - len(empty) + 1))
    assert (await small.chat("ho")).cache_status == "nearhit; fwd=miss"


async def test_the_outcome_of_each_admission_is_counted(small: Served, upstream: Upstream) -> None:
    wanted = {
        "stored": None,
        "error-status": NEVER_STORED_WHOLE["status-500"],
        "incomplete": NEVER_STORED_WHOLE["length"],
        "tools": NEVER_STORED_WHOLE["tool-calls"],
        "too-large": NEVER_STORED_WHOLE["too-large"],
        "malformed": NEVER_STORED_WHOLE["no-json"],
    }
    for outcome, script in wanted.items():
        upstream.answer = script
        await small.chat(outcome)
    counted = small.gateway.parts.telemetry.admissions.values
    assert counted == {("default", outcome): 1.0 for outcome in wanted}


async def test_tags_of_a_request_are_stored_with_its_answer(small: Served) -> None:
    await small.chat("hi", headers={"Cache-Tag": " docs, v2 ,,docs," + "x" * 200})
    (stored,) = [stored async for stored in small.gateway.parts.store.vectors()]
    entry = await small.gateway.parts.store.get(stored.fingerprint)
    assert entry is not None
    assert entry.tags == ("docs", "v2")
