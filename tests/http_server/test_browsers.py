"""What browsers and other careful clients ask of a server: cross-origin rules, and answers in less bytes."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.http_server.compression import accepts_gzip
from tests.fixtures.gateways import Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream

PAGE = "https://app.example"
LONG = "a long answer " * 400


@pytest.fixture
async def open_to_pages(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    server = {"cors": {"origins": [PAGE], "max_age": "5m"}, "compress": True}
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, server=server)
    async with gateway_of(config) as served:
        yield served


def preflight(origin: str) -> dict[str, str]:
    return {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type",
    }


async def options(served: Served, headers: dict[str, str]) -> Any:
    async with served.session.options(f"{served.url}/v1/chat/completions", headers=headers) as response:
        await response.read()
        return response


async def test_a_preflight_of_a_known_page_is_answered_here(open_to_pages: Served, upstream: Upstream) -> None:
    response = await options(open_to_pages, preflight(PAGE))
    assert response.status == 204
    assert response.headers["Access-Control-Allow-Origin"] == PAGE
    assert response.headers["Access-Control-Allow-Methods"] == "POST"
    assert response.headers["Access-Control-Allow-Headers"] == "authorization, content-type"
    assert response.headers["Access-Control-Max-Age"] == "300"
    assert not upstream.calls


async def test_a_stranger_is_told_nothing_it_could_use(open_to_pages: Served) -> None:
    response = await options(open_to_pages, preflight("https://evil.example"))
    assert not [name for name in response.headers if name.lower().startswith("access-control")]
    answer = await open_to_pages.chat("hi", headers={"Origin": "https://evil.example"})
    assert "Access-Control-Allow-Origin" not in answer.headers


async def test_misses_hits_and_refusals_may_be_read_by_the_page(open_to_pages: Served) -> None:
    headers = {"Origin": PAGE}
    answers = [await open_to_pages.chat("hi", headers=headers) for _ in range(3)]  # miss, hit, hit from the front
    answers.append(await open_to_pages.post("/v1/chat/completions", b"{", headers))
    assert [answer.status for answer in answers] == [200, 200, 200, 400]
    for answer in answers:
        assert answer.headers["Access-Control-Allow-Origin"] == PAGE
        assert "Cache-Status" in answer.headers["Access-Control-Expose-Headers"]
        assert "Origin" in answer.headers.getall("Vary")


async def test_what_a_backend_says_of_origins_is_not_believed(open_to_pages: Served, upstream: Upstream) -> None:
    async def generous(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"choices": []}, headers={"Access-Control-Allow-Origin": "*"})

    upstream.answer = generous
    answer = await open_to_pages.chat("hi", headers={"Origin": "https://evil.example"})
    assert "Access-Control-Allow-Origin" not in answer.headers


async def test_without_the_setting_a_preflight_is_the_backends(served: Served) -> None:
    response = await options(served, preflight(PAGE))
    assert "Access-Control-Max-Age" not in response.headers


async def fetched(served: Served, accept: str) -> tuple[Any, bytes]:
    """The answer to one and the same question, as it came over the wire."""
    body = {"model": "m", "messages": [{"role": "user", "content": "tell"}]}
    headers = {"Accept-Encoding": accept}
    async with served.session.post(f"{served.url}/v1/chat/completions", json=body, headers=headers) as response:
        return response, await response.read()


def long_answers(upstream: Upstream) -> None:
    async def at_length(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        message = {"role": "assistant", "content": LONG}
        return web.json_response({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    upstream.answer = at_length


async def test_a_long_answer_is_compressed_for_who_takes_it(open_to_pages: Served, upstream: Upstream) -> None:
    long_answers(upstream)
    open_to_pages.session._auto_decompress = False
    for _ in range(3):  # miss, hit, hit from the front
        response, data = await fetched(open_to_pages, "gzip, deflate")
        assert response.headers["Content-Encoding"] == "gzip"
        assert "Accept-Encoding" in response.headers.getall("Vary")
        assert int(response.headers["Content-Length"]) == len(data) < 500
        assert json.loads(gzip.decompress(data))["choices"][0]["message"]["content"] == LONG
    assert len(upstream.calls) == 1
    plain, data = await fetched(open_to_pages, "identity")
    assert "Content-Encoding" not in plain.headers
    assert json.loads(data)["choices"][0]["message"]["content"] == LONG
    assert len(upstream.calls) == 1


async def test_what_is_short_or_streamed_is_left_as_it_is(open_to_pages: Served) -> None:
    short = await open_to_pages.chat("hi", headers={"Accept-Encoding": "gzip"})
    streamed = await open_to_pages.chat("hi", headers={"Accept-Encoding": "gzip"}, stream=True)
    assert "Content-Encoding" not in short.headers
    assert "Content-Encoding" not in streamed.headers


@pytest.mark.parametrize(
    ("accepted", "taken"),
    [
        ("", False), ("gzip", True), ("br, gzip;q=0.5", True), ("gzip;q=0", False), ("*", True), ("*;q=0", False),
        ("identity", False), ("gzip;q=0, *", False), ("GZIP ; Q=1.0", True), ("gzip;q=much", False),
    ],
)  # fmt: skip
def test_weights_are_heeded(accepted: str, taken: bool) -> None:
    assert accepts_gzip(accepted) is taken
