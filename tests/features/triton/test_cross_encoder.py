"""The verifier's cross-encoder as a service, and models that gateways share: one real Triton with both."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from gateway.adapters.onnx.cross_encoder import ABOUT_FILE, UNREAD_LOGIT, OnnxCrossEncoder
from gateway.adapters.onnx.model_files import MODEL, TOKENIZER_FILE, default_model_dir
from gateway.adapters.onnx.tokenizer import MAX_PAIR_TOKENS
from gateway.cache.model_factory import build_verifier
from gateway.cache.verifiers import WEIGHTS, LearnedVerifier, TwoStageVerifier, load_weights
from gateway.cli.doctor.machine import inspect_models
from gateway.config import VerifierConfig
from gateway.config.schema import EmbeddingModel
from gateway.errors import ModelUnavailable, StartupError
from gateway.features.embedding_model.triton_models import CROSS_ENCODER, EMBEDDER, config_of
from gateway.features.triton.cross_encoder import FORM, TOLERANCE, TritonCrossEncoder
from gateway.features.triton.encoder import TritonEncoder
from gateway.features.triton.served_model import COOLDOWN_S, FAILURES, VERIFY_INTERVAL_S, MetadataCache
from gateway.ports import StoredCandidate
from tests.fixtures.clock import FakeClock
from tests.fixtures.float_triton import FloatTriton, float_triton
from tests.fixtures.gateways import BOTH_CACHES, LOOSE, gateway_of
from tests.fixtures.gateways import config_of as gateway_config
from tests.fixtures.triton import CHECKOUT, free_ports
from tests.fixtures.upstream import Upstream, serving
from tests.fixtures.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
MODEL_DIR = default_model_dir() / MODEL
TOKENIZER = MODEL_DIR / TOKENIZER_FILE
GOLDEN = json.loads((Path(__file__).parents[2] / "adapters" / "cross_encoder_golden.json").read_text(encoding="utf-8"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FloatTriton]:
    async with float_triton(tmp_path_factory.mktemp("float")) as running:
        yield running


def cross_encoder(url: str, clock: FakeClock | None = None, weights: Path = WEIGHTS) -> TritonCrossEncoder:
    return TritonCrossEncoder(
        url, CROSS_ENCODER, TOKENIZER, timeout_s=30.0, clock=clock or FakeClock(), weights=weights
    )


@pytest.mark.parametrize("name", [EMBEDDER, CROSS_ENCODER])
async def test_what_lies_in_deploy_is_what_the_command_writes(name: str) -> None:
    assert (CHECKOUT / "deploy" / "triton" / "models" / name / "config.pbtxt").read_text() == config_of(name, cpu=False)
    assert "KIND_CPU, count: 1 }" in config_of(name, cpu=True)


async def test_logits_are_near_those_in_process_and_do_not_depend_on_what_else_is_asked(served: FloatTriton) -> None:
    there, here = await asyncio.to_thread(cross_encoder, served.url), OnnxCrossEncoder(MODEL_DIR, WEIGHTS)
    alone = [(await asyncio.to_thread(there.score, pair["asked"], [pair["stored"]]))[0] for pair in GOLDEN]
    for pair, logit in zip(GOLDEN, alone, strict=True):
        assert logit == pytest.approx(here.score(pair["asked"], [pair["stored"]])[0], abs=0.5), "int8 there or not"
    stored = [pair["stored"] for pair in GOLDEN]
    together = await asyncio.to_thread(there.score, GOLDEN[0]["asked"], stored)
    apart = [(await asyncio.to_thread(there.score, GOLDEN[0]["asked"], [each]))[0] for each in stored]
    np.testing.assert_allclose(together, apart, atol=1e-4)
    assert await asyncio.to_thread(there.score, "again " * MAX_PAIR_TOKENS, ["hello"]) == [UNREAD_LOGIT]
    assert there.digest != here.digest, "scores of the two are not those of one verifier"


async def test_pairs_that_are_asked_at_once_share_a_pass(served: FloatTriton) -> None:
    there = await asyncio.to_thread(cross_encoder, served.url)
    passes = len(served.executions(CROSS_ENCODER))
    async with asyncio.TaskGroup() as tasks:
        with served.held(CROSS_ENCODER):
            for i in range(4):
                asked = f"How do I reset my password {i}?"
                tasks.create_task(asyncio.to_thread(there.score, asked, ["How do I reset it?"]))
                await until(lambda: len(served.executions(CROSS_ENCODER)) > passes)  # the first one is in the model
            await served.until_waiting(CROSS_ENCODER, 3)
    assert served.executions(CROSS_ENCODER)[passes:] == [1, 3]


async def test_other_weights_than_the_gateways_own_are_refused(served: FloatTriton, tmp_path: Path) -> None:
    shutil.copytree(WEIGHTS, tmp_path / "weights")
    about = json.loads((WEIGHTS / ABOUT_FILE).read_text())
    about["served"][3][2] += 2 * TOLERANCE
    (tmp_path / "weights" / ABOUT_FILE).write_text(json.dumps(about))
    with pytest.raises(StartupError, match=r"does not match this gateway's weights \(logits differ by up to"):
        await asyncio.to_thread(cross_encoder, served.url, None, tmp_path / "weights")
    with pytest.raises(
        StartupError, match=r"has inputs .* expected INT64 input_ids, attention_mask and token_type_ids"
    ):
        await asyncio.to_thread(
            TritonCrossEncoder, served.url, EMBEDDER, TOKENIZER, timeout_s=30.0, clock=FakeClock(), weights=WEIGHTS
        )
    nowhere = f"grpc://127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(StartupError, match=r"the cross-encoder 'cross_encoder' at grpc://.* does not answer"):
        await asyncio.to_thread(cross_encoder, nowhere)


async def test_a_server_that_is_away_at_a_later_start_is_asked_when_it_is_needed(
    served: FloatTriton, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def made(url: str) -> TritonCrossEncoder:
        return TritonCrossEncoder(
            url,
            CROSS_ENCODER,
            TOKENIZER,
            timeout_s=30.0,
            clock=FakeClock(),
            weights=WEIGHTS,
            data_dir=tmp_path / "data",
        )

    there = await asyncio.to_thread(made, served.url)
    nowhere = f"grpc://127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(StartupError, match="does not answer"):
        await asyncio.to_thread(made, nowhere)
    (kept,) = (tmp_path / "data" / "served-models").iterdir()
    memory = MetadataCache(tmp_path / "data", FORM.kind, nowhere, CROSS_ENCODER, there.digest)
    known = MetadataCache(tmp_path / "data", FORM.kind, served.url, CROSS_ENCODER, there.digest).load()
    assert known is not None
    memory.save(known)
    with caplog.at_level(logging.WARNING, "nearhit.semantic"):
        away = await asyncio.to_thread(made, nowhere)
    assert caplog.messages == ["the cross-encoder does not answer: the first opinion decides until it does"]
    assert away.digest == there.digest
    with pytest.raises(ModelUnavailable, match="UNAVAILABLE"):
        away.score("a", ["b"])
    kept.write_text("{")
    assert MetadataCache(tmp_path / "data", FORM.kind, served.url, CROSS_ENCODER, there.digest).load() is None
    assert "the cached metadata of a served model cannot be read" in caplog.messages


async def test_batches_form_over_gateways_and_leave_every_vector_as_it_is(served: FloatTriton, tmp_path: Path) -> None:
    """While a third client's request is in the model, one of each gateway waits; they then go through together."""
    section = {"adapter": "triton", "url": served.url, "model": EMBEDDER, "timeout": "30s"}
    alone = await asyncio.to_thread(TritonEncoder, served.url, EMBEDDER, TOKENIZER, timeout_s=30.0, clock=FakeClock())
    questions = ["How do I reset my password?", "Is there a train to Zurich on Sunday?"]
    async with serving(Upstream()) as upstream:
        backends = {"main": {"adapter": "openai", "url": upstream.url}}
        configs = [gateway_config(tmp_path / name, backends, embedder=section) for name in ("one", "two")]
        async with gateway_of(configs[0], LOOSE) as one, gateway_of(configs[1], LOOSE) as two:
            passes = len(served.executions(EMBEDDER))
            async with asyncio.TaskGroup() as tasks:
                with served.held(EMBEDDER):
                    tasks.create_task(asyncio.to_thread(alone.encode, ["Who holds the model up?"]))
                    await until(lambda: len(served.executions(EMBEDDER)) > passes)
                    for gateway, question in zip((one, two), questions, strict=True):
                        tasks.create_task(gateway.chat(question))
                    await served.until_waiting(EMBEDDER, 2)
            assert served.executions(EMBEDDER)[passes:] == [1, 2]
            for gateway, question in zip((one, two), questions, strict=True):
                found = await gateway.gateway.parts.space.embedder.embed(question)
                (expected,) = await asyncio.to_thread(alone.encode, [question])
                np.testing.assert_allclose(found.vector, expected.vector, atol=1e-6)
                again = await gateway.chat(question.lower().rstrip("?"))
                assert again.cache_status.startswith("nearhit; hit; detail=semantic")


