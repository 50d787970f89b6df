"""Triton's own gRPC clients, unchanged, before a gateway whose models are on a real Triton."""

from __future__ import annotations

import asyncio
import hashlib
import json
import queue
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc as blocking
from tritonclient.grpc import aio
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

from gateway.features.kserve.grpc.request_adapter import RpcRequest
from gateway.observability.response_headers import ResponseHeaders
from tests.features.kserve.test_http import ONE, POLICY, TRITON, executions
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import Served, config_of, gateway_of
from tests.fixtures.kserve_triton import MODELS, KServeTriton
from tests.fixtures.waiting import until

# grpc.aio keeps to the loop that it was first used on, and logs errors about closed ones.
pytestmark = pytest.mark.asyncio(loop_scope="module")
HARD = "Explain step by step why the proof by induction of this theorem fails, and derive the correct bound."
Front = Callable[..., AbstractAsyncContextManager[tuple[Served, aio.InferenceServerClient]]]
ADAPTERS = ["kserve", "triton"]


@pytest_asyncio.fixture(loop_scope="module")
async def front(kserve_triton: KServeTriton, tmp_path: Path) -> AsyncIterator[Front]:
    """`async with front(adapter, policy)`: a gateway before Triton's HTTP or gRPC port, and the client of it."""

    @asynccontextmanager
    async def build(
        adapter: str = "kserve", policy: str = ONE, server: Any = None, timeouts: Any = None, **models: str
    ) -> AsyncIterator[tuple[Served, aio.InferenceServerClient]]:
        url = kserve_triton.url if adapter == "kserve" else kserve_triton.grpc_url
        named = {name: {"adapter": adapter, "url": url, "model": model} for name, model in models.items()}
        # A Triton backend names one model; what is mapped is asked for by its own name.
        own = {name: name for name in MODELS}
        main = {
            "main": {"adapter": adapter, "url": url, "model": "label_light", "models": own, "timeouts": timeouts or {}}
        }
        config = config_of(tmp_path, named or main, server={"grpc": "127.0.0.1:0", **(server or {})})
        async with gateway_of(config, policy) as served, aio.InferenceServerClient(address(served)) as client:
            yield served, client

    yield build


def address(served: Served) -> str:
    return "{}:{}".format(*served.gateway.grpc_address)


def tensor(kind: str, value: np.ndarray[Any, Any], name: str | None = None) -> Any:
    given = aio.InferInput(name or f"IN_{'STRING' if kind == 'BYTES' else kind}", list(value.shape), kind)
    given.set_data_from_numpy(value)
    return given


def text(words: str) -> Any:
    return tensor("BYTES", np.array([words.encode()], np.object_), "text_input")


async def trailing(served: Served, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, str]]:
    """`infer` by bare gRPC, which shows the trailing metadata -> (answer, metadata)."""
    stub = blocking.service_pb2_grpc.GRPCInferenceServiceStub
    async with grpc.aio.insecure_channel(address(served)) as channel:
        call = stub(channel).ModelInfer(*args, **kwargs)
        return await call, dict(await call.trailing_metadata())


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("kind", TRITON)
async def test_tensors_come_back_as_they_went_in(front: Front, adapter: str, kind: str) -> None:
    value = TRITON[kind]
    async with front(adapter) as (served, client):
        for identity in ("1", "2"):
            found = await client.infer("identity", [tensor(kind, value)], request_id=identity)
            np.testing.assert_array_equal(found.as_numpy(f"OUT_{'STRING' if kind == 'BYTES' else kind}"), value)
            assert found.get_response().id == identity
        assert await executions(served) == 1


