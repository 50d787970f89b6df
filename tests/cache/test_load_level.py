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

from gateway.adapters.embedding.embedders import BatchingEmbedder
from gateway.adapters.embedding.hashing import HashEncoder
from gateway.cache.load_level import (
    ENTERED_AT,
    LEFT_BELOW,
    STANDING_AFTER,
    STANDING_FACTOR,
    EncoderLoad,
    LoadLevel,
    OptionalWork,
    next_level,
)
from gateway.cache.pair_queue import PairQueue
from gateway.entries import Embedding
from gateway.observability.metric_definitions import LEFT_OUT
from gateway.observability.telemetry import Telemetry
from gateway.ports import EncoderQueue
from gateway.steps import opening
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
    load = EncoderLoad([lambda: EncoderQueue(wait)], 2.0, telemetry.left_out)
    assert (load.level, load.pairs) == (0, 2)
    seen = []
    for share in ENTERED_AT:
        wait = 2.0 * share
        seen.append([step for step in OptionalWork if step is not OptionalWork.PAIR and load.leaves_out(step)])
    two = [OptionalWork.LEARNING, OptionalWork.VECTOR]
    assert seen == [[OptionalWork.LEARNING], two, two, [*two, OptionalWork.LOOKUP]]
    assert tuple(OptionalWork) == LEFT_OUT
    assert load.pairs == 0
    assert all(len(a) <= len(b) for a, b in pairwise(seen))
    counted = {step: n for (step,), n in telemetry.left_out.values.items()}
    assert counted == {"learning": 4, "vector": 3, "pair": 0, "lookup": 1}
    wait = 2.0 * ENTERED_AT[2]
    assert load.pairs == 1


class Queues:
    """The queues of an encoder and a cross-encoder with a timeout of a second, and a clock."""

    def __init__(self) -> None:
        self.encoder = self.pairs = EncoderQueue()
        self.now = 0.0
        queues = (lambda: self.encoder, lambda: self.pairs)
        self.load = EncoderLoad(queues, 1.0, Telemetry().left_out, lambda: self.now)


def test_a_standing_queue_skips_lookups_at_a_short_wait_and_a_burst_does_not() -> None:
    queues, wait_s = Queues(), ENTERED_AT[-1] / STANDING_FACTOR
    queues.encoder = EncoderQueue(wait_s, standing_s=STANDING_AFTER * 0.99)
    assert queues.load.level is LoadLevel.NORMAL
    queues.encoder = EncoderQueue(wait_s, standing_s=STANDING_AFTER)
    assert queues.load.level is LoadLevel.LOOKUPS_SKIPPED
    queues.encoder = EncoderQueue(wait_s * LEFT_BELOW * 0.99, standing_s=STANDING_AFTER)
    assert queues.load.level is LoadLevel.BEST_PAIR_ONLY


def test_an_empty_queue_for_a_moment_does_not_end_the_load() -> None:
    queues, busy = Queues(), ENTERED_AT[-1] / STANDING_FACTOR
    queues.encoder = EncoderQueue(busy, standing_s=1.0)
    assert queues.load.level is LoadLevel.LOOKUPS_SKIPPED
    queues.encoder = EncoderQueue()
    assert queues.load.level is LoadLevel.NORMAL
    queues.encoder, queues.now = EncoderQueue(busy), STANDING_AFTER * 0.9
    assert queues.load.level is LoadLevel.LOOKUPS_SKIPPED, "the same wait at once, and for another interval"
    queues.now = STANDING_AFTER * 1.8
    assert queues.load.level is LoadLevel.LOOKUPS_SKIPPED
    queues.encoder, queues.now = EncoderQueue(busy / 2), STANDING_AFTER * 3
    assert queues.load.level is LoadLevel.NORMAL, "a whole interval without such a wait"
    queues.encoder = EncoderQueue(busy)
    assert queues.load.level is LoadLevel.NORMAL


def test_a_pass_in_progress_is_a_wait_in_a_standing_queue_alone() -> None:
    queues, pass_s = Queues(), ENTERED_AT[-1]
    queues.encoder = EncoderQueue(0.0, pass_s)
    assert queues.load.level is LoadLevel.NORMAL
    queues.encoder = EncoderQueue(0.0, pass_s, STANDING_AFTER)
    assert queues.load.level is LoadLevel.LOOKUPS_SKIPPED


def test_a_question_waits_for_the_encoder_and_for_the_cross_encoder() -> None:
    queues, half = Queues(), EncoderQueue(ENTERED_AT[-1] / 2)
    queues.encoder = half
    assert queues.load.level < LoadLevel.LOOKUPS_SKIPPED
    queues.pairs = half
    assert queues.load.level is LoadLevel.LOOKUPS_SKIPPED


def test_pairs_beyond_the_threads_of_a_cross_encoder_wait() -> None:
    now = 0.0
    pairs = PairQueue(lambda: now)
    for pair_s in (0.004, 0.004):
        pairs.enter(threads=1)
        pairs.leave(pair_s)
    assert pairs.measure() == EncoderQueue()
    pairs.enter(threads=1)
    now = 1.0
    pairs.enter(threads=1)
    pairs.enter(threads=1)
    now = 1.5
    assert len(pairs) == 3
    assert pairs.measure() == EncoderQueue(2 * 0.004, 0.004, 0.5), "the second one began the queue"
    pairs.leave(None)
    pairs.leave(0.012)
    pairs.leave(None)
    assert pairs.measure() == EncoderQueue()
    pairs.enter(threads=1)
    pairs.enter(threads=1)
    assert pairs.measure() == EncoderQueue(pytest.approx(0.005), pytest.approx(0.005), 0.0)


class GatedEncoder:
    """The encoder of hashes, which takes a batch only while `gate` is set, as one that has not enough CPU."""

    dimension, fingerprint = 384, "gated"

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        assert self.gate.wait(60)
        return HashEncoder(self.dimension).encode(texts)


async def test_more_questions_than_the_encoder_bears_skip_lookups_and_none_fails(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue grows while the encoder stands still. Questions beyond the highest level are answered at once."""
    encoder = GatedEncoder()
    embedder = BatchingEmbedder(encoder, batch_limit=8, timeout_s=60.0)
    monkeypatch.setattr(opening, "build_embedder", lambda *_: (encoder, embedder))
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, embedder={"adapter": "onnx"})
    async with gateway_of(config, LOOSE) as served:
        parts = served.gateway.parts
        await served.chat("alpha beta gamma delta epsilon")
        embedder._text_s = parts.space.load._timeout_s * ENTERED_AT[-1] / (BURST // 3 - 1)  # so the burst enters it
        encoder.gate.clear()
        early = [asyncio.create_task(served.chat("question 0 about thing 0"))]
        await until(lambda: embedder._in_pass == 1)  # else the worker may take several, and the queue stays shorter
        early += [asyncio.create_task(served.chat(f"question {n} about thing {n * n}")) for n in range(1, BURST // 3)]
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
        await until(lambda: parts.space.load.level == 0)  # the worker ends its pass after its answers have come
        again = await served.chat("alpha beta gamma delta zeta")
        assert "hit; detail=semantic" in again.cache_status
