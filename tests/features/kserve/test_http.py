"""Triton's own HTTP client, unchanged, before a gateway whose models are on a real Triton."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

from tests.fixtures.gateways import Answer, Served, config_of, gateway_of
from tests.fixtures.kserve_triton import KServeTriton
from tests.fixtures.waiting import until

POLICY = """
version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.6}}
    route: {light: light, large: large, escalate_above: 0.2}
"""
ONE = POLICY.replace("light: light, large: large, escalate_above: 0.2", "backend: main")
TRITON = {
    "BOOL": np.array([[True, False]]),
    "UINT8": np.array([[0, 255]], np.uint8),
    "UINT16": np.array([[0, 65535]], np.uint16),
    "UINT32": np.array([[0, 2**32 - 1]], np.uint32),
    "UINT64": np.array([[0, 2**64 - 1]], np.uint64),
    "INT8": np.array([[-128, 127]], np.int8),
    "INT16": np.array([[-(2**15), 2**15 - 1]], np.int16),
    "INT32": np.array([[-(2**31), 2**31 - 1]], np.int32),
    "INT64": np.array([[-(2**63), 2**63 - 1]], np.int64),
    "FP16": np.array([[0.1, -65504]], np.float16),
    "FP32": np.array([[0.1, 3.4e38]], np.float32),
    "FP64": np.array([[0.1, -1e300]], np.float64),
    "BF16": np.array([[0.1, -3e38]], ml_dtypes.bfloat16),
    "BYTES": np.array([[b"text", "\u00fc\0".encode()]], np.object_),
}
Front = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture
def front(kserve_triton: KServeTriton, tmp_path: Path) -> Front:
    """`async with front(policy, **backends)`; without backends: `main`, which calls models by their own names."""

    @asynccontextmanager
    async def build(policy: str = ONE, max_body: str = "1MiB", **backends: Any) -> AsyncIterator[Served]:
        named = {name: {"adapter": "kserve", "url": kserve_triton.url, **more} for name, more in backends.items()}
        config = config_of(
            tmp_path, named or {"main": {"adapter": "kserve", "url": kserve_triton.url}}, server={"max_body": max_body}
        )
        async with gateway_of(config, policy) as served:
            yield served

    return build


def tiers() -> dict[str, Any]:
    return {"light": {"model": "label_light"}, "large": {"model": "label_large"}}


async def infer(served: Served, *args: Any, **kwargs: Any) -> http.InferResult:
    """In a thread of its own: the client blocks."""

    def ask() -> http.InferResult:
        with http.InferenceServerClient(served.url.removeprefix("http://")) as client:
            return client.infer(*args, **kwargs)

    return await asyncio.to_thread(ask)


def tensor(kind: str, value: np.ndarray[Any, Any], *, binary: bool, name: str | None = None) -> http.InferInput:
    given = http.InferInput(name or f"IN_{'STRING' if kind == 'BYTES' else kind}", list(value.shape), kind)
    given.set_data_from_numpy(value, binary_data=binary)
    return given


def text(words: str, *, binary: bool = True) -> http.InferInput:
    return tensor("BYTES", np.array([words.encode()], np.object_), binary=binary, name="text_input")


@pytest.mark.parametrize("kind", TRITON)
async def test_tensors_come_back_as_they_went_in_binary_form(front: Front, kind: str) -> None:
    value = TRITON[kind]
    output = f"OUT_{'STRING' if kind == 'BYTES' else kind}"
    async with front() as served:
        for _ in range(2):
            found = await infer(served, "identity", [tensor(kind, value, binary=True)])
            np.testing.assert_array_equal(found.as_numpy(output), value)
        assert await executions(served) == 1


async def executions(served: Served) -> int:
    """How often a model was asked, as the gateway counts it."""
    return int(sum(served.gateway.parts.telemetry.backend_requests.values.values()))


@pytest.mark.parametrize("kind", [kind for kind in TRITON if kind not in ("FP16", "BF16")])
async def test_one_entry_serves_json_and_binary_clients(front: Front, kind: str) -> None:
    value = TRITON[kind] if kind != "BYTES" else np.array([[b"text", "\u00fc".encode()]], np.object_)
    name = "STRING" if kind == "BYTES" else kind
    wanted = [http.InferRequestedOutput(f"OUT_{name}", binary_data=False)]
    async with front() as served:
        for form, outputs in ((False, wanted), (True, [http.InferRequestedOutput(f"OUT_{name}", binary_data=True)])):
            found = await infer(served, "identity", [tensor(kind, value, binary=form)], outputs=outputs)
            got = found.as_numpy(f"OUT_{name}")
            if kind == "BYTES":  # of JSON the client makes str
                got = np.array([[x.encode() if isinstance(x, str) else x for x in got[0]]], np.object_)
            np.testing.assert_array_equal(got.astype(value.dtype), value)
        assert await executions(served) == 1


async def test_the_id_is_each_requests_own(front: Front) -> None:
    async with front() as served:
        for identity in ("one", "two", ""):
            found = await infer(served, "identity", [tensor("FP32", TRITON["FP32"], binary=True)], request_id=identity)
            assert found.get_response().get("id", "") == identity
        assert await executions(served) == 1


async def test_what_differs_in_anything_that_decides_is_asked_anew(front: Front) -> None:
    value = TRITON["FP32"]
    async with front() as served:
        await infer(served, "identity", [tensor("FP32", value, binary=True)])
        await infer(served, "identity", [tensor("FP32", value + 1, binary=True)])
        await infer(served, "identity", [tensor("FP32", value.reshape(2, 1), binary=True)])
        await infer(served, "identity", [tensor("FP32", value, binary=True)], model_version="1")
        await infer(served, "identity", [tensor("FP32", value, binary=True)], parameters={"seed": 1})
        assert await executions(served) == 5


async def test_a_text_in_other_words_is_a_hit(front: Front) -> None:
    async with front() as served:
        first = await post(served, "label_light", "What is a verdict of the cache?")
        assert first.cache_status == "nearhit; fwd=miss; stored"
        again = await post(served, "label_light", "what is a verdict of the cache")
        assert again.cache_status.startswith("nearhit; hit; detail=semantic")
        assert again.json["outputs"] == first.json["outputs"]
        image = {"name": "image", "datatype": "UINT8", "shape": [1], "data": [1]}
        other = await post(served, "label_light", "what is a verdict of the cache", image)
        assert other.cache_status == "nearhit; fwd=miss; stored", "what is beside the text is part of the scope"


async def post(served: Served, model: str, words: str, *more: Any, path: str = "infer", **fields: Any) -> Answer:
    inputs = [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": [words]}, *more]
    return await served.post(f"/v2/models/{model}/{path}", {"inputs": inputs, **fields})


async def test_a_light_and_a_large_model_stand_behind_one_name(front: Front) -> None:
    hard = "Explain step by step why the proof by induction of this theorem fails, and derive the correct bound."
    async with front(POLICY, **tiers()) as served:
        for words, name in (("hi", "label_light"), (hard, "label_large")):
            found = await infer(served, "label", [text(words)])
            assert found.as_numpy("text_output")[0].decode() == f"{name}: {words}"


async def test_generate_is_kept(front: Front) -> None:
    async with front() as served:
        for status in ("nearhit; fwd=miss; stored", "nearhit; hit; detail=exact"):
            answer = await served.post("/v2/models/label_light/generate", {"text_input": "hello there"})
            assert answer.cache_status.startswith(status)
            assert answer.json["text_output"] == "label_light: hello there"


async def test_generate_stream_is_kept_and_ends_without_a_marker(front: Front) -> None:
    async with front() as served:
        bodies = []
        for status in ("nearhit; fwd=miss", "nearhit; hit; detail=exact"):
            answer = await served.post("/v2/models/label_light/generate_stream", {"text_input": "hello there"})
            assert answer.cache_status.startswith(status)
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            bodies.append(answer.body)
        assert bodies[0] == bodies[1]
        events = [json.loads(line.removeprefix(b"data: ")) for line in bodies[0].split(b"\n\n") if line]
        assert [event["text_output"] for event in events] == ["label_light: hello there"]


async def test_an_error_in_the_guise_of_an_answer_is_not_kept(front: Front) -> None:
    """Triton answers a decoupled model's second response to `generate` with an error."""
    async with front() as served:
        for _ in range(2):
            answer = await served.post("/v2/models/repeat/generate", {"IN": [1, 2]})
            assert "error" in answer.json
            assert answer.cache_status == "nearhit; fwd=miss"


