"""A model in the gateway itself, first in the chain, with a remote one behind it: by the official clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import numpy as np
import onnxruntime
import openai
import pytest
import tritonclient.grpc.aio as grpc
import tritonclient.http as http

from gateway.__main__ import main
from gateway.adapters.onnx.model_files import MODEL, ModelMissing, default_model_dir
from gateway.app import running
from gateway.config.policy.load import policy_from_text
from tests.fixtures.gateways import BOTH_CACHES, TIERS, Served, config_of, gateway_of
from tests.fixtures.onnx_models import CLASSIFIER
from tests.fixtures.several import counted, policy_of
from tests.fixtures.upstream import Upstream
from tests.http_server.conftest import openai_client

EDGE = {"adapter": "onnx", "path": str(CLASSIFIER), "task": "classify", "adaptive": "off"}
CASCADE = policy_of("light: light, large: large, escalate_above: 0, cascade: {check: logprobs, accept_above: 0.96}")
QUESTION, ANSWER = "Thanks for that", "thanks"  # 0.985


@asynccontextmanager
async def edge(tmp_path: Path, large: Upstream, policy: str = TIERS, **section: Any) -> AsyncIterator[Served]:
    backends = {"light": {**EDGE, **section}, "large": {"adapter": "openai", "url": large.url, "model": "large"}}
    async with gateway_of(config_of(tmp_path, backends), policy) as served:
        yield served


def asked(question: str = QUESTION, **fields: Any) -> Any:
    return {"model": "m", "messages": [{"role": "user", "content": question}], **fields}


async def test_openais_client_streams_from_the_machine_and_the_answer_is_cached(
    tmp_path: Path, large: Upstream
) -> None:
    async with edge(tmp_path, large) as served, openai_client(served) as client:
        stream = await client.chat.completions.create(**asked(stream=True, stream_options={"include_usage": True}))
        chunks = [chunk async for chunk in stream]
        assert "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices) == ANSWER
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 1
        again = await client.chat.completions.with_raw_response.create(**asked())
        assert "hit; detail=exact" in again.headers["Cache-Status"]
        assert again.parse().choices[0].message.content == ANSWER
        assert not large.chats
        assert (await anext(aiter(client.models.list()))).id == "classify"


async def test_anthropics_client_is_answered_too(tmp_path: Path, large: Upstream) -> None:
    async with (
        edge(tmp_path, large) as served,
        anthropic.AsyncAnthropic(base_url=served.url, api_key="k", max_retries=0) as client,
    ):
        said = await client.messages.create(**asked(max_tokens=100))
    assert [block.text for block in said.content if block.type == "text"] == [ANSWER]
    assert said.stop_reason == "end_turn"


@pytest.mark.parametrize("fields", [{"tools": [{"type": "function", "function": {"name": "f"}}]}, {"n": 2}])
async def test_what_it_cannot_do_goes_to_the_next_backend_without_a_mark_against_it(
    tmp_path: Path, large: Upstream, fields: dict[str, Any]
) -> None:
    async with edge(tmp_path, large) as served:
        for i in range(8):
            answer = await served.chat(f"Which one is number {i}?", **fields)
            assert answer.headers["x-nearhit-backend"] == "large"
        assert counted(served, "backend_requests")["unfit"] == 8
        assert (await served.chat(QUESTION)).headers["x-nearhit-backend"] == "light", "its breaker is closed"


async def test_alone_it_refuses_what_it_cannot_do_with_400(tmp_path: Path) -> None:
    async with gateway_of(config_of(tmp_path, {"main": EDGE}), BOTH_CACHES) as served, openai_client(served) as client:
        with pytest.raises(openai.BadRequestError, match=r"a text has \d+ tokens and the model on this machine"):
            await client.chat.completions.create(**asked("word " * 300))


async def test_a_label_that_is_sure_is_served_and_another_goes_on(tmp_path: Path, large: Upstream) -> None:
    async with edge(tmp_path, large, CASCADE) as served:
        sure = await served.chat(QUESTION)
        assert (sure.text, sure.headers["x-nearhit-backend"]) == (ANSWER, "light")
        assert sure.json["choices"][0]["logprobs"] is None, "the client asked for none"
        assert (await served.chat("Nice weather")).headers["x-nearhit-backend"] == "large"  # 0.935
        assert counted(served, "cascade") == {"accepted": 1.0, "escalated": 1.0}


async def test_embeddings_are_made_on_the_machine(tmp_path: Path) -> None:
    section = {"adapter": "onnx", "path": str(default_model_dir() / MODEL), "task": "embed"}
    async with (
        gateway_of(config_of(tmp_path, {"main": section}), BOTH_CACHES) as served,
        openai_client(served) as client,
    ):
        made = await client.embeddings.create(model="m", input=["one", "two"])
        assert [len(each.embedding) for each in made.data] == [384, 384]
        again = await client.embeddings.with_raw_response.create(model="m", input=["two"])
        assert "hit; detail=exact" in again.headers["Cache-Status"], "input by input"


TENSORS = {"adapter": "onnx", "path": str(CLASSIFIER), "task": "tensors"}
IDS = np.array([[0, 12, 40]], np.int64)


def inputs(ids: np.ndarray[Any, Any] = IDS) -> list[http.InferInput]:
    given = []
    for name, array in (
        ("input_ids", ids),
        ("attention_mask", np.ones_like(ids)),
        ("token_type_ids", np.zeros_like(ids)),
    ):
        given.append(http.InferInput(name, list(array.shape), "INT64"))
        given[-1].set_data_from_numpy(array)
    return given


async def test_tritons_client_asks_any_graph_with_tensors_and_the_answer_is_cached(tmp_path: Path) -> None:
    async with gateway_of(config_of(tmp_path, {"main": TENSORS}), BOTH_CACHES) as served:

        def ask() -> tuple[Any, Any, Any]:
            with http.InferenceServerClient(served.url.removeprefix("http://")) as client:
                assert client.is_server_ready()
                assert client.is_model_ready("kinds")
                return (
                    client.get_model_metadata("kinds"),
                    client.infer("kinds", inputs()),
                    client.infer("kinds", inputs()),
                )

        told, first, again = await asyncio.to_thread(ask)
        graph = onnxruntime.InferenceSession(str(CLASSIFIER / "model.onnx"))
        (expected,) = graph.run(
            None,
            {
                each["name"]: IDS
                if each["name"] == "input_ids"
                else np.ones_like(IDS) * (each["name"] == "attention_mask")
                for each in told["inputs"]
            },
        )
        assert np.array_equal(first.as_numpy("logits"), expected)
        assert np.array_equal(again.as_numpy("logits"), expected)
        assert told["outputs"] == [{"name": "logits", "datatype": "FP32", "shape": [-1, 3]}]
        body = {
            "inputs": [
                {"name": n, "datatype": "INT64", "shape": [1, 3], "data": a.tolist()}
                for n, a in (
                    ("input_ids", IDS),
                    ("attention_mask", np.ones_like(IDS)),
                    ("token_type_ids", np.zeros_like(IDS)),
                )
            ]
        }
        asked = await served.post("/v2/models/kinds/infer", body)
        assert "hit; detail=exact" in asked.cache_status, "JSON and bytes are one"
        assert asked.json["outputs"][0]["data"] == pytest.approx(expected.ravel().tolist(), rel=1e-5)


async def test_the_grpc_port_answers_tensors_too_whole_and_as_a_stream(tmp_path: Path) -> None:
    config = config_of(tmp_path, {"main": TENSORS}, server={"grpc": "127.0.0.1:0"})
    given = [grpc.InferInput(each.name(), each.shape(), each.datatype()) for each in inputs()]
    for each, array in zip(given, (IDS, np.ones_like(IDS), np.zeros_like(IDS)), strict=True):
        each.set_data_from_numpy(array)

    async def asked() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "other", "inputs": given}

    async with (
        gateway_of(config, BOTH_CACHES) as served,
        grpc.InferenceServerClient("{}:{}".format(*served.gateway.grpc_address)) as client,
    ):
        whole = await client.infer("kinds", given)
        answers = [answer async for answer, error in client.stream_infer(asked()) if error is None]
        assert whole.as_numpy("logits").shape == (1, 3)
        assert np.array_equal(answers[0].as_numpy("logits"), whole.as_numpy("logits"))
        assert len(answers) == 1


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([], "'inputs' is an empty array: expected an array of 1 to"),
        (
            [{"name": "x", "datatype": "INT64", "shape": [1], "data": [1]}],
            "expected input_ids, attention_mask, token_type",
        ),
        ("FP32", "'input_ids' is of datatype 'FP32', expected INT64"),
        ("flat", r"'input_ids' has shape [3], expected"),
    ],
)
async def test_tensors_that_do_not_fit_are_refused_by_name(tmp_path: Path, given: Any, sentence: str) -> None:
    if isinstance(given, str):
        shape, kind = ([3], "INT64") if given == "flat" else ([1, 3], given)
        names = ("input_ids", "attention_mask", "token_type_ids")
        given = [{"name": name, "datatype": kind, "shape": shape, "data": [1, 2, 3]} for name in names]
    async with gateway_of(config_of(tmp_path, {"main": TENSORS}), BOTH_CACHES) as served:
        answer = await served.post("/v2/models/kinds/infer", {"inputs": given})
        assert answer.status == 400
        assert sentence in answer.json["error"]
        assert (await served.chat("Hello")).status == 400


def test_check_says_in_one_sentence_that_there_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "default.yaml").write_text(policy_of("backend: edge"))
    config = tmp_path / "config.yaml"
    config.write_text("version: 1\nbackends:\n  edge: {adapter: onnx, path: nowhere, task: classify}\n")
    assert main(["check", "--config", str(config)]) == 1
    said = capsys.readouterr()
    fault = "backends.edge.path: nowhere has no model.onnx, expected a folder exported by Hugging Face"
    assert fault in said.out + said.err


async def test_a_gateway_without_the_model_does_not_start(tmp_path: Path) -> None:
    config = config_of(tmp_path, {"main": {**EDGE, "path": str(tmp_path / "gone")}})
    with pytest.raises(ModelMissing, match=r"has no model\.onnx"):
        async with running(config, policy_from_text(BOTH_CACHES, "policy.yaml", config), {}):
            pass
