"""The demo's models behind a real Triton: they stream, answer from the documentation and stop when told to."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc.aio as client_module

from gateway.adapters.onnx.encoder import OnnxEncoder
from gateway.features.demo.repository.answering import UNKNOWN
from gateway.features.demo.repository.encoders import Vectors
from tests.features.demo.conftest import Questions
from tests.fixtures.triton import RunningTriton

# grpc.aio keeps to the loop that it was first used on, and logs errors about closed ones.
pytestmark = pytest.mark.asyncio(loop_scope="module")

Client = client_module.InferenceServerClient
TIMEOUT_S = 120.0
QUESTION = "What happens when the store is down?"


@dataclass(frozen=True, slots=True)
class Answer:
    parts: list[str]
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int

    @property
    def text(self) -> str:
        return "".join(self.parts)


@pytest_asyncio.fixture(loop_scope="module")
async def client(triton: RunningTriton) -> AsyncIterator[Client]:
    async with Client(f"127.0.0.1:{triton.grpc_port}") as client:
        yield client


def tensor(name: str, values: Sequence[object]) -> Any:
    integer = isinstance(values[0], int)
    given = client_module.InferInput(name, [len(values)], "INT32" if integer else "BYTES")
    given.set_data_from_numpy(np.array(values, np.int32 if integer else np.object_))
    return given


def open_stream(client: Client, model: str, question: str, **numbers: int) -> Any:
    inputs = [tensor("text_input", [question.encode()]), *(tensor(name, [n]) for name, n in numbers.items())]

    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": model, "inputs": inputs, "enable_empty_final_response": True}

    return client.stream_infer(requests())


async def ask(client: Client, model: str, question: str, **numbers: int) -> Answer:
    parts: list[str] = []
    async with asyncio.timeout(TIMEOUT_S):
        async for result, error in open_stream(client, model, question, **numbers):
            assert error is None, error
            parts.append(result.as_numpy("text_output")[0].decode())
            if result.get_response().parameters["triton_final_response"].bool_param:
                return Answer(
                    parts,
                    result.as_numpy("finish_reason")[0].decode(),
                    int(result.as_numpy("prompt_tokens")[0]),
                    int(result.as_numpy("completion_tokens")[0]),
                )
    raise AssertionError("the stream ended without a final response")


async def embed(client: Client, *texts: str) -> Vectors:
    async with asyncio.timeout(TIMEOUT_S):
        result = await client.infer("embedder", [tensor("text_input", [text.encode() for text in texts])])
    vectors: Vectors = result.as_numpy("embedding")
    return vectors


async def metrics(triton: RunningTriton) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", triton.metrics_port)
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: triton\r\nconnection: close\r\n\r\n")
    text = await reader.read()
    writer.close()
    await writer.wait_closed()
    return text.decode()


async def cancelled(triton: RunningTriton, model: str) -> float:
    """How many answers the model itself has given up."""
    found = re.search(rf'nearhit_demo_cancelled_total{{model="{model}"}} (\S+)', await metrics(triton))
    return float(found[1]) if found else 0.0


@pytest.mark.parametrize(("model", "least"), [("light", 23), ("large", 28)])
async def test_the_answer_says_what_the_documentation_says(
    client: Client, questions: Questions, model: str, least: int
) -> None:
    """Measured: light 27 and large 30 of 30 answers hold the expected words."""
    answers = [await ask(client, model, q["ask"]) for q in questions.answered]
    right = [q["says"].lower() in a.text.lower() for q, a in zip(questions.answered, answers, strict=True)]
    print(
        f"{model}: {sum(right)} of {len(right)}",
        [q["ask"] for q, r in zip(questions.answered, right, strict=True) if not r],
    )
    assert sum(right) >= least


@pytest.mark.parametrize("model", ["light", "large"])
async def test_a_question_about_something_else_is_not_answered(
    client: Client, questions: Questions, model: str
) -> None:
    """No model of the demo makes something up; at most one of eight finds an accidental likeness."""
    answers = [(await ask(client, model, q)).text for q in questions.unanswered]
    assert answers.count(UNKNOWN) >= len(answers) - 1


async def test_the_light_model_is_faster_than_the_large_one(client: Client) -> None:
    """Server, network and streaming included. The shortest of 40 is what an answer takes when nothing else runs."""
    seconds: dict[str, list[float]] = {"light": [], "large": []}
    for _ in range(40):
        for model, times in seconds.items():
            started = time.perf_counter()
            await ask(client, model, QUESTION, max_tokens=6)
            times.append(time.perf_counter() - started)
    assert min(seconds["light"]) < min(seconds["large"])


@pytest.mark.parametrize("model", ["light", "large"])
async def test_an_answer_is_streamed_in_parts(client: Client, model: str) -> None:
    answer = await ask(client, model, QUESTION)
    assert len(answer.parts) > 1
    assert answer.finish_reason == "stop"
    assert answer.prompt_tokens == 8


@pytest.mark.parametrize("model", ["light", "large"])
async def test_an_answer_cut_by_max_tokens_says_so(client: Client, model: str) -> None:
    whole, short = await ask(client, model, QUESTION), await ask(client, model, QUESTION, max_tokens=5)
    assert (short.finish_reason, short.completion_tokens) == ("length", 5)
    assert whole.text.startswith(short.text)
    assert whole.completion_tokens > 5


async def test_of_a_transcript_the_last_user_turn_is_answered(client: Client) -> None:
    """Text-only backends are sent conversations as transcripts."""
    transcript = f"system: Be brief.\n\nuser: Hello!\n\nassistant: Hello.\n\nuser: {QUESTION}"
    assert (await ask(client, "large", transcript)).text == (await ask(client, "large", QUESTION)).text


@pytest.mark.parametrize("model", ["light", "large"])
async def test_cancelling_reaches_the_model(client: Client, triton: RunningTriton, model: str) -> None:
    """A client that goes away must not keep a model busy: the model itself sees it and gives up."""
    before = await cancelled(triton, model)
    stream = open_stream(client, model, QUESTION, chunk_interval_ms=1000)
    async with asyncio.timeout(TIMEOUT_S):
        first, error = await anext(aiter(stream))
        assert error is None
        assert first.as_numpy("text_output")[0]
        assert stream.cancel()
        while await cancelled(triton, model) == before:
            pass  # every turn is a round trip to the server


@pytest.mark.parametrize("model", ["light", "large"])
async def test_slow_streams_run_side_by_side(client: Client, model: str) -> None:
    """One instance serves many clients: a stream that waits does not hold up the next one."""
    slow = asyncio.ensure_future(ask(client, model, QUESTION, chunk_interval_ms=2000))
    quick = asyncio.ensure_future(ask(client, model, QUESTION))
    done, _ = await asyncio.wait({slow, quick}, timeout=TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
    assert done == {quick}
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)


async def test_the_embedder_gives_what_the_gateways_own_encoder_gives(client: Client, model_dir: Path) -> None:
    """One text at a time: activations are quantised by batch, so that batches of different texts differ by 0.02."""
    own = OnnxEncoder(model_dir)
    for text in ("How long is an answer kept?", "x", "Wie lange bleibt eine Antwort frisch?"):
        vector = (await embed(client, text))[0]
        assert vector @ own.encode([text])[0].vector > 0.999


async def test_the_embedder_takes_several_texts(client: Client) -> None:
    vectors = await embed(client, "How long is an answer kept?", "x", "Wie lange bleibt eine Antwort frisch?")
    assert vectors.shape == (3, 384)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-4)
