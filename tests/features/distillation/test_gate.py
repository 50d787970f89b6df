"""The gate of distillation, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.cache.threshold.wrong_hits import chance_of_heads
from gateway.features.distillation.gate import VersionVerdict, judge


def verdict_of(won: int, lost: int, same: int = 20) -> VersionVerdict:
    before = np.array([False] * won + [True] * lost + [True] * same)
    after = np.array([True] * won + [False] * lost + [True] * same)
    return judge(4, before, after)


def test_the_sign_test_is_that_of_coins() -> None:
    assert chance_of_heads(0, 0) == 1.0
    assert chance_of_heads(1, 4) == pytest.approx(5 / 16)
    assert chance_of_heads(4, 4) == 1.0


@pytest.mark.parametrize(
    ("won", "lost", "passed"),
    [(0, 0, True), (9, 0, True), (0, 4, True), (0, 5, False), (40, 50, True), (40, 60, False)],
)
def test_a_version_passes_unless_it_is_worse_with_95_percent_confidence(won: int, lost: int, passed: bool) -> None:
    assert verdict_of(won, lost).passed is passed


def test_a_verdict_has_the_counts_of_both_versions() -> None:
    assert verdict_of(3, 2) == VersionVerdict(True, "3 answers became right and 2 became wrong", 4, 25, 22, 23)
