"""Real servers behind the gateway, where `make servers` has installed them: MLServer 1.7.1 and TorchServe 0.12.0."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

from tests.fixtures.gateways import BOTH_CACHES, config_of, gateway_of


def tensor(datatype: str, data: list[Any]) -> dict[str, Any]:
    return {"name": "given", "datatype": datatype, "shape": [len(data)], "data": data}


async def test_mlserver_answers_tensors_that_are_cached(mlserver: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "kserve", "url": mlserver}})
    async with gateway_of(config, BOTH_CACHES) as served:
        body = {"id": "1", "inputs": [tensor("FP32", [1.5, 2.0])]}
        direct: Any
        async with served.session.post(f"{mlserver}/v2/models/doubling/infer", json=body) as response:
            direct = await response.json()
        first = await served.post("/v2/models/doubling/infer", body)
        again = await served.post("/v2/models/doubling/infer", {**body, "id": "2"})
        assert first.status == 200
        assert (first.json["outputs"][0]["data"], first.json["id"]) == ([3.0, 4.0], "1")
        assert first.json["outputs"][0]["shape"] == direct["outputs"][0]["shape"]
        assert "hit; detail=exact" in again.cache_status
        assert (again.json["outputs"], again.json["id"]) == (first.json["outputs"], "2")
        said = await served.post("/v2/models/doubling/infer", {"inputs": [tensor("BYTES", ["What is a scope?"])]})
        assert said.json["outputs"][0]["data"] == ["WHAT IS A SCOPE?"]


async def test_mlserver_says_what_it_says_of_itself_and_of_faults(mlserver: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "kserve", "url": mlserver}})
    async with gateway_of(config, BOTH_CACHES) as served:
        for path in ("/v2", "/v2/health/ready", "/v2/models/doubling", "/v2/models/doubling/ready"):
            async with served.session.get(mlserver + path) as response:
                direct = response.status, await response.read()
            through = await served.get(path)
            assert (through.status, through.body) == direct, path
        absent = await served.post("/v2/models/absent/infer", {"inputs": [tensor("FP32", [1.0])]})
        assert absent.status == 404
        assert "absent" in absent.json["error"]


async def test_tritons_client_before_mlserver(mlserver: str, tmp_path: Path) -> None:
    """In JSON: MLServer 1.7.1 does not read the binary tail, through the gateway or not, and says an error. What the
    gateway has of an answer it gives in either form."""
    config = config_of(tmp_path, {"main": {"adapter": "kserve", "url": mlserver}})
    async with gateway_of(config, BOTH_CACHES) as served:

        def ask(url: str, value: float, *, binary: bool) -> Any:
            given = http.InferInput("given", [2], "FP32")
            given.set_data_from_numpy(np.array([value, 2.0], np.float32), binary_data=binary)
            wanted = http.InferRequestedOutput("doubled", binary_data=binary)
            with http.InferenceServerClient(url.removeprefix("http://")) as client:
                return client.infer("doubling", [given], outputs=[wanted]).as_numpy("doubled")

        for binary in (False, True):
            answer = await asyncio.to_thread(ask, served.url, 1.5, binary=binary)
            assert answer.ravel().tolist() == [3.0, 4.0]
        for url in (mlserver, served.url):
            with pytest.raises(InferenceServerException):
                await asyncio.to_thread(ask, url, 2.5, binary=True)


async def test_torchserve_answers_json_raw_and_forms_that_are_cached(torchserve: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "torchserve", "url": torchserve}})
    async with gateway_of(config, BOTH_CACHES) as served:
        for _ in range(2):
            answer = await served.post("/predictions/doubling", {"values": [1, 2]})
            assert (answer.status, answer.json) == (200, {"doubled": [2, 4]})
        assert "hit; detail=exact" in answer.cache_status
        raw = await served.post("/predictions/doubling", b"abc", {"content-type": "text/plain"})
        assert raw.body == b"ABC"
        for _ in range(2):
            form = aiohttp.FormData()  # another boundary each time
            form.add_field("data", b"from a form", filename="a.txt", content_type="text/plain")
            async with served.session.post(f"{served.url}/predictions/doubling", data=form) as response:
                assert (response.status, await response.read()) == (200, b"FROM A FORM")
        assert "hit; detail=exact" in response.headers["Cache-Status"]


async def test_torchserves_own_errors_and_pings_go_through(torchserve: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "torchserve", "url": torchserve}})
    async with gateway_of(config, BOTH_CACHES) as served:
        assert (await served.get("/ping")).json == {"status": "Healthy"}
        absent = await served.post("/predictions/absent", {"values": [1]})
        assert (absent.status, absent.json["code"]) == (404, 404)
        broken = await served.post("/predictions/doubling", {"value": [1]})
        assert broken.status == 503
        assert (await served.post("/predictions/doubling", {"values": [3]})).json == {"doubled": [6]}
