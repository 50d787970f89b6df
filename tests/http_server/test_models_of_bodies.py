"""The model of a body routes, and is checked, on paths that no dialect claims: pictures, speech, reranking, ..."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.admin.keys import ADMIN, bearer, create, keyed
from tests.fixtures.gateways import EXACT_CACHE, Served, config_of, gateway_of
from tests.fixtures.upstream import Call, Upstream
from tests.fixtures.waiting import until
from tests.fixtures.wire import connected

POLICY = """
version: 1
routes:
  - {name: pictures, match: {model: "gpt-image*"}, route: {backend: large}}
  - {name: default, match: {}, route: {backend: light}}
"""
MAX_BODY = 1024 * 1024
IMAGE, OTHER = "gpt-image-1", "whisper-1"


@pytest.fixture
async def gateway(light: Upstream, large: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    backends = {each.name: {"adapter": "openai", "url": each.url} for each in (light, large)}
    async with gateway_of(config_of(tmp_path, backends, server={"max_body": MAX_BODY}), POLICY) as served:
        yield served


def form(*fields: tuple[str, str | bytes]) -> aiohttp.MultipartWriter:
    writer = aiohttp.MultipartWriter("form-data")
    for name, value in fields:
        part = writer.append(value if isinstance(value, bytes) else value.encode())
        more = {"filename": "a.png"} if name == "file" else {}
        part.set_content_disposition("form-data", name=name, **more)
    return writer


async def post(served: Served, path: str, data: Any, headers: dict[str, str] | None = None) -> tuple[int, str, Any]:
    async with served.session.post(served.url + path, data=data, headers=headers) as answer:
        return answer.status, answer.headers.get("x-nearhit-route", ""), await answer.read()


def json_of(model: str, size: int = 0) -> bytes:
    return json.dumps({"prompt": "x" * size, "model": model}).encode()


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("size", [0, 100_000, 600_000])
@pytest.mark.parametrize("path", ["/v1/images/generations", "/v1/audio/speech", "/rerank", "/v1/moderations"])
async def test_the_model_of_a_json_body_routes(gateway: Served, path: str, size: int) -> None:
    for model, route in ((IMAGE, "pictures"), (OTHER, "default")):
        status, taken, _ = await post(gateway, path, json_of(model, size), JSON)
        assert (status, taken) == (200, route)


async def test_the_model_of_a_compressed_body_routes(gateway: Served) -> None:
    body = gzip.compress(json_of(IMAGE, 300_000))
    coded = {**JSON, "Content-Encoding": "gzip"}
    assert (await post(gateway, "/v1/images/generations", body, coded))[:2] == (200, "pictures")


@pytest.mark.parametrize("size", [10, 100_000, 700_000])
@pytest.mark.parametrize("first", [True, False])
async def test_the_model_of_a_form_routes_whether_it_comes_first_or_last(
    gateway: Served, large: Upstream, size: int, first: bool
) -> None:
    fields: list[tuple[str, str | bytes]] = [("model", IMAGE), ("file", bytes(size))]
    status, route, _ = await post(gateway, "/v1/images/edits", form(*(fields if first else fields[::-1])))
    assert (status, route) == (200, "pictures")
    assert len(large.calls) == 1 and large.calls[0].body.count(IMAGE.encode()) == 1
    assert len(large.calls[0].body) > size


async def test_a_long_upload_streams_as_soon_as_its_model_is_known(gateway: Served, large: Upstream) -> None:
    """It is six times as long as what the gateway reads at most, and its end comes when the backend has its begin."""
    pool, piece = gateway.gateway.parts.pools["large"], bytes(MAX_BODY)
    head = b"--b\r\nContent-Disposition: form-data; name=model\r\n\r\ngpt-image-1\r\n"
    file = b"--b\r\nContent-Disposition: form-data; name=file\r\n\r\n"
    end = b"\r\n--b--\r\n"
    length = len(head) + len(file) + 6 * len(piece) + len(end)
    async with connected(gateway.url) as wire:
        await wire.send(
            b"POST /v1/images/edits HTTP/1.1\r\nHost: g\r\nContent-Type: multipart/form-data; boundary=b\r\n"
            b"Content-Length: %d\r\n\r\n" % length + head + file + piece
        )
        await until(lambda: pool.inflight == 1)
        for _ in range(5):
            await wire.send(piece)
        await wire.send(end)
        assert (await wire.message()).status == 200
    assert [len(call.body) for call in large.calls] == [length]


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("as_form", [True, False])
async def test_a_model_that_comes_too_late_is_a_413_that_says_what_helps(
    gateway: Served, light: Upstream, large: Upstream, chunked: bool, as_form: bool
) -> None:
    if as_form:
        body = b"--b\r\nContent-Disposition: form-data; name=file\r\n\r\n" + bytes(2 * MAX_BODY) + b"\r\n--b--\r\n"
    else:
        body = json_of(IMAGE, 2 * MAX_BODY)
    kind = b"multipart/form-data; boundary=b" if as_form else b"application/json"
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
    sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body
    async with connected(gateway.url) as wire:
        await wire.send(
            b"POST /v1/images/edits HTTP/1.1\r\nHost: g\r\nContent-Type: %b\r\n%b\r\n\r\n" % (kind, framing)
        )
        sending = asyncio.create_task(wire.send(sent))
        answer = await wire.message()
        sending.cancel()
        await asyncio.wait((sending,))
    assert answer.status == 413
    assert b"(server.max_body) do not say which model it is for" in answer.body
    assert not light.calls and not large.calls


@pytest.mark.parametrize("client", ["http1", "aiohttp"])
@pytest.mark.parametrize("size", [10, 700_000])
async def test_a_second_model_behind_the_file_never_arrives(
    light: Upstream, large: Upstream, tmp_path: Path, client: str, size: int
) -> None:
    """The first one has decided the route when the second one comes, and the backend might read that."""
    own = {} if client == "http1" else {"client": client}
    backends = {each.name: {"adapter": "openai", "url": each.url, **own} for each in (light, large)}
    async with gateway_of(config_of(tmp_path, backends), POLICY) as served:
        writer = form(("model", OTHER), ("file", bytes(size)), ("model", IMAGE))
        status, _, body = await post(served, "/v1/images/edits", writer)
        assert (status, b"'model' occurs twice" in body) == (400, True)
        whole = form(("model", OTHER), ("file", bytes(size)))
        assert (await post(served, "/v1/images/edits", whole))[:2] == (200, "default")
    assert not [call for call in light.calls if IMAGE.encode() in call.body]


async def test_the_model_of_a_query_routes(gateway: Served) -> None:
    async with gateway.session.get(f"{gateway.url}/v1/realtime?model=gpt-image-1") as answer:
        assert answer.headers["x-nearhit-route"] == "pictures"


async def test_what_names_no_model_passes_as_before(gateway: Served) -> None:
    for body, headers in ((b"\x00binary", {}), (b"", {}), (json_of(IMAGE)[1:], {"Content-Type": "audio/wav"})):
        assert (await post(gateway, "/v1/things", body, headers))[:2] == (200, "default")


async def test_a_key_of_some_models_covers_the_models_of_bodies(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(keyed(tmp_path, upstream), EXACT_CACHE, ADMIN) as served:
        key = bearer((await create(served, models=[OTHER]))["key"])
        allowed = await post(served, "/v1/audio/transcriptions", form(("file", b"x" * 400_000), ("model", OTHER)), key)
        assert allowed[0] == 200
        assert (await post(served, "/v1/rerank", json_of(OTHER), {**key, **JSON}))[0] == 200
        sent = len(upstream.calls)
        for path, data, headers in (
            ("/v1/audio/transcriptions", form(("file", b"x" * 400_000), ("model", IMAGE)), {}),
            ("/v1/images/generations", json_of(IMAGE), JSON),
            ("/v1/images/generations", b'{"prompt": "x"}', JSON),
            ("/openai/deployments/gpt-image-1/images/generations", json_of(OTHER), JSON),
            ("/v1/realtime?model=gpt-image-1", json_of(OTHER), JSON),
            # They are of the account, whatever model stands beside them.
            ("/v1/files", form(("purpose", "batch"), ("model", OTHER), ("file", b"{}")), {}),
            ("/v1/batches", json_of(OTHER), JSON),
            ("/openai/%66iles?model=whisper-1", json_of(OTHER), JSON),
            ("/v1/threads/thread_1/runs", json_of(OTHER), JSON),
            ("/v1/responses/resp_1/cancel", json_of(OTHER), JSON),
            ("/api/delete", json_of(OTHER), JSON),
        ):
            status, _, body = await post(served, path, data, {**key, **headers})
            assert (status, b"this API key is for the models whisper-1" in body) == (403, True), path
        assert len(upstream.calls) == sent


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson", "application/jsonl", "text/plain"])
async def test_a_key_of_some_models_gets_no_stored_answer_of_another(
    upstream: Upstream, tmp_path: Path, kind: str
) -> None:
    """The query names a model of the key, and the body another one, under any type."""

    async def rank(request: web.Request, call: Call) -> web.Response:
        return web.json_response({"results": [{"index": 0, "relevance_score": 1.0}]})

    upstream.answer = rank
    async with gateway_of(keyed(tmp_path, upstream), EXACT_CACHE, ADMIN) as served:
        path, body = f"/v1/rerank?model={OTHER}", b'{"model": "secret", "query": "q", "documents": ["a"]}'
        owner, other = [bearer((await create(served, **more))["key"]) for more in ({}, {"models": [OTHER]})]
        for _ in range(2):
            assert (await post(served, path, body, {**owner, **JSON}))[0] == 200
        assert len(upstream.calls) == 1
        status, _, said = await post(served, path, body, {**other, "Content-Type": kind})
        assert (status, b"not for 'secret'" in said) == (403, True)
        assert len(upstream.calls) == 1
