"""What `make bench-routing` says of scores and rules."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import gap_recovery
from bench.promise import STARVED_S, Cell
from bench.queues import Outcome, Scenario
from bench.routing import curve_table, previous_cells, promise_table, rule_table
from gateway.config.policy.model import Target, Tier
from training import gaps

pytestmark = pytest.mark.slow  # starts nothing, takes seconds

LIGHT = np.array([0, 1, 0, 0, 1, 1, 0, 1, 0, 1, 0, 0, 1, 0, 1, 0, 1, 1, 0, 0, 1, 0, 1], float)
LARGE = np.array([1, 1, 1, 0, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 1, 1, 0, 1, 1, 1], float)
HARDEST_FIRST = (15, 0, 21, 6, 18, 2, 11, 10, 13, 5, 16, 9, 8, 19, 3, 12, 20, 1, 22, 7, 17, 4, 14)
SCORE = -np.argsort(HARDEST_FIRST).astype(float)


def test_the_area_is_that_of_the_evaluations_own_tool() -> None:
    """`router_metrics.metrics` gives .8478 for these, and .6571 and .8571 at shares of .2 and .5 in every step."""
    assert gaps.apgr(SCORE, LIGHT, LARGE, gap_recovery.STEPS) == pytest.approx(0.8478, abs=5e-5)
    shares, parts = gaps.curve(SCORE, LIGHT, LARGE)
    assert float(np.interp(0.2, shares, parts)) == pytest.approx(0.6571, abs=5e-5)
    assert float(np.interp(0.5, shares, parts)) == pytest.approx(0.8571, abs=5e-5)


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.floats(0, 1)), min_size=20, max_size=200))
def test_a_curve_goes_from_nothing_to_the_whole_gap_and_no_score_beats_the_oracle(
    rows: list[tuple[bool, bool, float]],
) -> None:
    light, large, score = (np.array(column, float) for column in zip(*rows, strict=True))
    if large.sum() <= light.sum():
        return  # no gap to recover
    for steps in (None, 10):
        shares, parts = gaps.curve(score, light, large, steps)
        assert (shares[0], shares[-1], parts[0]) == (0, 1, 0)
        assert parts[-1] == pytest.approx(1)
        _, best = gaps.curve(large - light, light, large, steps)
        assert (parts <= best + 1e-9).all()


def outcomes(count: int = 3000) -> gap_recovery.Outcomes:
    """Scores that say what they mean."""
    draw = np.random.default_rng(3)
    score = draw.random(count)
    worse = draw.random(count) < score
    light = np.where(worse, 0.0, 1.0)
    return gap_recovery.Outcomes(light, np.ones(count), {gap_recovery.HELD_OUT: score})


def test_random_recovers_half_and_a_score_that_says_something_more() -> None:
    found = {curve.name: curve for curve in gap_recovery.curves(outcomes())}
    assert found["random"].apgr == pytest.approx(0.5, abs=0.03)
    assert found["random"].apgr + 0.1 < found[gap_recovery.HELD_OUT].apgr < found["oracle"].apgr
    assert all(curve.low <= curve.apgr <= curve.high for curve in found.values())


def test_the_gateways_own_rules_hold_what_they_are_asked_for() -> None:
    """The bound of a share over any n in a row is that of `gateway/routing/share_controller.py`: 2 % of n, and 5
    requests."""
    seen = outcomes()
    found = {
        point.rule: point for point in gap_recovery.rule_results(seen, seen.scores[gap_recovery.HELD_OUT], audited=0.0)
    }
    for share in gap_recovery.SHARES:
        point = found[f"large_share: {share:.0%}"]
        assert point.large == pytest.approx(share, abs=0.01)
        assert point.furthest <= 0.02 + 5 / gap_recovery.IN_A_ROW + 1e-9
    for part in gap_recovery.QUALITIES:
        point = found[f"quality: {part:g}"]
        assert point.kept == pytest.approx(part, abs=0.02)
        assert point.recovered == pytest.approx(point.kept), "the large one is never worse here"
        assert point.large < part, "cheaper than by chance"


def test_the_same_order_is_the_same_run() -> None:
    seen, target = outcomes(500), Target((Tier("light", "light"), Tier("large", "large")), large_share=0.3)
    score = seen.scores[gap_recovery.HELD_OUT]
    one, other = (gap_recovery.play(target, score, seen.light == 0, 0.1, seed=4) for _ in range(2))
    assert (one[0] == other[0]).all() and (one[1] == other[1]).all()


def test_what_training_writes_is_read_with_its_subjects_mixed(tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    rows = {"light": [0.0, 1.0] * 50, "large": [1.0] * 100, "held_out": [k / 100 for k in range(100)]}
    path.write_text(json.dumps({**rows, "shipped": rows["held_out"], "length": list(range(100))}))
    seen = gap_recovery.load(path)
    assert sorted(seen.scores["prompt length"]) == list(range(100))
    assert (seen.scores["prompt length"] % 2 == seen.light).all(), "rows stay together"
    assert seen.scores["prompt length"].tolist() != list(range(100))


def test_a_cell_of_a_starved_machine_is_shown_and_marked() -> None:
    cells = [
        Cell("nearhit", 0.3, Outcome(0.8, 1.0, 0.96), STARVED_S / 2, 1),
        Cell("nearhit", 0.7, Outcome(0.8, 1.0, 0.61), STARVED_S * 2, 3),
    ]
    told = promise_table(Scenario(), cells, [0.9, 0.9], 100)
    assert "96.0% / 80.0% " in told and "61.0% / 80.0%*" in told
    assert "on a starved machine" in told
    assert "starved" not in promise_table(Scenario(), cells[:1], [0.9], 100)


def test_what_did_not_run_now_is_taken_from_a_run_of_the_same_setting() -> None:
    cells = [Cell(mode, 0.3, Outcome(0.8, 1.0, 0.96), 0.004, 1) for mode in ("nearhit", "large alone")]
    setting = {"scenario": asdict(Scenario()), "requests": 100, "seed": 1}
    before = {**setting, "cells": [asdict(cell) | {"starved": cell.is_starved} for cell in cells]}
    before = json.loads(json.dumps(before))
    assert previous_cells(before, setting, ["large alone"]) == cells[:1]
    assert previous_cells(before, {**setting, "seed": 2}, ["large alone"]) == []
    assert previous_cells({}, setting, ["large alone"]) == []


def test_tables_name_every_row() -> None:
    seen = outcomes(300)
    assert all(name in curve_table(gap_recovery.curves(seen)) for name in ("held out", "random", "oracle"))
    table = rule_table(gap_recovery.rule_results(seen, seen.scores[gap_recovery.HELD_OUT]))
    assert all(rule in table for rule in ("large_share: 10%", "large_share: 50%", "quality: 0.9", "quality: 0.95"))