async def test_without_an_answer_the_first_opinion_stands_and_the_log_says_so_once(
    served: FloatTriton, caplog: pytest.LogCaptureFixture
) -> None:
    clock, candidate = FakeClock(), StoredCandidate("What are the steps to reset a password?", 0.9)
    there = await asyncio.to_thread(cross_encoder, served.url, clock)
    first = LearnedVerifier(load_weights())
    verifier = TwoStageVerifier(first, there)
    (opinion,) = verifier.opinions("How do I reset my password?", [candidate])

    async def second() -> object:
        return await verifier.second_opinion("How do I reset my password?", candidate, opinion)

    assert await second() is not None
    there._model._timeout_s = 0.05
    with caplog.at_level(logging.INFO, "nearhit.semantic"):
        with served.held(CROSS_ENCODER):
            for _ in range(FAILURES + 2):  # the last two are not even asked
                assert await second() is None
            with pytest.raises(ModelUnavailable, match="is not called for now"):
                there.score("a", ["b"])
        there._model._timeout_s = 30.0
        clock.advance(COOLDOWN_S)
        assert await second() is not None
        clock.advance(VERIFY_INTERVAL_S)
        assert await second() is not None, "it is still the one of the start"
    assert caplog.messages == [
        "the cross-encoder does not answer: the first opinion decides until it does",
        "the cross-encoder answers again",
    ]
    verifier.close()


