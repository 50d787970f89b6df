"""A route's own fit of the complexity: when it is put in force, when it falls back, and what survives a restart."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.policy.model import Target
from gateway.errors import SnapshotInvalid
from gateway.observability.telemetry import Telemetry
from gateway.routing.route_fit import CAPACITY, LabelArrays, PromptLabels, RouteFit, fit_models, judge_fit
from gateway.routing.route_score import MIN_LABELS, FitResult, RouteScore, attempt_fit
from gateway.routing.tier_learning import TierLearning
from gateway.scores import ScoredPrompt, TierLabel
from tests.fixtures.clock import FakeClock
from tests.fixtures.targets import light_and_large

WIDTH = 12
BASIS = "complexity/1"
RULE: Target = light_and_large("light", "large", 0.5)


def prompts(count: int, seed: int = 0) -> list[ScoredPrompt]:
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(count, WIDTH)).astype(np.float16)
    return [ScoredPrompt(float(draw.uniform(0.2, 0.8)), row) for row in rows]


def fitted(labels: LabelArrays) -> RouteFit:
    """The fit to labels, whether or not the gate lets it pass."""
    return RouteFit(fit_models(labels), judge_fit(labels).blend)


def worse(prompt: ScoredPrompt, draw: np.random.Generator, informative: float) -> bool:
    """The shipped score says nothing, the first number of the row says `informative` of the logit."""
    return bool(draw.random() < 1 / (1 + math.exp(-informative * float(prompt.row[0]))))


def taught(count: int, informative: float, seed: int = 0) -> RouteScore:
    score, draw = RouteScore(BASIS), np.random.default_rng(seed + 1)
    for prompt in prompts(count, seed):
        score.observe(prompt, float(worse(prompt, draw, informative)), 1.0)
    return score


def in_order(score: RouteScore, seed: int = 9) -> float:
    """The share of pairs of prompts in the order of their first number."""
    asked = prompts(200, seed)
    by = np.array([score.score(prompt) for prompt in asked])
    truth = np.array([float(prompt.row[0]) for prompt in asked])
    high, low = by[truth > 0], by[truth <= 0]
    return float(((high[:, None] > low[None, :]) + 0.5 * (high[:, None] == low[None, :])).mean())


def test_a_fit_that_proves_better_is_put_in_force() -> None:
    score = taught(600, informative=2.0)
    before = in_order(score)
    assert score.apply(attempt_fit(score.labels()), 600)
    assert before < 0.6 and in_order(score) > 0.9
    assert str(score.source) == "the route's own fit 1, to 600 labels"


@pytest.mark.parametrize("seed", range(4))
def test_labels_that_say_nothing_change_no_score(seed: int) -> None:
    score = taught(600, informative=0.0, seed=seed)
    assert not score.apply(attempt_fit(score.labels()), 600)
    assert [score.score(prompt) for prompt in prompts(20)] == [prompt.score for prompt in prompts(20)]
    assert "no better" in str(score.source)


def test_few_labels_are_not_fitted() -> None:
    score = taught(MIN_LABELS - 1, informative=3.0)
    assert not score.is_due
    assert (
        str(score.source) == f"the shipped score; the route has {MIN_LABELS - 1} of {MIN_LABELS} labels for its own fit"
    )
    score.observe(prompts(1)[0], 1.0, 1.0)
    assert score.is_due


def test_a_fit_is_tried_again_after_a_tenth_more_labels() -> None:
    score = taught(600, informative=2.0)
    score.apply(attempt_fit(score.labels()), 600)
    due = []
    for prompt in prompts(60, seed=5):
        due.append(score.is_due)
        score.observe(prompt, 1.0, 1.0)
    assert not any(due) and score.is_due


def test_a_fit_falls_back_once_it_is_worse_and_numbers_go_on() -> None:
    score = taught(600, informative=2.0)
    score.apply(attempt_fit(score.labels()), 600)
    assert not score.apply(FitResult(0.5, None), 700)  # better, but not surely: it stays
    assert score.source.number == 1
    assert score.apply(FitResult(-0.5, None), 800)
    assert score.source.number == 0
    score.apply(attempt_fit(score.labels()), 900)
    assert score.source.number == 2


def test_traffic_that_turns_around_ends_the_fit() -> None:
    score = taught(600, informative=2.0)
    score.apply(attempt_fit(score.labels()), 600)
    draw = np.random.default_rng(3)
    for prompt in prompts(900, seed=4):
        score.observe(prompt, float(worse(prompt, draw, 0.0)), 1.0)
    for prompt in prompts(CAPACITY, seed=6):
        score.observe(prompt, float(worse(prompt, draw, 0.0)), 1.0)
    attempt = attempt_fit(score.labels())
    score.apply(attempt, CAPACITY)
    assert attempt.fit is None and score.source.number == 0


def test_false_labels_move_a_score_by_a_bounded_amount() -> None:
    labels = PromptLabels()
    for at, prompt in enumerate(prompts(400)):
        labels.add(prompt, float(at % 2), 1.0)
    fit = fitted(labels.arrays())
    far = ScoredPrompt(0.5, np.full(WIDTH, 60_000, np.float16))
    shipped = fit.blend.inner(np.array([fit.blend.means[:2]]), np.zeros(1))[0]
    moved = fit.blend.inner(fit.models(far.row[np.newaxis]), np.zeros(1))[0]
    assert abs(moved - shipped) <= fit.blend.share * 3.0 * 1.5
    assert 0 < fit.score(far) < 1


def test_labels_of_little_weight_count_little() -> None:
    def slope(weight: float) -> float:
        labels, draw = PromptLabels(), np.random.default_rng(2)
        for prompt in prompts(500):
            labels.add(prompt, float(worse(prompt, draw, 2.0)), weight)
        return float(fit_models(labels.arrays()).ridge[0])

    assert 0 < slope(0.1) < slope(1.0)


def test_a_better_light_answer_tells_more_than_an_equal_one() -> None:
    """Large answers are worse where the first number is negative: two values cannot say so."""

    def order(better: float) -> float:
        score, draw = RouteScore(BASIS), np.random.default_rng(8)
        for prompt in prompts(600):
            first = float(prompt.row[0])
            gain = 1.0 if first > 1 else better if first < -1 else 0.0
            score.observe(prompt, gain if draw.random() < 0.4 else 0.0, 1.0)
        score.apply(attempt_fit(score.labels()), 600)
        return in_order(score)

    assert order(-1.0) > order(0.0) + 0.01


def test_what_is_said_comes_true_that_often() -> None:
    labels, draw = PromptLabels(), np.random.default_rng(4)
    for prompt in prompts(2000):
        labels.add(prompt, float(worse(prompt, draw, 2.0)), 1.0)
    fit, asked = fitted(labels.arrays()), prompts(3000, seed=11)
    said = np.array([fit.score(prompt) for prompt in asked])
    seen = np.array([worse(prompt, draw, 2.0) for prompt in asked])
    for part in np.array_split(np.argsort(said), 5):
        assert said[part].mean() == pytest.approx(seen[part].mean(), abs=0.06)


def test_the_ring_keeps_the_newest_in_order() -> None:
    labels = PromptLabels(capacity=10)
    for at in range(25):
        labels.add(ScoredPrompt(0.5, np.full(3, at, np.float16)), float(at % 2), 1.0)
    kept = labels.arrays()
    assert kept.rows[:, 0].tolist() == list(range(15, 25))
    again = PromptLabels(capacity=10)
    again.restore(kept)
    again.add(ScoredPrompt(0.5, np.full(3, 25, np.float16)), 1.0, 1.0)
    assert again.arrays().rows[:, 0].tolist() == list(range(16, 26))


def test_a_row_of_another_width_is_scored_as_shipped() -> None:
    score = taught(600, informative=2.0)
    score.apply(attempt_fit(score.labels()), 600)
    other = ScoredPrompt(0.3, np.zeros(WIDTH + 1, np.float16))
    assert score.score(other) == 0.3
    score.observe(other, 1.0, 1.0)
    assert len(score.labels()) == 600


def test_what_was_fitted_comes_through_a_restart() -> None:
    score, again = taught(600, informative=2.0), RouteScore(BASIS)
    score.apply(attempt_fit(score.labels()), 600)
    again.restore(score.snapshot())
    assert [again.score(p) for p in prompts(20)] == pytest.approx([score.score(p) for p in prompts(20)])
    assert (again.source, again.version, again.state) == (score.source, score.version, score.state)
    assert again.labels().rows.tolist() == score.labels().rows.tolist()


def test_a_full_snapshot_is_bounded() -> None:
    score = RouteScore(BASIS)
    prompt = ScoredPrompt(0.5, np.zeros(466, np.float16))
    for _ in range(CAPACITY + 10):
        score.observe(prompt, 1.0, 1.0)
    assert len(score.snapshot()) < 4_000_000


def test_a_snapshot_of_another_score_is_refused() -> None:
    with pytest.raises(SnapshotInvalid, match="expected version 2, 'other'"):
        RouteScore("other").restore(RouteScore(BASIS).snapshot())


@given(st.binary(max_size=200))
def test_no_snapshot_breaks_a_score(data: bytes) -> None:
    score = RouteScore(BASIS)
    with pytest.raises(SnapshotInvalid):
        score.restore(data)
    assert score.score(prompts(1)[0]) == prompts(1)[0].score


def test_arrays_that_cannot_be_labels_are_refused() -> None:
    with pytest.raises(ValueError, match="expected as many finite ones"):
        PromptLabels().restore(LabelArrays(np.zeros((2, 3), np.float16), np.zeros((1, 3), np.float32)))
    with pytest.raises(ValueError, match=r"in \[0, 1\]"):
        PromptLabels().restore(LabelArrays(np.zeros((1, 3), np.float16), np.full((1, 3), 7, np.float32)))


def learning() -> TierLearning:
    return TierLearning(BASIS, FakeClock(), Telemetry())


def teach(routes: TierLearning, count: int) -> None:
    draw = np.random.default_rng(1)
    for prompt in prompts(count):
        label = TierLabel.WORSE if worse(prompt, draw, 2.0) else TierLabel.EQUAL
        routes.observe("default", prompt, label, source="audit")


def test_a_route_with_enough_labels_gets_its_fit_and_a_frozen_one_does_not() -> None:
    routes = learning()
    routes.of("default").learning = True
    teach(routes, 600)
    asyncio.run(routes.refit())
    assert routes.scores.of("default").source.number == 1
    frozen = learning()
    frozen.of("default").learning = False
    teach(frozen, 600)
    asyncio.run(frozen.refit())
    assert frozen.scores.of("default").source.number == 0


def test_labels_of_another_gateway_are_fitted_too() -> None:
    here, sent = learning(), []
    there = TierLearning(BASIS, FakeClock(), Telemetry(), lambda *words: sent.append(words))
    here.of("default")
    teach(there, 400)
    for words in sent:
        here.apply_event(*words)
    assert len(here.scores.of("default").labels()) == 400
    here.apply_event("complexity of an older gateway", "default", (0.5, True, 1.0, b""))
    assert len(here.scores.of("default").labels()) == 400
    with pytest.raises(ValueError, match="not a valid TierLabel"):
        here.apply_event(BASIS, "default", (0.5, "bad", 1.0, b""))


def test_a_difference_that_nobody_judged_is_half_a_label_and_not_fitted() -> None:
    here, sent = learning(), []
    there = TierLearning(BASIS, FakeClock(), Telemetry(), lambda *words: sent.append(words))
    for routes in (here, there):
        routes.of("default")
    prompt = prompts(1)[0]
    there.observe("default", prompt, TierLabel.DIFFERENT, source="audit")
    there.observe("default", prompt, TierLabel.EQUAL, source="audit", fits=False)
    for words in sent:
        here.apply_event(*words)
    for routes in (here, there):
        calibration = routes.of("default")._calibration
        assert (calibration.labels.sum(), calibration.worse.sum()) == (2.0, 0.5)
        assert len(routes.scores.of("default").labels()) == 0


def test_a_label_without_weight_is_counted_and_not_fitted() -> None:
    routes = learning()
    routes.observe("default", prompts(1)[0], TierLabel.WORSE, source="cascade", weight=0.0)
    assert len(routes.scores.of("default").labels()) == 0
    assert routes.of("default").tier_state(RULE, 0.0).labels == {"cascade": 1}


def test_a_reset_forgets_labels_and_fit() -> None:
    routes = learning()
    teach(routes, 600)
    asyncio.run(routes.refit())
    routes.reset("default")
    source = routes.scores.of("default").source
    assert (source.number, source.labels) == (0, 0)
