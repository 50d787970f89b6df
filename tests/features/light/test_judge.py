"""The verdict on a version by its evidence, after reports of other rollouts that went wrong."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gateway.config.errors import ConfigInvalid
from gateway.config.policy.load import policy_from_text
from gateway.features.light.judge import (
    ERROR,
    FIRST_LOOK,
    WINDOW,
    Evidence,
    Move,
    bucket_end,
    bucket_of,
    is_slower,
    judge,
    percentile,
)
from gateway.features.light.rows import AnsweredRow, is_teachable, same_label, split_rows
from gateway.features.light.rule import RolloutRule
from gateway.features.light.state import Change, Rollout, RolloutEvent
from gateway.upstream.model_versions import VersionSplit
from tests.config.documents import config

RULE = RolloutRule()
FIRST = Rollout(candidate="1", epoch=1)
SECOND = Rollout(stable="1", candidate="2", epoch=2)
IN_FORCE = Rollout(stable="2", previous="1", epoch=3)
FAST = bucket_of(0.01)


def audited(n: int, right: int, won: int = 0, lost: int = 0, time: int = FAST) -> Evidence:
    before = right - won + lost
    return Evidence(n, right, before, won, lost, times={time: n}, times_before={FAST: n})


def test_without_traffic_a_step_neither_ends_nor_fails() -> None:
    """Argo Rollouts #1905: a metric without values took the new version back, though nothing was known of it."""
    for rollout in (FIRST, SECOND, IN_FORCE):
        assert judge(rollout, Evidence(), RULE).move is Move.HOLD
    assert judge(SECOND, Evidence(waited=86_399), RULE).move is Move.HOLD


def test_a_step_without_evidence_ends_in_the_end_with_the_version_before() -> None:
    found = judge(SECOND, Evidence(audits=3, right=3, waited=86_400), RULE)
    assert found.move is Move.BACK
    assert "no decision after 24.0 hours, 3 audits" in found.why
    assert judge(IN_FORCE, Evidence(waited=10**9), RULE).move is Move.HOLD, "a version in force waits for nothing"


def test_a_version_before_that_fails_does_not_hold_a_good_one_back() -> None:
    """Argo Rollouts #1774: a canary was stuck, because the stable version was broken."""
    broken = replace(audited(100, 98, won=98), calls=50, calls_before=500, errors_before=400)
    assert judge(SECOND, broken, RULE).move is Move.UP


def test_if_both_versions_fail_the_new_one_is_not_to_blame() -> None:
    both = Evidence(calls=40, errors=20, calls_before=400, errors_before=210)
    assert judge(SECOND, both, RULE).move is Move.HOLD


@pytest.mark.parametrize(("calls", "errors", "move"), [(2, 2, Move.HOLD), (4, 4, Move.BACK), (400, 4, Move.HOLD)])
def test_a_version_that_fails_more_often_goes_back_before_any_look(calls: int, errors: int, move: Move) -> None:
    """Flagger #1801: a breached threshold took nothing back while a step waited."""
    found = judge(SECOND, Evidence(calls=calls, errors=errors, calls_before=1000), RULE)
    assert found.move is move


def test_nothing_is_decided_before_the_first_look_and_little_by_little_evidence() -> None:
    assert judge(SECOND, audited(FIRST_LOOK - 1, FIRST_LOOK - 1), RULE).move is Move.HOLD
    doubtful = audited(FIRST_LOOK, 20, won=2, lost=3)
    assert judge(SECOND, doubtful, RULE).move is Move.LOOKED
    assert judge(replace(SECOND, looks=1), doubtful, RULE).move is Move.HOLD, "the next look comes at twice as many"


def test_a_worse_version_goes_back_and_an_equal_one_goes_on() -> None:
    worse = judge(SECOND, audited(100, 85, won=0, lost=13), RULE)
    assert worse.move is Move.BACK
    assert "0 answers became right and 13 wrong" in worse.why
    assert judge(SECOND, audited(200, 196, won=1, lost=1), RULE).move is Move.UP
    assert judge(SECOND, audited(100, 98, won=10), RULE).move is Move.UP


