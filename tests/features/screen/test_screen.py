"""The screen's threshold follows the hits of a route, and its decision compares static with real vectors."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from gateway.cache.screening import Screening
from gateway.entries import Embedding, Vector
from gateway.features.screen import threshold as threshold_module
from gateway.features.screen.screen import Screen
from gateway.features.screen.threshold import KEPT, PRIOR, PRIOR_WORTH, SHARE, ScreenThreshold
from tests.fixtures.entries import DIMENSION, hexed, vector_of
from tests.fixtures.fakes import ExactIndex

HERE, ELSEWHERE = hexed("here"), hexed("elsewhere")


class Reader:
    """Static vectors that are given."""

    def __init__(self, vector: Vector) -> None:
        self._vector = vector

    def encode(self, text: str) -> Embedding | None:
        return Embedding(self._vector, 3, False) if text else None


def test_the_prior_is_the_quantile_of_the_stream() -> None:
    below, above = PRIOR[2][1], PRIOR[3][1]
    assert below < ScreenThreshold().value < above


def test_the_threshold_follows_the_hits() -> None:
    threshold = ScreenThreshold()
    before = threshold.value
    for at in range(KEPT):
        threshold.observe(0.3 + 0.4 * at / KEPT)
    lost = math.floor(SHARE * (KEPT + PRIOR_WORTH))
    assert 0.3 < threshold.value < before
    assert sum(0.3 + 0.4 * at / KEPT < threshold.value for at in range(KEPT)) == lost


def test_hits_that_were_lost_move_it_soon() -> None:
    """Served hits are never below it, so only lost ones can move it down."""
    threshold = ScreenThreshold()
    for _ in range(200):
        threshold.observe(0.8)
    before = threshold.value
    for _ in range(4):
        threshold.observe(0.2)
    assert threshold.value < 0.36 < before


def test_old_hits_are_forgotten() -> None:
    threshold = ScreenThreshold()
    for _ in range(KEPT):
        threshold.observe(0.1)
    assert threshold.value == 0.1
    for _ in range(KEPT):
        threshold.observe(0.9)
    assert threshold.value > 0.35
    assert threshold.observations == KEPT


async def test_a_question_is_far_if_its_nearest_neighbour_in_the_scope_is() -> None:
    index, vector = ExactIndex(DIMENSION, max_entries=9), vector_of(1)
    await index.add(hexed("a"), ELSEWHERE, vector)
    opposite = np.array(-vector, np.float32)
    await index.add(hexed("b"), HERE, opposite)
    screen = Screen(Reader(vector), index)
    static = screen.read("why?")
    assert static is not None and screen.read("") is None
    near, far = (screen.look("default", scope, static.vector) for scope in (ELSEWHERE, HERE))
    assert isinstance(near, Screening) and isinstance(far, Screening)
    assert not near.is_far and near.similarity > 0.99
    assert far.is_far and far.similarity == 0.0


async def test_each_route_has_its_own_threshold() -> None:
    screen = Screen(Reader(vector_of(1)), ExactIndex(DIMENSION, max_entries=9))
    for _ in range(9):
        screen.threshold("low").observe(0.1)
    assert screen.threshold("low").value < screen.threshold("other").value


def test_a_threshold_reads_its_prior_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request asks for it twice, and the prior takes longer than its search."""
    read = 0

    def prior() -> Iterator[float]:
        nonlocal read
        read += 1
        return iter([0.5] * PRIOR_WORTH)

    monkeypatch.setattr(threshold_module, "_prior", prior)
    screen = Screen(Reader(vector_of(1)), ExactIndex(DIMENSION, max_entries=9))
    assert screen.threshold("low") is screen.threshold("low")
    assert read == 1


async def test_a_large_partition_is_waited_for() -> None:
    class Large(ExactIndex):
        def search_nowait(self, scope: str, vector: Vector, k: int) -> None:  # type: ignore[override]
            return None

    index = Large(DIMENSION, max_entries=9)
    await index.add(hexed("a"), HERE, vector_of(1))
    found = Screen(Reader(vector_of(1)), index).look("default", HERE, vector_of(1))
    assert not isinstance(found, Screening)
    assert not (await found).is_far
