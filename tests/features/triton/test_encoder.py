"""The embedder as a service: a real Triton with the configuration of deploy/triton, and gateways before it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gateway.adapters.onnx.encoder import OnnxEncoder
from gateway.adapters.onnx.model_files import MODEL, TOKENIZER_FILE, ModelMissing, default_model_dir
from gateway.cli.doctor.machine import inspect_models
from gateway.cli.doctor.machine import model as verdict
from gateway.config import Config
from gateway.errors import EmbedderUnavailable, StartupError
from gateway.features.triton.encoder import PROBES, TritonEncoder, fingerprint_vectors
from gateway.features.triton.served_model import COOLDOWN_S, FAILURES, VERIFY_INTERVAL_S
from tests.contracts.text_encoder_rules import LONG, RULES, TEXTS
from tests.fixtures.clock import FakeClock
from tests.fixtures.embedding_triton import EmbeddingTriton, embedding_triton
from tests.fixtures.gateways import LOOSE, config_of, gateway_of
from tests.fixtures.triton import RunningTriton, free_ports
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import BETWEEN_S

SEMANTIC = "nearhit; hit; detail=semantic"
TOKENIZER = default_model_dir() / MODEL / TOKENIZER_FILE


def encoder_of(url: str, clock: FakeClock | None = None, model: str = "embedder") -> TritonEncoder:
    return TritonEncoder(url, model, TOKENIZER, timeout_s=30.0, clock=clock or FakeClock())


async def test_a_model_on_triton_is_an_embedder_like_the_one_in_process(upstream: Upstream, tmp_path: Path) -> None:
    """One server for all of it: each takes seconds to start."""
    clock = FakeClock()
    async with embedding_triton(tmp_path / "triton") as served:
        encoder = await asyncio.to_thread(encoder_of, served.url, clock)
        for rule in RULES:
            await asyncio.to_thread(rule, encoder)
        await same_as_in_process(encoder, served)
        await another_model_is_refused(encoder, served, clock)
        encoder = await asyncio.to_thread(encoder_of, served.url, clock)
        await a_gateway_finds_by_similarity_with_it_and_serves_without_it(served, upstream, tmp_path)
        await a_server_that_ends_is_left_alone(encoder, clock)
        await a_gateway_starts_while_it_is_away_and_uses_it_when_it_is_back(served, upstream, tmp_path)


async def same_as_in_process(encoder: TritonEncoder, served: EmbeddingTriton) -> None:
    texts = [*TEXTS, LONG, "如何取消订阅？", *(f"question {i} about {'many ' * i}things" for i in range(24))]
    here = OnnxEncoder(default_model_dir() / MODEL)
    asked = len(served.requests())
    for ours, theirs in zip(here.encode(texts), await asyncio.to_thread(encoder.encode, texts), strict=True):
        np.testing.assert_allclose(theirs.vector, ours.vector, atol=1e-5)
        assert (theirs.tokens, theirs.truncated, theirs.unreadable) == (ours.tokens, ours.truncated, ours.unreadable)
    assert served.requests()[asked:] == [f"{len(texts)}x256"], "one request, padded to its longest"
    assert encoder.dimension == 384
    assert encoder.fingerprint != here.fingerprint
    assert (await asyncio.to_thread(encoder_of, served.url)).fingerprint == encoder.fingerprint
    await asyncio.to_thread(encoder.encode, ["a few words"] * 65)
    assert served.requests()[-2:] == ["64x16", "1x16"], "no more rows than the model takes"


async def another_model_is_refused(encoder: TritonEncoder, served: EmbeddingTriton, clock: FakeClock) -> None:
    await served.exchange(1)
    clock.advance(VERIFY_INTERVAL_S)
    with pytest.raises(EmbedderUnavailable, match="is another model than at the start"):
        await asyncio.to_thread(encoder.encode, ["hello"])
    assert (await asyncio.to_thread(encoder_of, served.url)).fingerprint != encoder.fingerprint
    await served.exchange(0)
    await asyncio.to_thread(encoder.encode, ["the one of the start again"])


async def a_server_that_ends_is_left_alone(encoder: TritonEncoder, clock: FakeClock) -> None:
    for _ in range(FAILURES):
        with pytest.raises(EmbedderUnavailable, match="UNAVAILABLE"):
            await asyncio.to_thread(encoder.encode, ["hello"])
    with pytest.raises(EmbedderUnavailable, match="is not called for now"):
        encoder.encode(["hello"])
    clock.advance(COOLDOWN_S)
    with pytest.raises(EmbedderUnavailable, match="UNAVAILABLE"):
        await asyncio.to_thread(encoder.encode, ["hello"])


async def a_gateway_finds_by_similarity_with_it_and_serves_without_it(
    served: EmbeddingTriton, upstream: Upstream, tmp_path: Path
) -> None:
    config = config_before(served, upstream, tmp_path)
    (looked,) = await asyncio.to_thread(inspect_models, config)
    assert looked.error is None
    async with gateway_of(config, LOOSE) as gateway:
        assert gateway.gateway.parts.space.embedder.fingerprint == looked.expected
        await gateway.chat("How do I reset my password?")
        again = await gateway.chat("how do I reset my password")
        assert again.cache_status.startswith(SEMANTIC)
        await served.server.stop()
        missed = await gateway.chat("How can I cancel my subscription?")
        assert missed.status == 200
        assert missed.cache_status.startswith("nearhit; fwd=miss")
        assert (await gateway.chat("How do I reset my password?")).cache_status.startswith("nearhit; hit; detail=exact")
    (looked,) = await asyncio.to_thread(inspect_models, config)
    found = verdict(looked)
    assert found.level == "fault"
    assert "does not answer" in found.found
    assert found.todo == "start that server, or correct embedder in config.yaml"


async def a_gateway_starts_while_it_is_away_and_uses_it_when_it_is_back(
    served: EmbeddingTriton, upstream: Upstream, tmp_path: Path
) -> None:
    """The data directory has had it at an earlier start."""
    async with gateway_of(config_before(served, upstream, tmp_path), LOOSE) as gateway:
        assert (await gateway.chat("How do I reset my password?")).cache_status.startswith("nearhit; hit; detail=exact")
        missed = await gateway.chat("How do I reset my PASSWORD?")
        assert missed.cache_status.startswith("nearhit; fwd=miss")
        async with served.again():
            async with asyncio.timeout(120):  # the breaker lets nobody ask for some seconds after so many failures
                for question in in_other_case("how do i reset my password"):
                    if (await gateway.chat(question)).cache_status.startswith(SEMANTIC):
                        break
                    await asyncio.sleep(BETWEEN_S)


def in_other_case(text: str) -> Iterator[str]:
    """Never the same, and all alike to the model, which is uncased."""
    for number in range(1, 1 << len(text)):
        yield "".join(sign.upper() if number >> at & 1 else sign for at, sign in enumerate(text))


def config_before(served: EmbeddingTriton, upstream: Upstream, tmp_path: Path) -> Config:
    section = {"adapter": "triton", "url": served.url, "model": "embedder", "timeout": "10s"}
    return config_of(tmp_path / "data", {"main": {"adapter": "openai", "url": upstream.url}}, embedder=section)


def test_what_keeps_the_gateway_from_starting_is_one_sentence(triton: RunningTriton, tmp_path: Path) -> None:
    nowhere = f"grpc://127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(
        StartupError, match=r"^the embedding model 'embedder' at grpc://.* does not answer: UNAVAILABLE"
    ):
        encoder_of(nowhere)
    with pytest.raises(StartupError, match=r"does not answer: .*unknown model"):
        encoder_of(triton.url, model="none")
    with pytest.raises(StartupError, match="has inputs BYTES text_input and outputs FP32 embedding, expected INT64"):
        encoder_of(triton.url)
    with pytest.raises(ModelMissing, match="nearhit model fetch"):
        TritonEncoder(nowhere, "embedder", tmp_path / "tokenizer.json", timeout_s=1.0, clock=FakeClock())


def test_float_error_is_the_same_model_and_what_quantising_does_is_another() -> None:
    vectors = np.stack([each.vector for each in OnnxEncoder(default_model_dir() / MODEL).encode(PROBES)])
    draw = np.random.default_rng(7)
    for _ in range(20):
        noise = draw.standard_normal(vectors.shape).astype(np.float32) / np.sqrt(vectors.shape[1], dtype=np.float32)
        assert fingerprint_vectors(vectors + np.float32(1e-6) * noise) == fingerprint_vectors(vectors)
        assert fingerprint_vectors(vectors + np.float32(0.119) * noise) != fingerprint_vectors(vectors)  # cosine 0.993