async def test_a_gateway_verifies_with_it_beside_any_embedder_and_doctor_names_it(
    served: FloatTriton, tmp_path: Path
) -> None:
    section = {"adapter": "triton", "url": served.url, "timeout": "30s"}
    backends = {"main": {"adapter": "openai", "url": "http://127.0.0.1:1/v1"}}
    config = gateway_config(tmp_path, backends, verifier={"cross_encoder": section})
    async with gateway_of(config, BOTH_CACHES) as gateway:
        verifier = gateway.gateway.parts.space.verifier
        assert isinstance(verifier, TwoStageVerifier)
        here = await asyncio.to_thread(build_verifier, VerifierConfig(), EmbeddingModel())
        assert verifier.basis != here.basis
        candidate = StoredCandidate("How do I reset my router?", 0.9)
        (first,) = verifier.opinions("How do I reset my password?", [candidate])
        pair = ("How do I reset my password?", candidate, first)
        ours, theirs = await here.second_opinion(*pair), await verifier.second_opinion(*pair)
        assert ours is not None
        assert theirs is not None
        assert theirs.score == pytest.approx(ours.score, abs=0.02)
        here.close()
    found = [each for each in await asyncio.to_thread(inspect_models, config) if each.key == "verifier.cross_encoder"]
    assert [(each.adapter, each.error) for each in found] == [("triton", None)]
    nowhere = {**section, "url": f"grpc://127.0.0.1:{free_ports(1)[0]}"}
    config = gateway_config(tmp_path, backends, verifier={"cross_encoder": nowhere})
    (_, away) = await asyncio.to_thread(inspect_models, config)
    assert away.error is not None
    assert "does not answer" in away.error
