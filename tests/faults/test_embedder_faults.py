"""An embedder that fails or hangs costs the semantic cache, and nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gateway.adapters.embedding import embedders
from gateway.adapters.embedding.embedders import BatchingEmbedder
from gateway.adapters.embedding.hashing import HashEncoder
from gateway.entries import Embedding
from gateway.steps import opening
from tests.fixtures.gateways import PATIENT_S, TIERS, Answer, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

HANGS_S = 120.0
HUNG_S = 0.1  # that an encoder is waited for which hangs; one that does not has as long as a busy machine needs
ASKED, SAME = "what is the answer to everything else", "What is the answer to everything else?"


class Unreliable(HashEncoder):
    """Works until it is told to fail or to hang."""

    def __init__(self) -> None:
        super().__init__()
        self.failing = False
        self.timeout_s = PATIENT_S
        self.go = threading.Event()
        self.go.set()

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        self.go.wait(HANGS_S)
        if self.failing:
            raise RuntimeError("the model is broken")
        return super().encode(texts)


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> Unreliable:
    encoder = Unreliable()

    def build(config: Any, data_dir: Path) -> tuple[Unreliable, BatchingEmbedder]:
        return encoder, BatchingEmbedder(encoder, timeout_s=encoder.timeout_s)

    monkeypatch.setattr(opening, "build_embedder", build)
    return encoder


@pytest.fixture
async def unreliable(encoder: Unreliable, upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url, "adaptive": "off"}})
    async with gateway_of(config) as served:
        try:
            yield served
        finally:
            encoder.go.set()


@contextmanager
def hung(served: Served, encoder: Unreliable) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(served.gateway.parts.space.embedder, "_timeout_s", HUNG_S)
        encoder.go.clear()
        yield
        encoder.go.set()


def is_miss(answer: Answer) -> bool:
    return answer.status == 200 and answer.cache_status == "nearhit; fwd=miss; stored"


def is_exact(answer: Answer) -> bool:
    return answer.cache_status.startswith("nearhit; hit; detail=exact")


async def test_an_encoder_that_fails_makes_misses_and_exact_hits_go_on(unreliable: Served, encoder: Unreliable) -> None:
    await unreliable.chat(ASKED)
    encoder.failing = True
    assert is_miss(await unreliable.chat(SAME)), "would be a semantic hit"
    assert is_exact(await unreliable.chat(SAME))
    assert is_exact(await unreliable.chat(ASKED, stream=True))
    encoder.failing = False
    assert (await unreliable.chat(SAME + " ")).cache_status == "nearhit; hit; detail=semantic"


async def test_an_encoder_that_hangs_costs_its_timeout_and_then_nothing(
    unreliable: Served, encoder: Unreliable
) -> None:
    await unreliable.chat(ASKED)
    embedder = unreliable.gateway.parts.space.embedder
    with hung(unreliable, encoder):
        async with asyncio.timeout(HANGS_S - 10):
            assert is_miss(await unreliable.chat(f"{SAME} 0"))
            await until(embedder._queue.empty)  # the first is with the encoder, two more wait their time
            for i in range(1, 4):
                assert is_miss(await unreliable.chat(f"{SAME} {i}"))
            waiting = embedder._queue.qsize()
            answers = await asyncio.gather(*(unreliable.chat(f"and {i}?") for i in range(30)))
        assert {(answer.status, answer.cache_status) for answer in answers} == {(200, "nearhit; fwd=miss; stored")}
        assert embedder._queue.qsize() == waiting == 2, "nobody waits for an encoder that is known to hang"
        assert is_exact(await unreliable.chat(ASKED))


async def test_an_encoder_that_recovers_is_used_again(unreliable: Served, encoder: Unreliable) -> None:
    await unreliable.chat(ASKED)
    with hung(unreliable, encoder):
        for i in range(5):
            await unreliable.chat(f"{SAME} {i}")
    async with asyncio.timeout(HANGS_S):  # until the encoder has had its turn
        for marks in count(2):  # the same words, another request each time
            if (await unreliable.chat(SAME + "?" * marks)).cache_status == "nearhit; hit; detail=semantic":
                break


async def test_answers_made_without_an_embedding_are_exact_hits_only(unreliable: Served, encoder: Unreliable) -> None:
    encoder.failing = True
    assert is_miss(await unreliable.chat(ASKED))
    encoder.failing = False
    assert is_exact(await unreliable.chat(ASKED))
    assert is_miss(await unreliable.chat(SAME))


async def test_routing_goes_on_without_an_embedding(
    encoder: Unreliable, light: Upstream, large: Upstream, tmp_path: Path
) -> None:
    """Complexity is judged by the text alone then."""
    backends = {"light": {"adapter": "openai", "url": light.url}, "large": {"adapter": "openai", "url": large.url}}
    encoder.failing = True
    async with gateway_of(config_of(tmp_path, backends), TIERS) as served:
        answer = await served.chat("What time is it?")
        assert answer.headers["x-nearhit-backend"] == "light"
        assert 0 < float(answer.headers["x-nearhit-complexity"]) < 0.5


@pytest.mark.parametrize("fault", ["fails", "hangs"])
async def test_a_gateway_starts_though_its_encoder_does_not_answer(
    encoder: Unreliable, upstream: Upstream, tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start the embedder is asked where difficulty lies: that is worth no refusal to serve."""
    encoder.failing = fault == "fails"
    if fault == "hangs":
        encoder.timeout_s = HUNG_S
        monkeypatch.setattr(embedders, "IDLE_TIMEOUT_S", HUNG_S)  # the vector of an answer is waited for, too
        encoder.go.clear()
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, embedder={"adapter": "onnx"})
    try:
        async with gateway_of(config) as served:
            assert is_miss(await served.chat(ASKED))
            assert is_exact(await served.chat(ASKED))
    finally:
        encoder.go.set()
