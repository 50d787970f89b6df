"""The verifier that needs no weights: similarity as a score, and what a rule names as different as a veto."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.adapters.system.weight_files import WeightsCorrupt
from gateway.cache.threshold.ledger import BANDS
from gateway.cache.threshold.route_control import RouteControl
from gateway.cache.threshold_verifier import ThresholdVerifier
from gateway.cache.verifiers import load_calibration
from gateway.outcomes import Refusal
from gateway.ports import Acceptance, StoredCandidate

VERIFIER = ThresholdVerifier()


async def test_each_candidate_is_judged_in_order() -> None:
    found = VERIFIER.opinions(
        "How do I turn the alarm on?",
        [
            StoredCandidate("How do I turn the alarm off?", 0.99),
            StoredCandidate("How can I turn the alarm on?", 0.97),
            StoredCandidate("What is an alarm?", 0.5),
        ],
    )
    assert [(opinion.score, opinion.veto) for opinion in found] == [(0.99, Refusal.ANTONYM), (0.97, None), (0.5, None)]


async def test_no_candidates_no_opinions() -> None:
    assert VERIFIER.opinions("anything", []) == []


async def test_it_has_no_second_opinion_to_give() -> None:
    candidate = StoredCandidate("a", 0.9)
    (first,) = VERIFIER.opinions("b", [candidate])
    assert await VERIFIER.second_opinion("b", candidate, first) is None


@given(st.floats(0, 1), st.floats(0, 1))
def test_more_similar_is_never_less_likely(a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert 0.0 <= VERIFIER.probability(low) <= VERIFIER.probability(high) <= 1.0


def test_the_prior_is_of_all_bands_and_never_worse_for_a_better_score() -> None:
    wrong, rates = zip(*VERIFIER.prior, strict=True)
    assert len(wrong) == BANDS
    assert list(wrong) == sorted(wrong, reverse=True)
    assert 0.0 < sum(rates) <= 1.0


@pytest.mark.parametrize(("promise", "least"), [(0.01, 0.85), (0.05, 0.7)])
def test_a_route_that_knows_nothing_yet_serves_near_certain_paraphrases(promise: float, least: float) -> None:
    threshold = RouteControl(VERIFIER.prior, VERIFIER.basis).threshold(Acceptance(max_wrong_hits=promise), entries=1)
    assert least <= threshold <= 1.0


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"curves": {}}', '{"curves": {"checks": [1, 0]}, "priors": {"checks": [[2, 0]]}}']
)
def test_a_calibration_that_is_not_as_measured_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "verifier.json").write_text(content)
    with pytest.raises(WeightsCorrupt, match=r"verifier\.json has unexpected contents"):
        load_calibration("checks", tmp_path)


def test_a_share_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "verifier.json").write_text(
        json.dumps({"curves": {"checks": [1, 0]}, "priors": {"checks": [[float("nan"), 0.0]] * BANDS}})
    )
    with pytest.raises(WeightsCorrupt):
        load_calibration("checks", tmp_path)


def test_a_missing_calibration_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsCorrupt, match=r"verifier\.json"):
        load_calibration("checks", tmp_path)