def test_a_first_version_is_measured_by_its_agreement_alone() -> None:
    assert judge(FIRST, replace(audited(50, 49), times_before={}), RULE).move is Move.UP
    bad = judge(FIRST, replace(audited(50, 20), times_before={}), RULE)
    assert bad.move is Move.BACK
    assert "20 of 50 audits, less than 80%" in bad.why
    assert judge(FIRST, replace(audited(50, 42), times_before={}), RULE).move is Move.LOOKED


def test_a_slower_version_goes_back() -> None:
    slow = judge(SECOND, replace(audited(50, 50), slower=40, faster=1), RULE)
    assert slow.move is Move.BACK
    assert slow.why == "it is slower: 40 of 50 answers took more than 1.5 times as long, the other way round 1"
    busy = replace(audited(200, 200), slower=60, faster=61)
    assert judge(SECOND, busy, RULE).move is Move.UP, "a busy machine delays both equally often"
    assert judge(SECOND, replace(audited(200, 200), slower=15), RULE).move is Move.UP, "10 % may be slower"
    assert judge(SECOND, replace(audited(200, 200), slower=24, faster=20), RULE).move is Move.LOOKED


def test_a_few_milliseconds_make_no_answer_slow() -> None:
    assert not is_slower(0.015, 0.001, 1.5)
    assert is_slower(0.1, 0.05, 1.5)
    assert not is_slower(0.1, 0.05, 3.0)


def test_a_version_that_drifts_after_its_promotion_goes_back() -> None:
    """Flagger #616: after a promotion nobody looked any more, and the way back was a new rollout."""
    drifted = judge(IN_FORCE, audited(100, 60, won=0, lost=36), RULE)
    assert drifted.move is Move.BACK
    assert judge(IN_FORCE, audited(WINDOW, WINDOW - 4, won=3, lost=3), RULE).move is Move.WINDOW_OVER


def test_if_both_versions_drift_the_large_model_answers() -> None:
    both = judge(IN_FORCE, audited(100, 50, won=2, lost=4), RULE)
    assert both.move is Move.OUT
    assert both.why == "it agrees with the large model in 50 of 100 audits, version 1 in 52"


def test_the_chance_to_refuse_an_equal_version_stays_below_its_error() -> None:
    """The looks at 25, 50, 100, 200 and 400 audits share it: with a plain test at each of them it is 0.14."""
    draw, refused, runs = random.Random(7), 0, 2000
    for _ in range(runs):
        rollout, won, lost = SECOND, 0, 0
        for n in range(1, 401):
            chance = draw.random()
            won, lost = won + (chance < 0.1), lost + (0.1 <= chance < 0.2)
            if n != FIRST_LOOK * 2**rollout.looks:
                continue
            verdict = judge(rollout, audited(n, n - 20 if n > 200 else n, won=won, lost=lost), RolloutRule(margin=1e-6))
            if verdict.move is Move.BACK:
                refused += 1
                break
            rollout = rollout.look(anew=False) if verdict.move is Move.LOOKED else rollout
    assert refused / runs < ERROR


def test_a_new_version_in_the_middle_begins_at_the_first_step_without_old_evidence() -> None:
    """Flagger #30: a new revision went on at the share that an earlier one had reached."""
    middle = replace(SECOND, step=1, looks=3)
    begun = middle.begin("3", {})
    assert (begun.candidate, begun.stable, begun.step, begun.looks) == ("3", "1", 0, 0)
    assert begun.epoch == middle.epoch + 1


def test_after_a_rollback_the_next_version_may_begin() -> None:
    """Flagger #1152: after a failure no new version was rolled out."""
    back = SECOND.roll_back()
    assert (back.stable, back.candidate) == ("1", None)
    assert back.begin("3", {}).candidate == "3"


def test_each_way_back_keeps_a_version_or_leaves_the_large_model() -> None:
    assert IN_FORCE.roll_back().stable == "1"
    assert IN_FORCE.roll_back().roll_back().stable is None
    assert FIRST.roll_back().split(RULE.steps) == VersionSplit(None)
    assert SECOND.promote().previous == "1", "a rollback needs it loaded (Flagger #453)"
    assert SECOND.promote().versions == ("2", "1")


def test_before_the_first_rollout_the_server_chooses() -> None:
    refused = Rollout().record(RolloutEvent(1.0, Change.REFUSED, "", "worse", "nearhit light"))
    assert refused.split(RULE.steps) is None
    assert SECOND.split(RULE.steps) == VersionSplit("1", "2", 0.05)
    assert replace(SECOND, step=7).split(RULE.steps) == VersionSplit("1", "2", 1.0), "a policy with fewer steps"


