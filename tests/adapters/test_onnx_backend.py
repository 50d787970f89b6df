"""Models in this process: real graphs, as Hugging Face Optimum exported them."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import orjson
import pytest

from gateway.adapters.onnx.decoder import Decoder, Memory
from gateway.adapters.onnx.generator import Generator, Piece
from gateway.adapters.onnx.model_dir import ModelFolder
from gateway.adapters.onnx.model_files import MODEL, ModelCorrupt, ModelMissing, default_model_dir
from gateway.adapters.onnx.text_models import Classifier, Vectors
from gateway.body_streams import close_body
from gateway.context import RequestContext
from gateway.errors import BackendError, BackendFull, Unfit
from gateway.messages import EventStream, Whole
from gateway.upstream.onnx_backend import OnnxBackend
from tests.contracts.test_backend import request_of
from tests.fixtures.onnx_models import LEARNT, MODELS, generator, onnx
from tests.fixtures.waiting import until

QUESTION, ANSWER = LEARNT[30]  # "Hello" in four scripts
EXPORTS = ("generate", "generate-no-past")


@asynccontextmanager
async def backend_of(model: Any, **keys: Any) -> AsyncIterator[OnnxBackend]:
    backend = onnx(model, **keys)
    try:
        yield backend
    finally:
        await backend.close()


def chat(question: str = QUESTION, **fields: Any) -> RequestContext:
    return request_of(messages=[{"role": "user", "content": question}], **fields)


async def whole(backend: OnnxBackend, request: RequestContext) -> dict[str, Any]:
    response = await backend.send(request)
    assert isinstance(response.body, Whole)
    body: dict[str, Any] = orjson.loads(response.body.data)
    return body


async def deltas(backend: OnnxBackend, request: RequestContext) -> list[str]:
    response = await backend.send(request)
    assert isinstance(response.body, EventStream)
    chunks = [orjson.loads(event.data) async for event in response.body.events if event.data != b"[DONE]"]
    return [choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]]


@pytest.mark.parametrize("export", EXPORTS)
async def test_both_kinds_of_export_say_what_was_learnt(export: str) -> None:
    async with backend_of(generator(export)) as backend:
        for question, answer in LEARNT:
            body = await whole(backend, chat(question))
            assert body["choices"][0]["message"]["content"] == answer
            assert body["choices"][0]["finish_reason"] == "stop"
            assert body["usage"]["completion_tokens"] > 1


async def test_a_stream_says_token_by_token_what_a_whole_answer_says_and_parts_no_sign() -> None:
    async with backend_of(generator()) as backend:
        for question, answer in LEARNT[30:33]:
            texts = await deltas(backend, chat(question, stream=True))
            assert "".join(texts) == answer
            assert "\ufffd" not in answer
            assert len([text for text in texts if text]) > 8


async def test_draws_are_the_same_for_the_same_seed_and_others_for_another() -> None:
    async with backend_of(generator()) as backend:

        async def said(seed: int, **fields: Any) -> str:
            body = await whole(backend, chat("Tell me about crowds", temperature=1.8, seed=seed, **fields))
            return str(body["choices"][0]["message"]["content"])

        first = await said(1)
        assert await said(1) == first
        assert (
            "".join(await deltas(backend, chat("Tell me about crowds", temperature=1.8, seed=1, stream=True))) == first
        )
        assert len({await said(seed) for seed in range(2, 6)} | {first}) > 1
        assert await said(3, top_p=0.01) == await said(4, top_p=0.01), "nothing but the likeliest is left"


async def test_an_answer_ends_at_a_stop_string_and_at_its_bound() -> None:
    async with backend_of(generator(max_tokens=20)) as backend:
        body = await whole(backend, chat("List the verdicts.", stop=["\n2", "zzz"]))
        assert body["choices"][0]["message"]["content"] == "1. exact"
        assert body["choices"][0]["finish_reason"] == "stop"
        for fields, tokens in ({"max_tokens": 3}, 3), ({}, 20), ({"max_tokens": 100}, 20):
            body = await whole(backend, chat(**fields))
            assert body["choices"][0]["finish_reason"] == "length"
            assert body["usage"]["completion_tokens"] == tokens
            assert ANSWER.startswith(body["choices"][0]["message"]["content"])


async def test_completions_go_on_with_the_prompt() -> None:
    async with backend_of(generator()) as backend:
        prompt = f"<|user|>{QUESTION}<|end|><|assistant|>Hello, "
        body = await whole(backend, request_of("/v1/completions", prompt=prompt, logprobs=1))
        assert body["choices"][0]["text"] == ANSWER.removeprefix("Hello, ")
        told = body["choices"][0]["logprobs"]
        assert len(told["tokens"]) == len(told["token_logprobs"]) == len(told["text_offset"])
        assert len(told["tokens"]) == body["usage"]["completion_tokens"]


async def test_log_probabilities_are_told_to_whom_asks() -> None:
    async with backend_of(generator()) as backend:
        body = await whole(backend, chat("What is a backend?", logprobs=True, top_logprobs=2))
        content = body["choices"][0]["logprobs"]["content"]
        assert "".join(token["token"] for token in content) == "A named service that answers."
        assert b"".join(bytes(token["bytes"]) for token in content) == b"A named service that answers."
        assert all(-0.1 < token["logprob"] <= 0 for token in content)
        assert all(token["top_logprobs"][0]["token"] == token["token"] for token in content)
        assert all(len(token["top_logprobs"]) == 2 for token in content)
        assert (await whole(backend, chat()))["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("export", EXPORTS)
async def test_a_prompt_beyond_the_context_is_refused_in_a_sentence(export: str) -> None:
    async with backend_of(generator(export)) as backend:
        with pytest.raises(
            Unfit, match=r"the prompt has \d+ tokens and the model on this machine reads 192"
        ) as refused:
            await backend.send(chat("word " * 200))
        assert (refused.value.status, refused.value.sent) == (400, False)
        assert backend.crowd.inflight == 0


async def test_a_long_prompt_read_in_chunks_is_the_same_prompt() -> None:
    """170 tokens: two chunks where keys and values are kept, one text where they are not."""
    read = []
    for export in EXPORTS:
        folder = ModelFolder(MODELS / export)
        decoder, memory = Decoder(folder.session(1), folder.path), Memory()
        ids = [5 + i % 300 for i in range(170)]
        chunks = [ids[:128], ids[128:]] if decoder.remembers else [ids]
        read.append([decoder.read(memory, chunk, onnxruntime.RunOptions()) for chunk in chunks][-1])
    assert np.allclose(read[0], read[1], atol=1e-3)


async def test_what_a_text_model_cannot_do_is_unfit_and_takes_no_place() -> None:
    async with backend_of(generator()) as backend:
        for request in (chat(n=2), request_of("/v1/embeddings", input="x"), chat(tools=[{"type": "function"}])):
            with pytest.raises(Unfit):
                await backend.send(request)
        assert backend.crowd.inflight == 0


class Scripted:
    """A model that writes a letter a step, when it is let."""

    def __init__(self) -> None:
        self.let = threading.Semaphore(0)
        self.steps: list[str] = []

    def asked(self, call: Any, body: dict[str, Any]) -> str:
        return str(body["messages"][-1]["content"])

    def pieces(self, asked: str, options: onnxruntime.RunOptions) -> Iterator[Piece]:
        for number in range(1000):
            self.let.acquire()
            if options.terminate:
                raise RuntimeError("Exiting due to terminate flag being set to true.")
            self.steps.append(asked)
            yield Piece("x", output_tokens=number)


async def test_answers_are_written_in_turn_and_a_place_is_free_when_its_client_leaves() -> None:
    model = Scripted()
    async with backend_of(model, max_concurrency=2) as backend:
        asking = [asyncio.create_task(backend.send(chat(name, stream=True))) for name in ("a", "b")]
        await until(lambda: backend.crowd.inflight == 2)
        third = asyncio.create_task(backend.send(chat("c", stream=True)))
        await until(lambda: backend.crowd.queued == 1)
        model.let.release(2)
        first, second = [await task for task in asking]
        model.let.release(4)
        await until(lambda: len(model.steps) == 6)
        assert sorted(model.steps[:2]) == sorted(model.steps[2:4]) == sorted(model.steps[4:]) == ["a", "b"]
        closing = asyncio.create_task(close_body(first.body))
        await asyncio.sleep(0)
        model.let.release(3)  # one for the turn that is on, in which the first one may be
        await closing
        await until(lambda: third.done() or (model.let.release(), False)[1])
        assert backend.crowd.inflight == 2
        assert "c" in model.steps
        model.let.release(100)
        for body in (second.body, (await third).body):
            await close_body(body)
        assert backend.crowd == replace(backend.crowd, inflight=0, queued=0)
        model.let.release(2000)


async def test_the_event_loop_goes_on_while_the_model_is_in_a_pass() -> None:
    model = Scripted()
    async with backend_of(model) as backend:
        asked = asyncio.create_task(backend.send(chat(stream=True)))
        for _ in range(1000):
            await asyncio.sleep(0)
        assert not asked.done()
        asked.cancel()
        model.let.release(2000)
        with pytest.raises(asyncio.CancelledError):
            await asked
        await until(lambda: backend.crowd.inflight == 0)


async def test_who_waits_too_long_for_a_place_is_refused() -> None:
    model = Scripted()
    async with backend_of(model, max_concurrency=1) as backend:
        first = asyncio.create_task(backend.send(chat(stream=True)))
        await until(lambda: backend.crowd.inflight == 1)
        waiting = [asyncio.create_task(backend.send(chat(stream=True))) for _ in range(40)]
        await until(lambda: any(task.done() for task in waiting))
        refused = [task.exception() for task in waiting if task.done()]
        assert all(isinstance(error, BackendFull) for error in refused)
        model.let.release(10_000)
        for task in (first, *waiting):
            task.cancel()
        await asyncio.gather(first, *waiting, return_exceptions=True)
        if not first.cancelled() and first.exception() is None:
            await close_body(first.result().body)


def test_a_pass_is_broken_off_where_nobody_waits() -> None:
    folder = ModelFolder(MODELS / "generate")
    options = onnxruntime.RunOptions()
    options.terminate = True
    with pytest.raises(Exception, match="terminate"):
        Decoder(folder.session(1), folder.path).read(Memory(), [5, 6, 7], options)


async def test_a_model_that_fails_is_an_error_that_does_not_repeat_the_prompt() -> None:
    class Failing(Scripted):
        def pieces(self, asked: str, options: onnxruntime.RunOptions) -> Iterator[Piece]:
            raise ValueError(asked)

    async with backend_of(Failing()) as backend:
        with pytest.raises(BackendError, match=r"backend 'b' failed \(ValueError\)"):
            await backend.send(chat("my secret"))
        assert await backend.ready()


async def test_vectors_are_those_of_the_embedder() -> None:
    """The shipped all-MiniLM-L6-v2, which is built by `make setup`."""
    async with backend_of(Vectors(ModelFolder(default_model_dir() / MODEL), threads=1)) as backend:
        body = await whole(backend, request_of("/v1/embeddings", input=["a scope", "who may share"]))
        vectors = np.array([item["embedding"] for item in body["data"]])
        assert vectors.shape == (2, 384)
        assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1], abs=1e-5)
        with pytest.raises(Unfit, match=r"a text has \d+ tokens and the model on this machine reads 1 to 256"):
            await backend.send(request_of("/v1/embeddings", input=["word " * 500]))
        with pytest.raises(Unfit, match="writes none"):
            await backend.send(chat())


async def test_a_classifier_answers_with_its_label_and_how_sure_it_is() -> None:
    async with backend_of(Classifier(ModelFolder(MODELS / "classify"), threads=1)) as backend:
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


def broken(tmp_path: Path, change: Callable[[Path], object], name: str = "generate") -> ModelFolder:
    copy = tmp_path / "model"
    shutil.copytree(MODELS / name, copy)
    change(copy)
    return ModelFolder(copy)


def test_a_folder_that_is_no_model_is_said_so_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match=r"has no model\.onnx, expected a folder as Hugging Face Optimum exports it"):
        ModelFolder(tmp_path)
    with pytest.raises(ModelCorrupt, match="is no decoder-only language model"):
        generator("classify")
    with pytest.raises(ModelCorrupt, match="expected some of attention_mask"):
        Vectors(ModelFolder(MODELS / "generate"), threads=1)


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("model.onnx", "none", "model.onnx cannot be loaded"),
        ("tokenizer.json", "{}", "tokenizer.json cannot be read"),
        ("config.json", "[]", "config.json cannot be read, expected a JSON object"),
        ("chat_template.jinja", "{% for %}", "the chat template in"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, file: str, text: str, sentence: str) -> None:
    with pytest.raises(ModelCorrupt, match=sentence):
        Generator(broken(tmp_path, lambda path: (path / file).write_text(text)), threads=1, max_tokens=10)
