"""Labels near a question move its score, labels far away do not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cache.threshold.route_control import REACH, Evidence, LabelledLookup
from gateway.entries import Vector


def at(degrees: float) -> Vector:
    angle = np.deg2rad(degrees)
    return np.array([np.cos(angle), np.sin(angle), 0.0], np.float32)


def test_nothing_known_nothing_moved() -> None:
    assert Evidence().shift(at(0)) == 0.0


def test_what_was_wrong_here_lowers_and_what_was_right_raises() -> None:
    for right, sign in ((0.0, -1), (1.0, 1)):
        evidence = Evidence()
        evidence.add(LabelledLookup(at(0), 0.5, right))
        assert sign * evidence.shift(at(0)) > 0
        assert sign * evidence.shift(at(0)) > sign * evidence.shift(at(20)) > 0
        assert evidence.shift(at(80)) == 0.0


def test_a_surprise_moves_more_than_what_was_expected() -> None:
    expected, surprising = Evidence(), Evidence()
    expected.add(LabelledLookup(at(0), 0.05, 0.0))
    surprising.add(LabelledLookup(at(0), 0.95, 0.0))
    assert surprising.shift(at(0)) < expected.shift(at(0)) < 0


@given(st.lists(st.tuples(st.floats(0, 360), st.floats(0, 1), st.booleans()), max_size=30), st.floats(0, 360))
def test_no_evidence_moves_further_than_its_reach(labels: list[tuple[float, float, bool]], asked: float) -> None:
    evidence = Evidence(capacity=8)
    for degrees, probability, right in labels:
        evidence.add(LabelledLookup(at(degrees), probability, float(right)))
    assert abs(evidence.shift(at(asked))) <= REACH
    assert len(evidence) == min(8, len(labels))


def test_the_oldest_labels_are_forgotten() -> None:
    evidence = Evidence(capacity=2)
    evidence.add(LabelledLookup(at(0), 0.9, 0.0))
    for _ in range(2):
        evidence.add(LabelledLookup(at(90), 0.5, 1.0))
    assert evidence.shift(at(0)) == 0.0


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7])
def test_rows_bring_back_what_was_known(count: int) -> None:
    evidence = Evidence(capacity=4)
    for i in range(count):
        evidence.add(LabelledLookup(at(10 * i), 0.5, float(i % 2)))
    again = Evidence(capacity=4)
    again.restore(*evidence.rows())
    assert len(again) == len(evidence)
    assert again.shift(at(25)) == pytest.approx(evidence.shift(at(25)), abs=1e-3)
    for each in (evidence, again):  # and both go on forgetting in the same order
        each.add(LabelledLookup(at(40), 0.5, 1.0))
    assert again.shift(at(25)) == pytest.approx(evidence.shift(at(25)), abs=1e-3)


@pytest.mark.parametrize(
    ("vectors", "residuals", "clients", "dimension"),
    [
        (b"\0" * 6, b"\0" * 8, b"\0" * 8, 3),
        (b"\0" * 6, b"\0" * 4, b"\0" * 16, 3),
        (b"\0" * 5, b"\0" * 4, b"\0" * 8, 3),
        (np.full(3, np.nan, "<f2").tobytes(), b"\0" * 4, b"\0" * 8, 3),
    ],
)
def test_rows_that_do_not_fit_are_refused(vectors: bytes, residuals: bytes, clients: bytes, dimension: int) -> None:
    with pytest.raises(ValueError):
        Evidence().restore(vectors, residuals, clients, dimension)


def test_labels_of_one_template_count_near_their_own_content_alone() -> None:
    """All prompts of the template have a cosine of .8 or more, so a fault would lower every score."""
    random, evidence = np.random.default_rng(3), Evidence()
    template = np.zeros(64, np.float32)
    template[0] = 2.0

    def prompt(content: Vector) -> Vector:
        whole = template + content / np.linalg.norm(content)
        return np.asarray(whole / np.linalg.norm(whole), np.float32)

    contents = [np.concatenate([[0.0], random.normal(size=63)]).astype(np.float32) for _ in range(200)]
    for content in contents[:-1]:
        evidence.add(LabelledLookup(prompt(content), 0.5, 0.0))
    assert min(float(prompt(contents[-1]) @ prompt(content)) for content in contents[:-1]) > 0.6
    assert evidence.shift(prompt(contents[0])) < 2 * evidence.shift(prompt(contents[-1]))
    assert -0.1 < evidence.shift(prompt(contents[-1])) < 0.0


def test_a_label_that_says_little_moves_little_and_hides_no_other() -> None:
    evidence, both = Evidence(), Evidence()
    evidence.add(LabelledLookup(at(0), 0.5, 0.0))
    both.add(LabelledLookup(at(0), 0.5, 0.0))
    for _ in range(5):
        both.add(LabelledLookup(at(0), 0.5, 1.0, weight=0.01))
    assert both.shift(at(0)) == pytest.approx(evidence.shift(at(0)), rel=0.2)


def test_rows_of_an_earlier_version_have_no_weights() -> None:
    evidence, again = Evidence(), Evidence()
    evidence.add(LabelledLookup(at(40), 0.5, 1.0))
    again.restore(*evidence.rows()[:4])
    assert again.shift(at(40)) == pytest.approx(evidence.shift(at(40)), abs=1e-3)