def test_a_split_sends_its_share() -> None:
    split = VersionSplit("1", "2", 0.25)
    assert [split.choose(draw) for draw in (0.0, 0.249, 0.25, 0.999)] == ["2", "2", "1", "1"]
    assert VersionSplit(None, "2", 0.25).choose(0.5) is None


def test_a_state_survives_the_store_and_a_damaged_one_is_none() -> None:
    full = SECOND.record(RolloutEvent(1.0, Change.STARTED, "2", "a new version begins", "somebody"))
    assert Rollout.of(full.packed()) == full
    for damaged in (b"", b"[]", b"{}", b'{"events": [{"at": 1}]}', b'{"events": [], "more": 1}'):
        assert Rollout.of(damaged) == Rollout()


def test_times_are_bucketed_upwards() -> None:
    assert bucket_end(bucket_of(0.05)) >= 0.05 > bucket_end(bucket_of(0.05) - 1)
    assert bucket_of(0.0) == 0
    assert bucket_of(1e9) == 63
    assert percentile({}, 0.95) is None
    assert percentile({3: 95, 9: 5}, 0.95) == bucket_end(3)


def test_counts_of_the_store_are_read_and_others_left_out() -> None:
    found = Evidence.of({"audits": 2, "time:4": 2, "time_before:5": 1, "time:x": 1, "future": 9})
    assert found == Evidence(audits=2, times={4: 2}, times_before={5: 1})


def row(at: float, text: str, label: str, ends: float = 100.0) -> AnsweredRow:
    return AnsweredRow(at, ends, text, label, "t", ())


def test_the_newest_fifth_is_held_out_and_no_question_is_on_both_sides() -> None:
    rows = [row(n, f"q{n}", "ab"[n % 2]) for n in range(10)]
    learnt, held = split_rows([*rows, row(10, " Q0 ", "b"), row(11, "q12", "new"), row(12, "old", "a", 5.0)], 50.0)
    assert [each.text for each in learnt] == [f"q{n}" for n in range(1, 10)]
    assert [each.text for each in held] == [" Q0 "], "q0 was answered again; the label new cannot be learnt"


def test_only_classes_are_learnt() -> None:
    assert is_teachable("q", "lost_card")
    assert not is_teachable("q", "a" * 201)
    assert not is_teachable(" ", "a")
    assert same_label("Lost  Card\n", "lost card")


@pytest.mark.parametrize(
    ("rollout", "fault"),
    [
        ("{steps: [50%, 5%, 100%]}", "rising shares that end with 100%"),
        ("{steps: [5%]}", "rising shares that end with 100%"),
        ("{margin: 0}", "margin"),
        ("{webhook: nowhere}", "expected a URL"),
        ("{every: 1h}", "every"),
    ],
)
def test_faults_of_the_rule_are_told(rollout: str, fault: str) -> None:
    with pytest.raises(ConfigInvalid, match=fault):
        policy(f"{{light: main, large: main, escalate_above: 0.5, rollout: {rollout}}}")


def test_its_rule_is_read_as_written() -> None:
    assert policy("{light: main, large: main, escalate_above: 0.5, rollout: on}") == RolloutRule()
    with pytest.raises(ConfigInvalid, match="one backend in light"):
        policy("{light: {main: 50%, other: 50%}, large: main, escalate_above: 0.5, rollout: on}")
    with pytest.raises(ConfigInvalid, match="backend"):
        policy("{backend: main, rollout: on}")


def policy(route: str) -> RolloutRule | None:
    text = f"version: 1\nroutes:\n  - name: default\n    match: {{}}\n    route: {route}\n"
    return policy_from_text(text, "policy.yaml", config()).routes[0].of(RolloutRule)


def test_the_rollout_of_a_new_model_begins_anew_in_an_epoch_of_its_own() -> None:
    mine = IN_FORCE.of_model("intents")
    assert replace(mine, model="") == IN_FORCE, "a record of an older release names no model"
    assert mine.of_model("intents") == mine
    other = mine.of_model("topics")
    assert (other.versions, other.has_begun, other.split(RULE.steps)) == ((), False, None)
    assert other.epoch > mine.epoch, "evidence of the other model stays apart"
    assert other.begin("1", {}).has_begun
