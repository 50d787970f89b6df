"""Work that a loaded encoder leaves out: the levels, the cross-encoder's pairs, and lookups through a real gateway."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import app
from gateway.adapters.embedding.embedders import BatchingEmbedder
from gateway.adapters.embedding.hashing import HashEncoder
from gateway.cache.load_level import ENTERED_AT, LEFT_BELOW, EncoderLoad, LoadLevel, Step, next_level
from gateway.messages import Embedding
from gateway.observability.metric_definitions import LEFT_OUT
from gateway.observability.telemetry import Telemetry
from tests.fixtures.gateways import LOOSE, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

WAITS = st.floats(0, 1)
BURST = 96  # questions: three times as many as wait for the encoder before lookups are left out


def test_a_level_is_entered_at_its_wait_and_left_at_half_of_it() -> None:
    for level, bound in enumerate(ENTERED_AT, 1):
        assert next_level(LoadLevel.NORMAL, bound) == level
        assert next_level(LoadLevel(level), bound * LEFT_BELOW) == level
        assert next_level(LoadLevel(level), bound * LEFT_BELOW * 0.99) < level


@given(st.sampled_from(LoadLevel), WAITS, WAITS)
def test_a_longer_wait_never_lowers_the_level(level: LoadLevel, one: float, other: float) -> None:
    assert next_level(level, min(one, other)) <= next_level(level, max(one, other))


@given(st.sampled_from(LoadLevel), WAITS)
def test_the_same_wait_moves_the_level_once(level: LoadLevel, wait: float) -> None:
    assert next_level(next_level(level, wait), wait) == next_level(level, wait)


def test_each_level_leaves_out_one_step_more_and_counts_it() -> None:
    wait, telemetry = 0.0, Telemetry()
    load = EncoderLoad(lambda: wait, 2.0, telemetry.left_out)
    assert (load.level, load.pairs) == (0, 2)
    seen = []
    for share in ENTERED_AT:
        wait = 2.0 * share
        seen.append([step for step in Step if step is not Step.PAIR and load.leaves_out(step)])
    two = [Step.LEARNING, Step.VECTOR]
    assert seen == [[Step.LEARNING], two, two, [*two, Step.LOOKUP]]
    assert tuple(Step) == LEFT_OUT
    assert load.pairs == 0
    assert all(len(a) <= len(b) for a, b in pairwise(seen))
    counted = {step: n for (step,), n in telemetry.left_out.values.items()}
    assert counted == {"learning": 4, "vector": 3, "pair": 0, "lookup": 1}
    wait = 2.0 * ENTERED_AT[2]
    assert load.pairs == 1


class GatedEncoder:
    """The encoder of hashes, which takes a batch only while `gate` is set, as one that has not enough CPU."""

    dimension, fingerprint = 384, "gated"

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        assert self.gate.wait(15)
        return HashEncoder(self.dimension).encode(texts)


async def test_more_questions_than_the_encoder_bears_skip_lookups_and_none_fails(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue grows while the encoder stands still. Questions beyond the highest level are answered at once."""
    encoder = GatedEncoder()
    embedder = BatchingEmbedder(encoder, batch_limit=8, timeout_s=60.0)
    monkeypatch.setattr(app, "build_embedder", lambda *_: (encoder, embedder))
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, embedder={"adapter": "onnx"})
    async with gateway_of(config, LOOSE) as served:
        parts = served.gateway.parts
        await served.chat("alpha beta gamma delta epsilon")
        embedder._pass_s = parts.space.load._timeout_s / 16  # four waiting passes of 8 texts enter the highest level
        encoder.gate.clear()
        early = [asyncio.create_task(served.chat(f"question {n} about thing {n * n}")) for n in range(BURST // 3)]
        await until(lambda: embedder._queue.qsize() >= BURST // 3 - 1)
        beyond = [served.chat(f"remark {n} on matter {n * n}") for n in range(BURST - BURST // 3)]
        answers = await asyncio.gather(*beyond)
        seen = {(answer.status, answer.cache_status) for answer in answers}
        done = [task.done() for task in early]
        encoder.gate.set()
        assert seen == {(200, "nearhit; fwd=miss; stored")}
        assert not any(done), "the others have waited for no encoder"
        assert parts.telemetry.left_out.values["lookup",] == len(answers)
        assert "hit; detail=exact" in (await served.chat("remark 1 on matter 1")).cache_status
        assert {answer.status for answer in await asyncio.gather(*early)} == {200}
        assert parts.space.load.level == 0, "the load is gone"
        again = await served.chat("alpha beta gamma delta zeta")
        assert "hit; detail=semantic" in again.cache_status