async def test_each_answer_of_a_model_that_answers_often_is_an_event(front: Front) -> None:
    async with front() as served:
        for status in ("nearhit; fwd=miss", "nearhit; hit; detail=exact"):
            answer = await served.post("/v2/models/repeat/generate_stream", {"IN": [1, 2, 3]})
            assert answer.cache_status.startswith(status)
            events = [json.loads(line.removeprefix(b"data: ")) for line in answer.body.split(b"\n\n") if line]
            assert [event["OUT"] for event in events] == [1, 2, 3]


async def test_a_client_that_leaves_its_stream_ends_it(front: Front) -> None:
    """A hundred answers, a third of a second apart."""
    async with front() as served:
        body = {"IN": list(range(100)), "DELAY_MS": 300}
        async with served.session.post(f"{served.url}/v2/models/repeat/generate_stream", json=body) as response:
            assert (await response.content.readuntil(b"\n\n")).startswith(b"data: ")
            (pool,) = served.gateway.parts.pools.values()
            assert pool.load == 1
        await until(lambda: pool.load == 0)


async def test_health_and_metadata_are_the_backends(front: Front) -> None:
    def asked(url: str) -> tuple[Any, ...]:
        with http.InferenceServerClient(url) as client:
            return (
                client.is_server_live(),
                client.is_server_ready(),
                client.is_model_ready("label"),
                client.get_server_metadata()["name"],
                client.get_model_metadata("label")["name"],
                client.get_model_config("label")["name"],
                client.get_inference_statistics("label")["model_stats"][0]["name"],
                len(client.get_model_repository_index()),
            )

    async with front(POLICY, **tiers()) as served:
        found = await asyncio.to_thread(asked, served.url.removeprefix("http://"))
        assert found == (True, True, True, "triton", *["label_large"] * 3, 7)


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [({"sequence_id": 7, "sequence_start": True, "sequence_end": True}, "sequence")],
)
async def test_what_an_answer_depends_on_beyond_the_request_bypasses(
    front: Front, parameters: dict[str, Any], reason: str
) -> None:
    async with front() as served:
        for _ in range(2):
            answer = await post(served, "label_light", "hi", parameters=parameters)
            assert (answer.status, answer.cache_status) == (200, f"nearhit; fwd=bypass; detail={reason}")


