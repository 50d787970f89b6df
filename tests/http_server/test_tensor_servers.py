"""TensorFlow Serving and TorchServe behind the gateway: exact hits, light and large, errors in their own shapes.

The servers are stand-ins that answer as the API references of both say; `test_real_servers.py` has a real TorchServe.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.fixtures.gateways import TIERS, Served, config_of, gateway_of


class Server:
    """`half_plus_two` of TensorFlow Serving's own tests; a classifier that counts the bytes it was sent."""

    def __init__(self) -> None:
        self.url = ""
        self.paths: list[str] = []

    async def predict(self, request: web.Request) -> web.Response:
        self.paths.append(request.path)
        body = json.loads(await request.read())
        if "bad" in body.get("signature_name", ""):
            return web.json_response({"error": "Serving signature name: bad not found"}, status=400)
        if "instances" in body:
            return web.Response(text=json.dumps({"predictions": [x / 2 + 2 for x in body["instances"]]}, indent=4))
        return web.json_response({"outputs": [x / 2 + 2 for x in body["inputs"]]})

    async def metadata(self, request: web.Request) -> web.Response:
        self.paths.append(request.path)
        return web.json_response({"model_spec": {"name": request.match_info["model"]}})

    async def predictions(self, request: web.Request) -> web.Response:
        self.paths.append(request.path)
        if request.content_type == "multipart/form-data":
            form = await request.post()
            sizes = {name: len(field.file.read()) for name, field in form.items() if isinstance(field, web.FileField)}
            return web.json_response(sizes)
        return web.Response(body=b"%d bytes" % len(await request.read()), content_type="text/plain")


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    application = web.Application()
    application.router.add_post("/v1/models/{rest:.*}", server.predict)
    application.router.add_get("/v1/models/{model}/metadata", server.metadata)
    application.router.add_post("/predictions/{model}", server.predictions)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = "http://{}:{}".format(*runner.addresses[0][:2])
    yield server
    await runner.cleanup()


@asynccontextmanager
async def before(server: Server, folder: Path, adapter: str) -> AsyncIterator[Served]:
    backends = {name: {"adapter": adapter, "url": server.url, "model": name} for name in ("light", "large")}
    async with gateway_of(config_of(folder, backends), TIERS) as served:
        yield served


async def test_predictions_are_kept_exactly(server: Server, tmp_path: Path) -> None:
    async with before(server, tmp_path, "tfserving") as served:
        path = "/v1/models/half_plus_two/versions/1:predict"
        first = await served.post(path, {"instances": [1.0, 2.0, 5.0]})
        assert first.json == {"predictions": [2.5, 3.0, 4.5]}
        assert first.cache_status == "nearhit; fwd=miss; stored"
        again = await served.post(path, b'{ "instances": [1.0,2.0,5.0] }')
        assert again.cache_status.startswith("nearhit; hit; detail=exact")
        assert again.body == first.body, "byte for byte"
        assert server.paths == ["/v1/models/light/versions/1:predict"]


async def test_numbers_that_json_has_no_word_for_come_through(server: Server, tmp_path: Path) -> None:
    async with before(server, tmp_path, "tfserving") as served:
        body = b'{"instances": [NaN, Infinity, -Infinity]}'
        for status in ("nearhit; fwd=miss; stored", "nearhit; hit"):
            answer = await served.post("/v1/models/m:predict", body)
            assert answer.cache_status.startswith(status)
            assert b"".join(answer.body.split()) == b'{"predictions":[NaN,Infinity,-Infinity]}'


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/v1/models/m:predict", {"instances": [1.0], "signature_name": "bad"}, 400, "Serving signature name"),
        ("/v1/models/m:predict", {"neither": 1}, 400, "expected exactly one of them"),
    ],
)
async def test_errors_have_its_shape_and_are_not_kept(
    server: Server, tmp_path: Path, path: str, body: Any, status: int, said: str
) -> None:
    async with before(server, tmp_path, "tfserving") as served:
        for _ in range(2):
            answer = await served.post(path, body)
            assert (answer.status, list(answer.json)) == (status, ["error"])
            assert said in answer.json["error"]
            assert "hit" not in answer.cache_status.split(";")[1]


async def test_what_is_no_inference_passes_through(server: Server, tmp_path: Path) -> None:
    async with before(server, tmp_path, "tfserving") as served:
        answer = await served.get("/v1/models/half_plus_two/metadata")
        assert answer.json == {"model_spec": {"name": "half_plus_two"}}


async def test_a_call_of_another_protocol_is_refused_with_a_sentence(server: Server, tmp_path: Path) -> None:
    async with before(server, tmp_path, "tfserving") as served:
        answer = await served.chat("hi")
        assert answer.status == 400
        assert (
            answer.json["error"]["message"] == "backend 'light' speaks tfserving, but openai has no translation to it"
        )


async def test_bytes_and_forms_are_kept_for_torchserve(server: Server, tmp_path: Path) -> None:
    async with before(server, tmp_path, "torchserve") as served:
        for status in ("nearhit; fwd=miss; stored", "nearhit; hit"):
            answer = await served.post("/predictions/m", b"\xff\xd8picture", {"Content-Type": "image/jpeg"})
            assert (answer.body, answer.headers["Content-Type"]) == (b"9 bytes", "text/plain")
            assert answer.cache_status.startswith(status)
        for status in ("nearhit; fwd=miss; stored", "nearhit; hit"):
            form = aiohttp.FormData()
            form.add_field("data", b"\x00" * 1000, filename="kitten.jpg", content_type="image/jpeg")
            async with served.session.post(f"{served.url}/predictions/m", data=form) as response:
                assert await response.json() == {"data": 1000}
                assert response.headers["Cache-Status"].startswith(status)
        assert len(server.paths) == 2


async def test_torchserves_errors_have_its_shape(server: Server, tmp_path: Path) -> None:
    async with before(server, tmp_path, "torchserve") as served:
        answer = await served.post("/predictions/m", b"x", {"Content-Type": "multipart/form-data"})
        assert answer.status == 400
        assert (answer.json["code"], answer.json["type"]) == (400, "invalid_request_error")