@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_the_blocking_client_works_unchanged(front: Front, adapter: str) -> None:
    def ask(where: str) -> tuple[Any, ...]:
        with blocking.InferenceServerClient(where) as client:
            given = blocking.InferInput("IN_FP32", [1, 2], "FP32")
            given.set_data_from_numpy(TRITON["FP32"])
            wanted = [blocking.InferRequestedOutput("OUT_FP32")]
            found = client.infer("identity", [given], outputs=wanted, client_timeout=120.0)
            return (
                found.as_numpy("OUT_FP32").tolist(),
                client.is_server_live(),
                client.is_server_ready(),
                client.is_model_ready("identity"),
                client.is_model_ready("none-such-model"),
                client.get_server_metadata().name,
                client.get_model_metadata("identity").name,
                client.get_model_config("identity").config.backend,
                client.get_inference_statistics("identity").model_stats[0].name,
                len(client.get_inference_statistics().model_stats),
                len(client.get_model_repository_index().models),
            )

    async with front(adapter) as (served, _):
        found = await asyncio.to_thread(ask, address(served))
        # A Triton backend's `model` stands for every name that is not mapped.
        absent = adapter == "triton"
        name, live = "identity", [True] * 3
        expected = (TRITON["FP32"].tolist(), *live, absent, "triton", name, "python", name, len(MODELS), len(MODELS))
        assert found[0] == expected[0]
        assert found[1:4] == expected[1:4]
        assert found[5:] == expected[5:]


@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_http_and_grpc_share_one_entry(front: Front, adapter: str) -> None:
    async with front(adapter) as (served, client):
        await client.infer("identity", [tensor("INT32", np.array([[1, 2]], np.int32))])
        body = {"inputs": [{"name": "IN_INT32", "datatype": "INT32", "shape": [1, 2], "data": [[1, 2]]}]}
        answer = await served.post("/v2/models/identity/infer", body)
        assert answer.cache_status.startswith("nearhit; hit; detail=exact")
        assert answer.json["outputs"] == [{"name": "OUT_INT32", "datatype": "INT32", "shape": [1, 2], "data": [1, 2]}]


async def test_typed_contents_are_the_same_request_as_raw_ones(front: Front) -> None:
    async with front() as (served, client):
        await client.infer("identity", [tensor("INT8", np.array([[-1, 2]], np.int8))])
        typed = pb.ModelInferRequest(model_name="identity")
        typed.inputs.add(name="IN_INT8", datatype="INT8", shape=[1, 2]).contents.int_contents.extend([-1, 2])
        answer, metadata = await trailing(served, typed)
        assert answer.raw_output_contents[0] == b"\xff\x02"
        assert metadata["cache-status"].startswith("nearhit; hit; detail=exact")


async def test_trailing_metadata_say_where_an_answer_came_from(front: Front) -> None:
    async with front() as (served, _):
        message = pb.ModelInferRequest(model_name="label_light")
        message.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(
            b"What is it?"
        )
        _, first = await trailing(served, message)
        assert (first["cache-status"], first["x-nearhit-backend"]) == ("nearhit; fwd=miss; stored", "main")
        message.inputs[0].contents.bytes_contents[0] = b"what is it"
        _, other = await trailing(served, message)
        assert other["cache-status"] == "nearhit; hit; detail=semantic"
        _, uncached = await trailing(served, message, metadata=[("cache-control", "no-store"), ("x-request-id", "r-7")])
        assert uncached["cache-status"] == "nearhit; fwd=bypass; detail=no-store"
        assert uncached["x-request-id"] == "r-7"


@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_a_light_and_a_large_model_stand_behind_one_name(front: Front, adapter: str) -> None:
    async with front(adapter, POLICY, light="label_light", large="label_large") as (_, client):
        for words, name in (("hi", "label_light"), (HARD, "label_large")):
            found = await client.infer("label", [text(words)])
            assert found.as_numpy("text_output")[0].decode() == f"{name}: {words}"


async def stream_of(client: aio.InferenceServerClient, *requests: Any, **more: Any) -> AsyncIterator[Any]:
    async def given() -> AsyncIterator[dict[str, Any]]:
        for model, inputs, identity in requests:
            yield {"model_name": model, "inputs": inputs, "request_id": identity, **more}

    async for result, error in client.stream_infer(given()):
        yield error if error is not None else result


def numbers(*values: int) -> Any:
    return tensor("INT32", np.array(values, np.int32), "IN")


