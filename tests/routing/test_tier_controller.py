"""A route's way to the large model: what its rule asks for, what labels change of it, and what is kept of that."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.policy.model import Target
from gateway.errors import SnapshotInvalid
from gateway.routing.tier_controller import PlattScaling, TierController
from tests.fixtures.targets import light_and_large

pytestmark = pytest.mark.slow  # starts nothing, takes seconds

FIXED = light_and_large("light", "large", 0.5)
SHARE = replace(FIXED, large_share=0.3)
QUALITY = replace(FIXED, quality=0.9)
BASIS = "model/1"


def route() -> TierController:
    return TierController(BASIS)


def met(control: TierController, count: int, seed: int = 1, target: Target = QUALITY, begin: float = 0.0) -> float:
    """So many requests, three seconds apart -> when the last one came."""
    r, now = random.Random(seed), begin
    for k in range(count):
        now, score = begin + 3.0 * k, r.random()
        decision = control.decide(target, score, now)
        control.count(decision, score, now, large=decision.large)
    return now


def test_a_threshold_that_is_written_is_what_it_says_whatever_labels_say() -> None:
    control = route()
    for _ in range(500):
        control.observe(0.3, True, "audit")
    assert control.threshold(FIXED, 0.0) == 0.5
    assert [control.decide(FIXED, score, 0.0).large for score in (0.5, 0.51)] == [False, True]


def test_labels_move_the_threshold_of_a_quality_down_and_up() -> None:
    control = route()
    met(control, 600)
    before, r = control.threshold(QUALITY, 0.0), random.Random(2)
    for _ in range(400):
        score = r.random()
        control.observe(score, r.random() < 0.4 + 0.6 * score, "audit")
    worse = control.threshold(QUALITY, 0.0)
    control.reset()
    met(control, 600)
    for _ in range(400):
        score = r.random()
        control.observe(score, r.random() < (0.9 if score > 0.7 else 0.03), "audit")
    better = control.threshold(QUALITY, 0.0)
    assert worse + 0.05 < before < better - 0.05


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans(), st.floats(0, 5)), max_size=100))
def test_no_label_moves_the_threshold_beyond_what_the_bounds_of_the_map_allow(
    labels: list[tuple[float, bool, float]],
) -> None:
    control = route()
    met(control, 60)
    for score, worse, weight in labels:
        control.observe(score, worse, "feedback", weight)
    assert -1.0 <= control.threshold(QUALITY, 0.0) < 1.0
    fit = control.tier_state(QUALITY, 0.0).fit
    assert abs(fit.shift) <= 2 and 0.5 <= fit.slope <= 2


def test_a_frozen_route_counts_labels_and_neither_learns_nor_forgets() -> None:
    control = route()
    for _ in range(50):
        control.observe(0.5, True, "audit")
    learnt = control.tier_state(QUALITY, 0.0).fit
    control.learning = False
    for _ in range(500):
        control.observe(0.5, False, "feedback")
    met(control, 400)
    tier_state = control.tier_state(QUALITY, 0.0)
    assert tier_state.fit == learnt and not tier_state.learning
    assert tier_state.labels == {"audit": 50, "feedback": 500}


def test_what_a_label_that_weighs_nothing_says_is_counted_alone() -> None:
    control = route()
    control.observe(0.5, True, "feedback", weight=0.0)
    tier_state = control.tier_state(QUALITY, 0.0)
    assert (tier_state.fit.shift, tier_state.labels) == (0.0, {"feedback": 1})


def test_what_was_learnt_comes_through_a_restart() -> None:
    control, again = route(), route()
    met(control, 300)
    for k in range(40):
        control.observe(k / 40, k % 3 == 0, "cascade")
    again.restore(control.snapshot())
    before, after = control.tier_state(QUALITY, 0.0), again.tier_state(QUALITY, 0.0)
    assert after.threshold == pytest.approx(before.threshold)
    assert (after.fit, after.labels, after.version) == (before.fit, before.labels, before.version)
    assert after.retention == before.retention


def test_a_snapshot_of_other_scores_is_refused() -> None:
    with pytest.raises(SnapshotInvalid, match="expected version 1, 'other'"):
        TierController("other").restore(route().snapshot())


@given(st.binary(max_size=200))
def test_no_snapshot_breaks_a_route(data: bytes) -> None:
    control = route()
    with pytest.raises(SnapshotInvalid):
        control.restore(data)
    assert control.tier_state(SHARE, 0.0).threshold == pytest.approx(0.7, abs=0.06)


def test_to_forget_is_to_begin_at_the_start_but_what_was_spent_stays_spent() -> None:
    control = route()
    now = 0.0
    for _ in range(40):  # all of the large model's, for the light one was away
        control.count(control.decide(SHARE, 0.1, now), 0.1, now, large=True)
    control.observe(0.5, True, "audit")
    control.reset()
    tier_state = control.tier_state(SHARE, now)
    assert (tier_state.labels, tier_state.version, tier_state.fit.shift) == ({}, 0, 0.0)
    assert tier_state.large_share == 1.0
    assert not control.decide(SHARE, 0.99, now).large


def test_a_standing_says_which_rule_decides() -> None:
    control = route()
    assert (control.tier_state(FIXED, 0.0).rule, control.tier_state(FIXED, 0.0).setting) == ("escalate_above", 0.5)
    assert (control.tier_state(SHARE, 0.0).rule, control.tier_state(SHARE, 0.0).setting) == ("large_share", 0.3)
    assert (control.tier_state(QUALITY, 0.0).rule, control.tier_state(QUALITY, 0.0).setting) == ("quality", 0.9)
    assert math.isnan(control.tier_state(QUALITY, 0.0).large_share)


def test_quality_is_kept_by_what_is_counted() -> None:
    control = route()
    now = met(control, 1500)
    tier_state = control.tier_state(QUALITY, now)
    assert tier_state.retention.part == pytest.approx(0.9, abs=0.03)
    assert tier_state.retention.low < 0.9 < tier_state.retention.high
    assert tier_state.threshold == pytest.approx(math.sqrt(0.1), abs=0.06)


def test_another_share_in_the_policy_is_in_force_at_once() -> None:
    control = route()
    now = met(control, 300, target=SHARE)
    more = replace(FIXED, large_share=0.6)
    met(control, 600, target=more, begin=now)
    assert control.tier_state(more, now + 1800).large_share == pytest.approx(0.6, abs=0.12)


def truly_kept(truth: PlattScaling, audited: float, seed: int) -> float:
    """The part of the gap of 0.9 that is really kept over the last half of 6,000 requests of a route whose scores mean
    `truth`, where this share of the light model's answers is audited."""
    control, r, kept, lost = route(), random.Random(seed), 0, 0
    for k in range(6000):
        score, now = r.betavariate(1.5, 1.5), 3.0 * k
        decision = control.decide(QUALITY, score, now)
        control.count(decision, score, now, large=decision.large)
        worse = r.random() < float(truth(np.array([score]))[0])
        if k >= 3000:
            kept, lost = kept + (worse and decision.large), lost + (worse and not decision.large)
        if not decision.large and r.random() < audited:
            control.observe(score, worse, "audit")
    return kept / (kept + lost)


@pytest.mark.parametrize(
    "truth", [PlattScaling(0.0, 1.0), PlattScaling(1.2, 1.0), PlattScaling(-1.2, 1.0), PlattScaling(0.0, 0.6)]
)
def test_audits_of_one_side_alone_bring_a_route_to_the_quality_that_is_asked_for(truth: PlattScaling) -> None:
    audited = [truly_kept(truth, 0.05, seed) for seed in range(2)]
    left_alone = [truly_kept(truth, 0.0, seed) for seed in range(2)]
    assert all(0.84 <= kept <= 0.95 for kept in audited)
    if truth != PlattScaling(0.0, 1.0):  # where scores are right there is nothing to learn
        assert abs(sum(audited) / 2 - 0.9) < abs(sum(left_alone) / 2 - 0.9)
