"""Models in this process: real graphs, as Hugging Face Optimum exported them."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import orjson
import pytest

from gateway.adapters.onnx.model_dir import ModelDir
from gateway.adapters.onnx.model_files import MODEL, ModelCorrupt, ModelMissing, default_model_dir
from gateway.config import Timeouts
from gateway.context import RequestContext
from gateway.entries import Vector
from gateway.errors import BackendError, BackendOverloaded, UnsupportedByBackend
from gateway.features.onnx_backend.backend import OnnxBackend
from gateway.features.onnx_backend.text_models import (
    ClassifierInput,
    ClassifierOutput,
    OnnxTextClassifier,
    SentenceEmbedder,
)
from gateway.messages import EventStream, FullBody
from tests.contracts.test_backend import request_of
from tests.fixtures.onnx_models import CLASSIFIER, classifier, onnx
from tests.fixtures.waiting import until

QUESTION = "Thanks for that"


@asynccontextmanager
async def backend_of(model: Any, **keys: Any) -> AsyncIterator[OnnxBackend]:
    backend = onnx(model, **keys)
    try:
        yield backend
    finally:
        await backend.close()


def chat(question: Any = QUESTION, **fields: Any) -> RequestContext:
    return request_of(messages=[{"role": "user", "content": question}], **fields)


async def whole(backend: OnnxBackend, request: RequestContext) -> dict[str, Any]:
    response = await backend.send(request)
    assert isinstance(response.body, FullBody)
    body: dict[str, Any] = orjson.loads(response.body.data)
    return body


async def deltas(backend: OnnxBackend, request: RequestContext) -> list[str]:
    response = await backend.send(request)
    assert isinstance(response.body, EventStream)
    chunks = [orjson.loads(event.data) async for event in response.body.events if event.data != b"[DONE]"]
    return [choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]]


@pytest.mark.parametrize(
    "request_",
    [
        chat(n=2),
        chat(tools=[{"type": "function"}]),
        chat(response_format={"type": "json_object"}),
        chat([{"type": "image_url", "image_url": {"url": "data:,"}}]),
        chat(logprobs=True, top_logprobs=21),
        request_of("/v1/completions", prompt=["one", "two"]),
        request_of("/v1/completions", prompt="one", echo=True),
        request_of("/v1/embeddings", input="x"),
    ],
)
async def test_what_a_classifier_cannot_do_is_unfit_and_takes_no_place(request_: RequestContext) -> None:
    async with backend_of(classifier()) as backend:
        with pytest.raises(UnsupportedByBackend) as refused:
            await backend.send(request_)
        assert (refused.value.status, refused.value.sent) == (400, False)
        assert backend.occupancy.inflight == 0


class Scripted(OnnxTextClassifier):
    """A pass that ends when it is let, or when it is broken off."""

    def __init__(self) -> None:
        self.let = threading.Event()
        self.passes: list[str] = []
        self.broken_off = 0

    def classify(self, question: ClassifierInput, options: onnxruntime.RunOptions) -> ClassifierOutput:
        self.passes.append(question.text)
        while not self.let.wait(0.001):
            if options.terminate:
                self.broken_off += 1
                raise RuntimeError("Exiting due to terminate flag being set to true.")
        return ClassifierOutput("x", (), 1)


async def test_the_event_loop_goes_on_while_the_model_is_in_a_pass_which_ends_with_its_client() -> None:
    model = Scripted()
    async with backend_of(model) as backend:
        asked = asyncio.create_task(backend.send(chat()))
        await until(lambda: model.passes)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert not asked.done()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert backend.occupancy.inflight == 0
        await until(lambda: model.broken_off == 1)


async def test_a_pass_is_broken_off_when_its_time_is_up() -> None:
    model, quick = Scripted(), Timeouts.model_validate({"first_byte": "50ms"})
    async with backend_of(model, timeouts=quick) as backend:
        with pytest.raises(BackendError, match="backend 'b' sent no answer in time") as late:
            await backend.send(chat())
        assert late.value.status == 504
        assert backend.occupancy.inflight == 0
        await until(lambda: model.broken_off == 1)
        model.let.set()
        assert (await whole(backend, chat()))["choices"][0]["message"]["content"] == "x"


async def test_who_waits_too_long_for_a_place_is_refused() -> None:
    model = Scripted()
    async with backend_of(model, max_concurrency=1) as backend:
        first = asyncio.create_task(backend.send(chat()))
        await until(lambda: backend.occupancy.inflight == 1)
        waiting = [asyncio.create_task(backend.send(chat())) for _ in range(40)]
        await until(lambda: any(task.done() for task in waiting))
        refused = [task.exception() for task in waiting if task.done()]
        assert all(isinstance(error, BackendOverloaded) for error in refused)
        model.let.set()
        await asyncio.gather(first, *waiting, return_exceptions=True)
        assert backend.occupancy.inflight == 0


async def test_lists_of_texts_take_turns() -> None:
    class Turns(SentenceEmbedder):
        def __init__(self) -> None:
            self.read: list[str] = []
            self.let = threading.Event()

        def embed(self, text: str, options: onnxruntime.RunOptions) -> Vector:
            self.let.wait()
            self.read.append(text)
            return np.ones(2, np.float32)

    model = Turns()
    async with backend_of(model) as backend:
        asked = [
            asyncio.create_task(backend.send(request_of("/v1/embeddings", input=[name] * 20))) for name in ("a", "b")
        ]
        await until(lambda: backend.occupancy.inflight == 2)
        model.let.set()
        await asyncio.gather(*asked)
    assert "b" in model.read[:4]


def test_a_pass_is_broken_off_by_its_options() -> None:
    options = onnxruntime.RunOptions()
    options.terminate = True
    with pytest.raises(Exception, match="terminate"):
        classifier().classify(ClassifierInput(QUESTION), options)


async def test_a_model_that_fails_is_an_error_that_does_not_repeat_the_prompt() -> None:
    class Failing(Scripted):
        def classify(self, question: ClassifierInput, options: onnxruntime.RunOptions) -> ClassifierOutput:
            raise ValueError(question.text)

    async with backend_of(Failing()) as backend:
        with pytest.raises(BackendError, match=r"backend 'b' failed \(ValueError\)"):
            await backend.send(chat("my secret"))
        assert await backend.ready()


async def test_vectors_are_those_of_the_embedder() -> None:
    """The shipped all-MiniLM-L6-v2, which is built by `make setup`."""
    async with backend_of(SentenceEmbedder(ModelDir(default_model_dir() / MODEL), threads=1)) as backend:
        body = await whole(backend, request_of("/v1/embeddings", input=["a scope", "who may share"]))
        vectors = np.array([item["embedding"] for item in body["data"]])
        assert vectors.shape == (2, 384)
        assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1], abs=1e-5)
        with pytest.raises(
            UnsupportedByBackend, match=r"a text has \d+ tokens and the model on this machine reads 1 to 256"
        ):
            await backend.send(request_of("/v1/embeddings", input=["word " * 500]))
        with pytest.raises(UnsupportedByBackend, match="serves embeddings only"):
            await backend.send(chat())


async def test_a_classifier_answers_with_its_label_and_how_sure_it_is() -> None:
    async with backend_of(classifier()) as backend:
        for text, label in (
            ("What is a hedge?", "question"),
            ("Thanks for that", "thanks"),
            ("It is broken", "complaint"),
        ):
            body = await whole(backend, chat(text, logprobs=True, top_logprobs=3))
            choice = body["choices"][0]
            assert (choice["message"]["content"], choice["finish_reason"]) == (label, "stop")
            (token,) = choice["logprobs"]["content"]
            assert {other["token"] for other in token["top_logprobs"]} == {"question", "thanks", "complaint"}
            assert sum(np.exp(other["logprob"]) for other in token["top_logprobs"]) == pytest.approx(1)
            assert body["usage"]["completion_tokens"] == 1
        assert "".join(await deltas(backend, chat("Many thanks.", stream=True))) == "thanks"
        assert (await whole(backend, chat()))["choices"][0]["logprobs"] is None


async def test_a_classifier_reads_a_prompt_and_the_last_text_of_the_user() -> None:
    async with backend_of(classifier()) as backend:
        body = await whole(backend, request_of("/v1/completions", prompt="Thanks for that", logprobs=2))
        assert body["choices"][0]["text"] == "thanks"
        told = body["choices"][0]["logprobs"]
        assert (told["tokens"], told["text_offset"], len(told["top_logprobs"][0])) == (["thanks"], [0], 2)
        said = [("user", "It is broken"), ("assistant", "Is it?"), ("user", QUESTION), ("assistant", "So")]
        body = await whole(backend, request_of(messages=[{"role": role, "content": text} for role, text in said]))
        assert body["choices"][0]["message"]["content"] == "thanks"


async def test_a_text_beyond_the_context_is_refused_in_a_sentence() -> None:
    async with backend_of(classifier()) as backend:
        with pytest.raises(
            UnsupportedByBackend, match=r"a text has \d+ tokens and the model on this machine reads 1 to 64"
        ):
            await backend.send(chat("word " * 200))
        assert backend.occupancy.inflight == 0


def broken(tmp_path: Path, change: Callable[[Path], object]) -> ModelDir:
    copy = tmp_path / "model"
    shutil.copytree(CLASSIFIER, copy)
    change(copy)
    return ModelDir(copy)


def test_a_folder_that_is_no_model_is_said_so_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match=r"has no model\.onnx, expected a folder exported by Hugging Face Optimum"):
        ModelDir(tmp_path)
    with pytest.raises(ModelCorrupt, match="expected some of attention_mask"):
        SentenceEmbedder(ModelDir(CLASSIFIER), threads=1)
    with pytest.raises(ModelCorrupt, match=r"expected id2label in config\.json"):
        OnnxTextClassifier(broken(tmp_path, lambda path: (path / "config.json").write_text("{}")), threads=1)


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("model.onnx", "none", "model.onnx cannot be loaded"),
        ("tokenizer.json", "{}", "tokenizer.json cannot be read"),
        ("config.json", "[]", "config.json cannot be read, expected a JSON object"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, file: str, text: str, sentence: str) -> None:
    with pytest.raises(ModelCorrupt, match=sentence):
        OnnxTextClassifier(broken(tmp_path, lambda path: (path / file).write_text(text)), threads=1)