async def test_a_decoupled_model_answers_as_often_as_it_likes_and_is_kept(front: Front) -> None:
    """By bare gRPC: Triton's asyncio client cannot ask for the last, empty response."""
    async with front("triton") as (served, _), grpc.aio.insecure_channel(address(served)) as channel:
        for identity in ("a", "b"):
            message = pb.ModelInferRequest(model_name="repeat", id=identity)
            message.inputs.add(name="IN", datatype="INT32", shape=[3]).contents.int_contents.extend([4, 5, 6])
            message.parameters["triton_enable_empty_final_response"].bool_param = True
            call = blocking.service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(aiter_of(message))
            found = [said.infer_response async for said in call]
            assert [r.raw_output_contents[0][0] for r in found[:-1]] == [4, 5, 6]
            assert {r.id for r in found} == {identity}
            assert [r.parameters["triton_final_response"].bool_param for r in found] == [False, False, False, True]
        assert dict(await call.trailing_metadata())["cache-status"].startswith("nearhit; hit; detail=exact")
        assert await executions(served) == 1


async def aiter_of(*items: Any) -> AsyncIterator[Any]:
    for item in items:
        yield item


@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_a_stream_takes_several_requests_and_goes_on_after_an_error(front: Front, adapter: str) -> None:
    async with front(adapter) as (_, client):
        found = [
            result
            async for result in stream_of(
                client,
                ("label_light", [text("one")], "1"),
                ("identity", [numbers(1)], "2"),
                ("label_light", [text("three")], "3"),
            )
        ]
        assert found[0].as_numpy("text_output")[0] == b"label_light: one"
        assert isinstance(found[1], InferenceServerException)
        assert found[2].as_numpy("text_output")[0] == b"label_light: three"


async def test_the_first_answers_come_while_the_model_still_works(front: Front) -> None:
    async with front("triton") as (served, client):
        slow = tensor("INT32", np.array([300], np.int32), "DELAY_MS")
        answers = stream_of(client, ("repeat", [numbers(*range(100)), slow], ""))
        assert (await anext(answers)).as_numpy("OUT").tolist() == [0]
        assert inflight(served) == 1
        await answers.aclose()
        await client.close()
        await until(lambda: inflight(served) == 0)  # thirty seconds before its end


def inflight(served: Served) -> int:
    return sum(pool.inflight for pool in served.gateway.parts.pools.values())


async def test_a_model_that_falls_silent_ends_its_stream_with_an_error(front: Front) -> None:
    async with front("triton", timeouts={"idle": "500ms"}) as (served, client):
        slow = tensor("INT32", np.array([2000], np.int32), "DELAY_MS")
        # As a rule it ends behind the first; on a busy machine the second may be there before its silence is noticed.
        found = [each async for each in stream_of(client, ("repeat", [numbers(*range(100)), slow], ""))]
        first, error = found[0], found[-1]
        assert first.as_numpy("OUT").tolist() == [0]
        assert isinstance(error, InferenceServerException)
        assert "sent no data within timeouts.idle" in error.message()
        assert (await served.gateway.parts.store.stats()).entries == 0


async def test_generate_is_answered_by_the_text_model_of_a_grpc_backend(front: Front) -> None:
    async with front("triton") as (served, _):
        for path, status in (("generate", "fwd=miss"), ("generate", "hit"), ("generate_stream", "fwd=miss")):
            answer = await served.post(f"/v2/models/label_light/{path}", {"text_input": "hello there"})
            assert answer.cache_status.startswith(f"nearhit; {status}")
            said = json.loads(answer.body.removeprefix(b"data: "))
            assert (said["model_name"], said["text_output"]) == ("label_light", "label_light: hello there")


async def test_a_crowd_that_asks_the_same_is_one_call(front: Front) -> None:
    async with front() as (served, client):
        rows = tensor("FP32", np.ones((1, 3), np.float32), "ROWS")
        answers = await asyncio.gather(*(client.infer("sum_rows", [rows], request_id=str(n)) for n in range(10)))
        assert [answer.get_response().id for answer in answers] == [str(n) for n in range(10)]
        assert await executions(served) == 1


