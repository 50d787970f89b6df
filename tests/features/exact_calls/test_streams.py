"""Streams of calls with an exact key reach the client while they arrive, and are not stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.outcomes import Admission
from tests.features.spend.test_spend import spend
from tests.fixtures.gateways import EXACT_CACHE, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream

FIRST, LAST = (
    b'data: {"type": "partial_image"}\n\n',
    b'data: {"type": "completed", "usage": {"input_tokens": 3, "output_tokens": 4}}\n\n',
)
PICTURE = {"model": "m", "prompt": "p", "seed": 7}


def form(**fields: str) -> aiohttp.FormData:
    data = aiohttp.FormData(fields)
    data.add_field("file", b"RIFFxxxx", filename="a.wav", content_type="audio/wav")
    return data


CALLS: dict[str, tuple[str, Callable[[], dict[str, Any]], bool]] = {
    "pictures": ("images/generations", lambda: {"json": {**PICTURE, "stream": True}}, False),
    "an edit": ("images/edits", lambda: {"data": form(**{**PICTURE, "seed": "7"}, stream="true")}, False),
    "a transcription": ("audio/transcriptions", lambda: {"data": form(model="m", stream="true")}, False),
    "speech": ("audio/speech", lambda: {"json": {"model": "m", "input": "x", "stream_format": "sse"}}, False),
    "pictures, unasked": ("images/generations", lambda: {"json": PICTURE}, True),
    "a transcription, unasked": ("audio/transcriptions", lambda: {"data": form(model="m")}, True),
    "text, unasked": ("audio/transcriptions", lambda: {"data": form(model="m", response_format="text")}, True),
    "a ranking, unasked": ("rerank", lambda: {"json": {"model": "m", "query": "x", "documents": ["a"]}}, True),
}


@pytest.fixture
async def gate() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
async def served(upstream: Upstream, tmp_path: Path, gate: asyncio.Event) -> AsyncIterator[Served]:
    """The endpoint answers each call with a stream, and ends it when the gate opens."""

    async def answer(request: web.Request, call: Any) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(FIRST)
        await gate.wait()
        await response.write(LAST)
        return response

    upstream.answer = answer
    price = {"input_per_million": 1e6, "output_per_million": 1e6}
    sections = {"main": {"adapter": "openai", "url": upstream.url, "price": price}}
    async with gateway_of(config_of(tmp_path, sections), EXACT_CACHE + "    spend: on\n") as gateway:
        yield gateway


@pytest.mark.parametrize("name", CALLS)
async def test_a_stream_arrives_event_by_event_and_is_not_stored(
    served: Served, upstream: Upstream, gate: asyncio.Event, name: str
) -> None:
    path, given, is_keyed = CALLS[name]
    for _ in range(2):
        async with served.session.post(f"{served.url}/v1/{path}", **given()) as response:
            assert (response.status, response.content_type) == (200, "text/event-stream")
            came_by = "miss" if is_keyed else "bypass; detail=pass-through"
            assert response.headers["Cache-Status"] == f"nearhit; fwd={came_by}"
            async with asyncio.timeout(60):
                assert await response.content.readuntil(b"\n\n") == FIRST
            gate.set()
            assert await response.content.read() == LAST
    assert len(upstream.calls) == 2
    admissions = served.gateway.parts.telemetry.admissions.values
    assert admissions.get(("default", Admission.MALFORMED), 0) == (2 if is_keyed else 0)


@pytest.mark.parametrize("name", ["pictures", "pictures, unasked"])
async def test_a_stream_is_booked_with_the_usage_at_its_end(served: Served, gate: asyncio.Event, name: str) -> None:
    gate.set()
    path, given, _ = CALLS[name]
    async with served.session.post(f"{served.url}/v1/{path}", **given()) as response:
        await response.read()
    async with asyncio.timeout(60):
        while not (total := (await spend(served, "by=model"))["total"])["requests"]:
            await asyncio.sleep(0.02)
    assert (total["tokens"], total["cost"]) == (7, pytest.approx(7.0))
