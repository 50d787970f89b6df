"""The drift alarm: it notices that neighbours prove wrong more often than learned, and the route starts again."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.cache.threshold.drift import LIMIT, DriftDetector
from gateway.cache.threshold.ledger import BANDS, LOWEST, WIDTH, band_of
from gateway.cache.threshold.route_control import REFRESH_EVERY, LearningEvent, Observation, RouteControl
from gateway.cache.threshold.wrong_hits import Label
from gateway.errors import SnapshotInvalid
from gateway.ports import Acceptance
from tests.fixtures.entries import vector_of

PRIOR = [(max(0.02, 0.9 - 1.2 * max(0.0, LOWEST + WIDTH * b - 0.6)), 0.02) for b in range(BANDS)]
PROMISE = Acceptance(max_wrong_hits=0.01)
BELOW = 0.8  # a score below the threshold, where every label is a miss


def stream(
    control: RouteControl, share: float, labels: int, seed: int, score: float = BELOW, requests: int = 2
) -> int | None:
    """Send labels with this share of wrong ones, one in so many requests. Return after how many the alarm was raised;
    None: it was not."""
    draw = np.random.default_rng(seed)
    for at in range(1, labels + 1):
        control.advance(control._requests + requests)
        control.threshold(PROMISE)
        control.record_neighbour(score)
        label = Label.WRONG if draw.random() < share else Label.RIGHT
        if control.learn(Observation(vector_of(at % 7), score, 0.5, label)):
            return at
    return None


def test_twice_as_many_wrong_labels_are_mostly_noticed_within_300() -> None:
    noticed = [_noticed(seed) for seed in range(8)]
    assert sum(at is not None for at in noticed) >= 6
    assert all(at is None or at > 10 for at in noticed)  # not at the first bad luck


def _noticed(seed: int) -> int | None:
    control = RouteControl(PRIOR, "basis")
    assert stream(control, 0.2, 1500, seed) is None
    return stream(control, 0.4, 300, 100 + seed)


def test_as_many_as_ever_and_fewer_are_no_drift() -> None:
    control = RouteControl(PRIOR, "basis")
    assert stream(control, 0.3, 3000, 1) is None
    assert stream(control, 0.05, 1000, 2) is None
    assert control.labels_since_drift is None


def test_a_route_that_is_harder_than_the_calibration_is_learned_without_an_alarm() -> None:
    assert stream(RouteControl(PRIOR, "basis"), 0.9, 500, 1, score=0.9) is None


def spread(control: RouteControl, requests: int = 2000) -> None:
    """Send unlabelled requests with scores of all kinds."""
    for at in range(requests):
        control.advance(control._requests + 1)
        control.record_neighbour(0.5 + 0.5 * (at % 100) / 100)


def test_after_the_alarm_the_threshold_is_that_of_the_calibration_or_above() -> None:
    control, cold = RouteControl(PRIOR, "basis"), RouteControl(PRIOR, "basis")
    stream(control, 0.02, 1500, 1)
    spread(control)
    learnt = control.threshold(PROMISE)
    assert stream(control, 0.3, 300, 2) is not None
    for each in (control, cold):
        spread(each, 20_000)
    assert learnt < cold.threshold(PROMISE) <= control.threshold(PROMISE)
    assert control.labels == 0  # the evidence near single questions is forgotten, too
    assert control.shift(vector_of(1)) == 0.0


def test_the_labels_since_the_change_stay_where_the_calibration_would_serve_more() -> None:
    lenient = [(0.02, 0.02)] * BANDS
    control, cold = RouteControl(lenient, "basis"), RouteControl(lenient, "basis")
    stream(control, 0.2, 2000, 1, score=0.7, requests=20)  # so few that the calibration serves them
    raised_after = stream(control, 0.6, 300, 2, score=0.7, requests=20)
    assert raised_after is not None
    for _ in range(2000 + raised_after):  # the same traffic without labels
        cold.advance(cold._requests + 20)
        cold.record_neighbour(0.7)
    for each in (control, cold):
        spread(each, 2000)
    assert control.threshold(PROMISE) > cold.threshold(PROMISE)


def test_traffic_and_measured_wrong_hits_outlive_the_alarm() -> None:
    control = RouteControl(PRIOR, "basis")
    stream(control, 0.1, 1500, 1)
    control.hit()
    control.audited(Label.WRONG, 0.5)
    before = control.estimate().of_served, control._requests
    assert stream(control, 0.6, 300, 2) is not None
    assert (control.estimate().of_served, control.labels_since_drift) == (before[0], 0)
    assert control._requests > before[1]
    version = control.version
    stream(control, 0.6, 3, 3)
    assert (control.labels_since_drift, control.version) == (3, version + 3)


def test_labels_of_other_gateways_count_and_one_of_them_raises_the_alarm() -> None:
    said: dict[str, list[LearningEvent]] = {"one": [], "two": []}
    controls = {name: RouteControl(PRIOR, "basis", report=said[name].append) for name in said}
    draw, raised = np.random.default_rng(3), []
    for at in range(2600):
        name, other = ("one", "two") if at % 2 else ("two", "one")
        control = controls[name]
        control.threshold(PROMISE)
        control.record_neighbour(BELOW)
        wrong = draw.random() < (0.2 if at < 2000 else 0.45)
        if control.learn(Observation(vector_of(1), BELOW, 0.5, Label.WRONG if wrong else Label.RIGHT)):
            raised.append(at - 2000)
        while said[name]:
            controls[other].apply_event(said[name].pop(0))
        if raised:
            break
    assert len(raised) == 1
    assert 0 < raised[0] < 300
    thresholds = {control.threshold(PROMISE) for control in controls.values()}
    assert len(thresholds) == 1
    assert {control.labels_since_drift for control in controls.values()} == {0}


@pytest.mark.parametrize("said", [("drift",), ("drift", [1.0], [1.0]), ("drift", [-1.0] * BANDS, [0.0] * BANDS)])
def test_an_alarm_that_cannot_be_read_forgets_nothing(said: LearningEvent) -> None:
    control = RouteControl(PRIOR, "basis")
    stream(control, 0.2, 20, 1)
    with pytest.raises((ValueError, TypeError)):
        control.apply_event(said)
    assert control.labels == 20


def test_a_restart_in_the_middle_of_a_change_notices_it_as_soon() -> None:
    """The predicted shares are computed every `REFRESH_EVERY` labels, and a restart begins to count again."""
    one = RouteControl(PRIOR, "basis")
    stream(one, 0.2, 1500, 1)
    stream(one, 0.4, 30, 2)
    two = RouteControl(PRIOR, "basis")
    two.restore(one.snapshot())
    assert two.snapshot() == one.snapshot()
    one.advance(5000)
    two.advance(5000)
    found, expected = stream(two, 0.4, 300, 3), stream(one, 0.4, 300, 3)
    assert found is not None
    assert expected is not None
    assert abs(found - expected) <= REFRESH_EVERY


def test_alarms_are_remembered_by_the_snapshot() -> None:
    control, again = RouteControl(PRIOR, "basis"), RouteControl(PRIOR, "basis")
    stream(control, 0.1, 1500, 1)
    stream(control, 0.6, 300, 2)
    again.restore(control.snapshot())
    assert again.labels_since_drift == 0


@pytest.mark.parametrize("row", [(-1.0, [0.0] * BANDS, [0.0] * BANDS), (1.0, [0.0], [0.0]), (float("nan"), [], [])])
def test_a_detector_of_another_form_is_refused(row: tuple[object, ...]) -> None:
    with pytest.raises(SnapshotInvalid if row[0] == 1.0 else ValueError):
        DriftDetector.of_row(row)


def test_the_sum_begins_again_where_the_labels_are_as_predicted() -> None:
    detector = DriftDetector()
    detector.add(band_of(BELOW), 0.2, 1.0)
    assert 0 < detector.excess < LIMIT
    assert detector.wrong.sum() == detector.labels.sum() == 1
    for _ in range(10):
        detector.add(band_of(BELOW), 0.2, 0.0)
    assert (detector.excess, detector.labels.sum(), detector.wrong.sum()) == (0.0, 0.0, 0.0)