async def test_the_blocking_clients_stream_works(front: Front) -> None:
    def ask(where: str) -> list[Any]:
        found: queue.Queue[Any] = queue.Queue()
        with blocking.InferenceServerClient(where) as client:
            client.start_stream(lambda result, error: found.put(error or result.as_numpy("OUT").tolist()))
            given = blocking.InferInput("IN", [2], "INT32")
            given.set_data_from_numpy(np.array([7, 8], np.int32))
            client.async_stream_infer("repeat", [given])
            answers = [found.get(timeout=120) for _ in range(2)]
            client.stop_stream()
            return answers

    async with front("triton") as (served, _):
        assert await asyncio.to_thread(ask, address(served)) == [[7], [8]]


async def test_a_unary_client_that_leaves_cancels_its_call(front: Front) -> None:
    async with front("triton") as (served, client):
        rows = tensor("FP32", np.ones((1, 3), np.float32), "ROWS")
        calls = [asyncio.create_task(client.infer("sum_rows", [rows], parameters={"n": n})) for n in range(20)]
        await until(lambda: inflight(served) > 0)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await client.close()
        await until(lambda: inflight(served) == 0)


@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_errors_have_grpcs_codes_and_one_sentence(front: Front, adapter: str) -> None:
    async with front(adapter) as (_, client):
        with pytest.raises(InferenceServerException, match="no negative numbers") as caught:
            await client.infer("sum_rows", [tensor("FP32", np.full((1, 3), -1, np.float32), "ROWS")])
        assert "INTERNAL" in caught.value.status()
        with pytest.raises(InferenceServerException) as caught:
            await client.infer("identity", [numbers(1)])
        assert "INVALID_ARGUMENT" in caught.value.status()


async def test_a_faulty_message_is_refused_before_any_backend_is_asked(front: Front) -> None:
    async with front() as (served, _):
        message = pb.ModelInferRequest(model_name="identity", raw_input_contents=[b"12"])
        message.inputs.add(name="IN_FP32", datatype="FP32", shape=[1])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await trailing(served, message)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert caught.value.details() == "input 'IN_FP32' has 2 bytes, expected 4 of FP32 in shape [1]"
        assert await executions(served) == 0


async def test_a_message_over_the_limit_is_refused(front: Front) -> None:
    async with front(server={"max_body": "1KiB"}) as (_, client):
        with pytest.raises(InferenceServerException, match="larger than max") as caught:
            await client.infer("identity", [tensor("UINT8", np.zeros((1, 2000), np.uint8))])
        assert "RESOURCE_EXHAUSTED" in caught.value.status()


async def test_a_key_is_asked_for_in_metadata(kserve_triton: KServeTriton, tmp_path: Path) -> None:
    config = config_of(
        tmp_path,
        {"main": {"adapter": "kserve", "url": kserve_triton.url}},
        server={"grpc": "127.0.0.1:0"},
        auth={"mode": "keys", "keys": {"acme": [hashlib.sha256(b"k1").hexdigest()]}},
    )
    async with gateway_of(config, ONE) as served:
        message = pb.ModelInferRequest(model_name="identity", raw_input_contents=[b"\1"])
        message.inputs.add(name="IN_BOOL", datatype="BOOL", shape=[1, 1])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await trailing(served, message)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        answer, _ = await trailing(served, message, metadata=[("authorization", "Bearer k1")])
        assert answer.raw_output_contents == [b"\1"]


@pytest.mark.parametrize(("remaining_s", "budget"), [(1.5, "1500"), (0.0, "1"), (None, None), (1e9, None)])
async def test_a_deadline_is_the_latency_budget(remaining_s: float | None, budget: str | None) -> None:
    request = RpcRequest([], remaining_s, FakeClock(), ResponseHeaders()).request("GET", "/v2")
    assert request.headers.get("x-latency-budget-ms") == budget


async def test_what_is_not_served_is_unimplemented(front: Front) -> None:
    async with front() as (_, client):
        with pytest.raises(InferenceServerException) as caught:
            await client.get_system_shared_memory_status()
        assert "UNIMPLEMENTED" in caught.value.status()
