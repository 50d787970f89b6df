"""Labels of few clients must not lower the threshold of the others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cache.threshold.client_labels import (
    MAX_CLIENTS,
    SHARE,
    TOGETHER,
    ClientLabels,
    bounded_weights,
    label_limit,
)
from gateway.cache.threshold.route_control import Observation, RouteControl
from gateway.cache.threshold.wrong_hits import Label
from gateway.errors import SnapshotInvalid
from gateway.ports import Acceptance
from tests.cache.threshold.test_drift import PRIOR
from tests.fixtures.entries import vector_of

PROMISE = Acceptance(max_wrong_hits=0.01)
ATTACKER, VICTIM, *OTHERS = (f"{number:016x}" for number in range(1, 8))


def control_of(said: dict[str, Label], labels: int = 100) -> RouteControl:
    """Return a control that each of these clients has taught `labels` times, all with the same label."""
    control = RouteControl(PRIOR, "basis")
    for number in range(labels):
        control.advance(number + 1)
        control.record_neighbour(score := 0.6 + 0.5 * number / labels)
        for client, label in said.items():
            control.learn(Observation(vector_of(number % 7), score, 0.5, label, client))
    return control


def cold() -> float:
    """Return the threshold of the same traffic without labels."""
    return control_of({}).threshold(PROMISE)


def test_a_client_lowers_the_threshold_for_itself_alone() -> None:
    control = control_of({ATTACKER: Label.RIGHT})
    assert control.threshold(PROMISE, client=ATTACKER) == control.threshold(PROMISE) < cold()
    assert control.threshold(PROMISE, client=VICTIM) >= cold()


def test_a_client_raises_scores_near_its_questions_for_itself_alone() -> None:
    control = control_of({ATTACKER: Label.RIGHT})
    assert control.shift(vector_of(3), ATTACKER) == control.shift(vector_of(3)) > 0.1
    assert control.shift(vector_of(3), VICTIM) == 0.0


def test_wrong_labels_of_any_client_count_for_all() -> None:
    control = control_of({ATTACKER: Label.WRONG})
    assert control.threshold(PROMISE, client=VICTIM) == control.threshold(PROMISE) > cold()
    assert control.shift(vector_of(3), VICTIM) == pytest.approx(control.shift(vector_of(3)))
    assert control.shift(vector_of(3)) < 0


def test_four_clients_teach_the_route_for_one_that_has_taught_nothing() -> None:
    taught = control_of(dict.fromkeys(OTHERS[:4], Label.RIGHT))
    assert taught.threshold(PROMISE, client=VICTIM) == taught.threshold(PROMISE) < cold()
    assert taught.shift(vector_of(3), VICTIM) == pytest.approx(taught.shift(vector_of(3)))
    three = control_of(dict.fromkeys(OTHERS[:3], Label.RIGHT))
    assert three.threshold(PROMISE, client=VICTIM) >= cold()


def test_a_client_with_labels_of_its_own_counts_some_of_another() -> None:
    labels = ClientLabels(2)
    for _ in range(300):
        labels.add(ATTACKER, 1, 0.0)
    for _ in range(30):
        labels.add(VICTIM, 0, 1.0)
    counted = labels.view(labels.group(VICTIM))
    assert counted is not None
    assert counted.tolist() == [[30.0, 10.0], [30.0, 0.0]]


def test_a_snapshot_and_other_gateways_know_who_taught() -> None:
    said: list[tuple[object, ...]] = []
    control = RouteControl(PRIOR, "basis", report=said.append)
    for number in range(100):
        control.learn(Observation(vector_of(number % 7), 0.7, 0.5, Label.RIGHT, ATTACKER))
    restored, follower = RouteControl(PRIOR, "basis"), RouteControl(PRIOR, "basis")
    restored.restore(control.snapshot())
    for event in said:
        follower.apply_event(event)
    for other in (restored, follower):
        for client in (ATTACKER, VICTIM):
            assert other.threshold(PROMISE, client=client) == control.threshold(PROMISE, client=client)
            assert other.shift(vector_of(3), client) == pytest.approx(control.shift(vector_of(3), client), abs=2e-3)


@pytest.mark.parametrize("rows", [[("a", b"1234", b"1234")], [("a",)], 3, [("a", b"\0" * 7, b"\0" * 7)]])
def test_unreadable_labels_of_clients_are_refused(rows: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        ClientLabels(2).restore(rows)  # type: ignore[arg-type]
    with pytest.raises(SnapshotInvalid):
        RouteControl(PRIOR, "basis").restore(b"\x93\x01\x02\x03")


def test_clients_beyond_the_bound_count_as_one() -> None:
    labels = ClientLabels(1)
    for number in range(1, 10 * MAX_CLIENTS):
        labels.add(f"{number:x}", 0, 0.0)
    assert len(labels.rows()) <= MAX_CLIENTS + 1
    assert sum(np.frombuffer(row[1], "<f4").sum() for row in labels.rows()) == 10 * MAX_CLIENTS - 1


@given(st.lists(st.floats(0.0, 1e4), max_size=12), st.floats(0.0, 1e4))
def test_nobody_else_has_more_than_a_share(others: list[float], own: float) -> None:
    limit = label_limit(others, own)
    counted = [min(amount, limit) for amount in others]
    assert max(counted, default=0.0) <= SHARE * (own + sum(counted)) * (1 + 1e-6) + 1e-6
    assert label_limit([*others, 1.0], own) >= limit * (1 - 1e-6) - 1e-6  # one more client takes nothing away


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(0, 4)), min_size=1, max_size=30))
def test_weights_are_bounded_and_those_of_the_asking_client_stay(rows: list[tuple[float, int]]) -> None:
    weights, groups = np.array([row[0] for row in rows]), np.array([row[1] for row in rows], np.intp)
    own = int(groups[0])
    bounded = bounded_weights(weights, groups, own)
    assert (bounded <= weights + 1e-12).all()
    assert (bounded[groups == own] == weights[groups == own]).all()
    assert (bounded_weights(weights, groups, None) <= weights + 1e-12).all()


def test_all_together_are_no_client() -> None:
    labels = ClientLabels(1)
    labels.add(ATTACKER, 0, 0.0)
    assert labels.view(labels.group(TOGETHER)) is None
