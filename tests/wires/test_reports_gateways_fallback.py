"""Reports about gateways, rebuilt: requests that no dialect reads, and the fallbacks of their route."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fixtures.gateways import NO_CACHE, TIERS, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.wire import WireUpstream, wire_upstream

WITH_FALLBACK = NO_CACHE.replace("{backend: main}", "{backend: main, fallback: [other]}")
BAD_GATEWAY = b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\nContent-Length: 13\r\n\r\n<html></html>"
NOBODY = "http://127.0.0.1:9/v1"  # the discard port, where nothing listens


@asynccontextmanager
async def fallen_back(
    tmp_path: Path, light: Upstream, url: str = "", **other: Any
) -> AsyncIterator[tuple[Served, WireUpstream]]:
    """Yield a gateway with a backend that answers 502, or that is at `url`, and `light` as its fallback."""
    async with wire_upstream() as broken:
        broken.answer(BAD_GATEWAY)
        backends = {
            "main": {"adapter": "openai", "url": url or broken.url},
            "other": {"adapter": "openai", "url": light.url, **other},
        }
        async with gateway_of(config_of(tmp_path, backends), WITH_FALLBACK) as served:
            yield served, broken


def recording(size: int) -> aiohttp.FormData:
    form = aiohttp.FormData({"model": "whisper-1"})
    form.add_field("file", b"\x00\xff" * size, filename="a.wav", content_type="audio/wav")
    return form


async def test_a_transcription_goes_to_the_fallback(light: Upstream, tmp_path: Path) -> None:
    """maximhq/bifrost #4005: the first provider answers 502, and the route's fallback is never asked."""
    async with fallen_back(tmp_path, light) as (served, broken):
        address = f"{served.url}/v1/audio/transcriptions"
        async with served.session.post(address, data=recording(500)) as response:
            assert (response.status, response.headers["x-nearhit-backend"]) == (200, "other")
            assert (await response.read()).count(b"\x00\xff") == 500  # the endpoint echoes the body
        assert broken.requests


@pytest.mark.parametrize("size", [500, 500_000], ids=["kept", "streamed"])
async def test_a_backend_that_cannot_be_reached_costs_no_transcription(
    light: Upstream, tmp_path: Path, size: int
) -> None:
    """Nothing of the body has been sent, so that of a body that streams nothing is lost."""
    async with fallen_back(tmp_path, light, NOBODY) as (served, _):
        address = f"{served.url}/v1/audio/transcriptions"
        async with served.session.post(address, data=recording(size)) as response:
            assert (response.status, response.headers["x-nearhit-backend"]) == (200, "other")
            assert (await response.read()).count(b"\x00\xff") == size


async def test_a_body_that_was_streamed_is_not_sent_again(light: Upstream, tmp_path: Path) -> None:
    async with fallen_back(tmp_path, light) as (served, _):
        address = f"{served.url}/v1/audio/transcriptions"
        async with served.session.post(address, data=recording(500_000)) as response:
            assert (response.status, response.headers["x-nearhit-backend"]) == (502, "main")
    assert light.calls == []


@pytest.mark.parametrize(
    "path", ["/v1/moderations", "/v1/images/generations", "/v1/audio/speech", "/v1/rerank", "/v1/score", "/v1/ocr"]
)
async def test_what_is_complete_in_itself_goes_to_the_fallback(light: Upstream, tmp_path: Path, path: str) -> None:
    async with fallen_back(tmp_path, light) as (served, _):
        answer = await served.post(path, {"model": "m", "input": "one"})
        assert (answer.status, answer.json) == (200, {"model": "m", "input": "one"})


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches", "/v1/responses/resp_1/cancel", "/v1/fine_tuning/jobs"])
async def test_what_belongs_to_a_backend_stays_with_it(light: Upstream, tmp_path: Path, path: str) -> None:
    async with fallen_back(tmp_path, light) as (served, broken):
        assert (await served.post(path, {"input_file_id": "file-1"})).status == 502
        assert (await served.get("/v1/files/file-1")).status == 502
        assert {request.start.split(" ")[1] for request in broken.requests} == {path, "/v1/files/file-1"}
    assert light.calls == []


async def test_a_fallback_of_another_protocol_gets_nothing_that_it_does_not_know(
    light: Upstream, tmp_path: Path
) -> None:
    async with fallen_back(tmp_path, light, adapter="anthropic") as (served, _):
        assert (await served.post("/v1/moderations", {"model": "m", "input": "one"})).status == 502
    assert light.calls == []


async def test_the_other_tier_answers_where_the_best_one_fails(light: Upstream, tmp_path: Path) -> None:
    async with wire_upstream() as broken:
        broken.answer(BAD_GATEWAY)
        backends = {
            name: {"adapter": "openai", "url": each.url} for name, each in (("light", light), ("large", broken))
        }
        async with gateway_of(config_of(tmp_path, backends), TIERS) as served:
            answer = await served.post("/v1/moderations", {"model": "m", "input": "one"})
    assert (answer.status, answer.headers["x-nearhit-backend"]) == (200, "light")
