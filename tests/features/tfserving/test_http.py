"""TensorFlow Serving behind the gateway: exact hits, light and large, errors in its own shape."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.tensor_servers import TensorServer, served_before, tensor_server


@pytest.fixture
async def server() -> AsyncIterator[TensorServer]:
    async with tensor_server() as server:
        yield server


async def test_predictions_are_kept_exactly(server: TensorServer, tmp_path: Path) -> None:
    async with served_before(server, tmp_path, "tfserving") as served:
        path = "/v1/models/half_plus_two/versions/1:predict"
        first = await served.post(path, {"instances": [1.0, 2.0, 5.0]})
        assert first.json == {"predictions": [2.5, 3.0, 4.5]}
        assert first.cache_status == "nearhit; fwd=miss; stored"
        again = await served.post(path, b'{ "instances": [1.0,2.0,5.0] }')
        assert again.cache_status.startswith("nearhit; hit; detail=exact")
        assert again.body == first.body, "byte for byte"
        assert server.paths == ["/v1/models/light/versions/1:predict"]


async def test_numbers_that_json_has_no_word_for_come_through(server: TensorServer, tmp_path: Path) -> None:
    async with served_before(server, tmp_path, "tfserving") as served:
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
    server: TensorServer, tmp_path: Path, path: str, body: Any, status: int, said: str
) -> None:
    async with served_before(server, tmp_path, "tfserving") as served:
        for _ in range(2):
            answer = await served.post(path, body)
            assert (answer.status, list(answer.json)) == (status, ["error"])
            assert said in answer.json["error"]
            assert "hit" not in answer.cache_status.split(";")[1]


async def test_what_is_no_inference_passes_through(server: TensorServer, tmp_path: Path) -> None:
    async with served_before(server, tmp_path, "tfserving") as served:
        answer = await served.get("/v1/models/half_plus_two/metadata")
        assert answer.json == {"model_spec": {"name": "half_plus_two"}}


async def test_a_call_of_another_protocol_is_refused_with_a_sentence(server: TensorServer, tmp_path: Path) -> None:
    async with served_before(server, tmp_path, "tfserving") as served:
        answer = await served.chat("hi")
        assert answer.status == 400
        assert (
            answer.json["error"]["message"] == "backend 'light' speaks tfserving, but openai has no translation to it"
        )
