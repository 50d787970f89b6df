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
from tests.fixtures.upstream import Upstream, chunk, completion, frame, stream

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
    "status-400": plain(400, b'{"error": {"message": "no"}}'),
    "status-401": plain(401, b'{"error": {"message": "who"}}'),
    "status-429": plain(429, b"{}"),
    "status-500": plain(500, b"broken", "text/plain"),
    "status-503": plain(503, b""),
    "status-201": plain(201, b'{"choices": []}'),
    "length": whole(**choice("length")),
    "content-filter": whole(**choice("content_filter")),
    "no-finish": whole(**choice(None)),
    "tool-calls": whole(**choice("tool_calls", content=None, tool_calls=[TOOL_CALL])),
    "tool-calls-that-claim-to-stop": whole(**choice("stop", tool_calls=[TOOL_CALL])),
    "function-call": whole(**choice("stop", function_call={"name": "f", "arguments": "{}"})),
    "one-choice-of-two-cut": whole(choices=[*choice("stop")["choices"], *choice("length")["choices"]]),
    "no-choices": whole(choices=[]),
    "choices-null": whole(choices=None),
    "error-in-a-200": plain(200, b'{"error": {"message": "overloaded"}}'),
    "no-json": plain(200, b'{"choices": [{"ind'),
    "a-list": plain(200, b"[]"),
    "empty": plain(200, b""),
    "html": plain(200, b"<html>Sign in</html>", "text/html"),
    "too-large": whole(padding="x" * MAX_ENTRY),
}
NEVER_STORED_STREAMS = {
    "length": streamed(finish="length"),
    "content-filter": streamed(finish="content_filter"),
    "no-finish": events(chunk(CALL, {"content": "a"}), b"data: [DONE]\n\n"),
    "only-done": events(b"data: [DONE]\n\n"),
    "no-json": events(chunk(CALL, {"content": "a"}, "stop"), b"data: {oops\n\ndata: [DONE]\n\n"),
    "error-event": events(
        chunk(CALL, {"content": "a"}, "stop"), frame({"error": {"message": "x"}}) + b"data: [DONE]\n\n"
    ),
    "tool-calls": events(chunk(CALL, {"tool_calls": [{"index": 0, **TOOL_CALL}]}, "tool_calls"), b"data: [DONE]\n\n"),
    "too-large": streamed("word " * MAX_ENTRY),
}


async def stored_entries(served: Served) -> int:
    return (await served.gateway.parts.store.stats()).entries


async def direct(served: Served, upstream: Upstream, **fields: Any) -> tuple[int, bytes]:
    """The same request without the gateway."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    async with served.session.post(f"{upstream.url}/chat/completions", json=body) as response:
        return response.status, await response.read()


@pytest.mark.parametrize("name", NEVER_STORED_WHOLE)
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


@pytest.mark.parametrize("name", NEVER_STORED_STREAMS)
async def test_a_stream_that_is_not_a_complete_success_is_passed_on_and_not_stored(
    small: Served, upstream: Upstream, name: str
) -> None:
    upstream.answer = NEVER_STORED_STREAMS[name]
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


@pytest.mark.parametrize("parts", [(), (HALF[: len(HALF) // 2],)], ids=["nothing", "half-an-event-alone"])
async def test_a_stream_that_ends_before_its_first_event_is_a_failed_attempt(
    small: Served, upstream: Upstream, parts: tuple[bytes, ...]
) -> None:
    upstream.answer = events(*parts)
    answer = await small.chat("hi", stream=True)
    assert (answer.status, answer.json["error"]["type"]) == (502, "upstream_error")
    assert len(upstream.calls) == 2  # with its retry
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


@pytest.mark.parametrize(
    "script",
    [NEVER_STORED_STREAMS["no-json"], NEVER_STORED_STREAMS["error-event"], NEVER_STORED_STREAMS["only-done"]],
    ids=["no-json", "error-event", "only-done"],
)
async def test_a_broken_stream_for_who_wanted_it_whole_is_the_backends_fault(
    small: Served, upstream: Upstream, script: Script
) -> None:
    upstream.answer = script
    answer = await small.chat("hi")
    assert answer.status == 502
    assert answer.json["error"]["type"] == "upstream_error"


@pytest.mark.parametrize("name", ["no-json", "a-list", "html", "empty", "choices-null"])
async def test_a_malformed_answer_for_who_wanted_a_stream_is_the_backends_fault(
    small: Served, upstream: Upstream, name: str
) -> None:
    upstream.answer = NEVER_STORED_WHOLE[name]
    answer = await small.chat("hi", stream=True)
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