@pytest.mark.parametrize(("parameters", "executed"), [({}, 2), ({"sequence_id": 7}, 1)])
async def test_what_belongs_to_a_sequence_is_sent_once(
    kserve_triton: KServeTriton, tmp_path: Path, parameters: dict[str, Any], executed: int
) -> None:
    two = [kserve_triton.url, kserve_triton.url.replace("127.0.0.1", "localhost")]
    async with gateway_of(config_of(tmp_path, {"main": {"adapter": "kserve", "upstreams": two}}), ONE) as served:
        rows = {"name": "ROWS", "datatype": "FP32", "shape": [1, 3], "data": [-1, -1, -1]}
        answer = await served.post("/v2/models/sum_rows/infer", {"inputs": [rows], "parameters": parameters})
        assert answer.status == 500
        assert await executions(served) == executed


async def test_shared_memory_goes_through_unkept(front: Front) -> None:
    async with front() as served:
        where = {"shared_memory_region": "none-such", "shared_memory_byte_size": 4}
        body = {"inputs": [{"name": "IN_FP32", "datatype": "FP32", "shape": [1, 1], "parameters": where}]}
        answer = await served.post("/v2/models/identity/infer", body)
        assert answer.status == 404
        assert "none-such" in answer.json["error"]
        assert answer.cache_status == "nearhit; fwd=bypass; detail=shared-memory"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"shape": [1, 3]}, "input 'IN_FP32' has 2 elements, expected 3 of shape [1, 3]"),
        ({"datatype": "FP23"}, "input 'IN_FP32' is of datatype 'FP23', expected one of BOOL"),
        ({"data": ["a", "b"]}, "input 'IN_FP32' has data other than numbers, expected FP32"),
        (
            {"shape": [-1, 2]},
            "input 'IN_FP32' is incomplete: expected a string 'datatype' and an array of integers 'shape'",
        ),
        ({"data": None}, "input 'IN_FP32' has no data"),
    ],
)
async def test_a_tensor_that_is_none_is_refused_in_one_sentence(
    front: Front, fields: dict[str, Any], sentence: str
) -> None:
    async with front() as served:
        given = {"name": "IN_FP32", "datatype": "FP32", "shape": [1, 2], "data": [1, 2], **fields}
        answer = await served.post("/v2/models/identity/infer", {"inputs": [given]})
        assert (answer.status, list(answer.json)) == (400, ["error"])
        assert answer.json["error"].startswith(sentence)


async def test_a_models_own_error_is_passed_on_and_not_kept(front: Front) -> None:
    async with front() as served:
        rows = tensor("FP32", np.full((1, 3), -1, np.float32), binary=True, name="ROWS")
        for _ in range(2):
            with pytest.raises(InferenceServerException, match="no negative numbers"):
                await infer(served, "sum_rows", [rows])


async def test_a_body_over_the_limit_is_refused(front: Front) -> None:
    async with front(max_body="1KiB") as served:
        answer = await served.post("/v2/models/identity/infer", b"\0" * 1025)
        assert (answer.status, list(answer.json)) == (413, ["error"])
