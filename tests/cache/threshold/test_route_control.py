"""One route's promise as a whole: replayed traffic, restarts, what is off."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest

from gateway.cache.threshold.ledger import BANDS, LOWEST, WIDTH
from gateway.cache.threshold.route_control import (
    LEAST_AUDITS,
    NO_ROWS,
    VERSION,
    YOUNG_AUDITS,
    Controls,
    Observation,
    RouteControl,
)
from gateway.cache.threshold.wrong_hits import Label
from gateway.errors import SnapshotInvalid
from gateway.ports import Acceptance
from tests.fixtures.entries import vector_of

PRIOR = [(max(0.02, 0.9 - 1.2 * max(0.0, LOWEST + WIDTH * b - 0.6)), 0.02) for b in range(BANDS)]
PROMISE = Acceptance(max_wrong_hits=0.01)
NO_DRIFT = (0, 0.0, [0.0] * BANDS, [0.0] * BANDS)
UNEQUAL_ROWS = (b"\0" * 6, b"\0" * 8, b"\0" * 8, 3)  # one vector, two residuals
NO_COUNTS = [[0.0] * BANDS] * 3


def seen(control: RouteControl, score: float, label: Label, seed: int = 1) -> None:
    control.record_neighbour(score)
    control.learn(Observation(vector_of(seed), score, 0.8, label))


def taught(labels: int = 400) -> RouteControl:
    control, random = RouteControl(PRIOR, "basis"), np.random.default_rng(2)
    for i in range(labels):
        control.advance(i + 1)
        score = float(random.uniform(0.6, 1.1))
        seen(control, score, Label.WRONG if score < 0.75 else Label.RIGHT, seed=i)
    return control


def test_a_plain_threshold_is_what_it_says() -> None:
    control = taught()
    assert control.threshold(Acceptance(min_similarity=0.93)) == 0.93 == control.current_threshold


@pytest.mark.parametrize("is_ordinary", [True, False])
def test_a_restart_keeps_the_threshold_of_every_size(is_ordinary: bool) -> None:
    """Ordinary requests look up and miss. Those of an import store their answers without a lookup."""
    control, again = RouteControl(PRIOR, "basis"), RouteControl(PRIOR, "basis")
    for entries in range(1, 301):
        control.advance(entries)
        if is_ordinary:
            control.record_neighbour(LOWEST, entries)
    again.restore(control.snapshot())
    sizes = (0, 1, 16, 60, 300, 3000)
    wanted = [control.threshold(PROMISE, entries) for entries in sizes]
    assert [again.threshold(PROMISE, entries) for entries in sizes] == wanted
    assert [control.threshold(PROMISE, entries) for entries in reversed(sizes)] == wanted[::-1], "in any order"


def test_the_threshold_in_force_is_that_of_the_question_that_asks_in_a_long_prompt() -> None:
    control, loose = RouteControl(PRIOR, "basis"), Acceptance(max_wrong_hits=0.2)
    whole = control.threshold(loose)
    part = control.threshold(loose, is_part=True)
    assert part == control.current_threshold > whole


def test_labels_lower_the_threshold_and_move_scores_near_them() -> None:
    fresh, control = RouteControl(PRIOR, "basis"), taught()
    assert control.threshold(PROMISE) < fresh.threshold(PROMISE)
    seen(control, 0.99, Label.WRONG, seed=9999)
    assert control.score(vector_of(9999), 0.99) < 0.99
    assert fresh.score(vector_of(9999), 0.99) == 0.99


def test_what_cannot_be_told_teaches_nothing() -> None:
    control = RouteControl(PRIOR, "basis")
    seen(control, 0.9, Label.UNDECIDED)
    assert control.labels == 0 and control.version == 0


def test_learning_can_be_off() -> None:
    control = taught()
    control.learning = False
    before = control.threshold(PROMISE), control.labels
    for i in range(50):
        seen(control, 0.99, Label.WRONG, seed=i)
    assert control.labels == before[1]
    assert control.score(vector_of(3), 0.9) == 0.9


def test_a_reset_forgets_what_was_learnt() -> None:
    control = taught()
    control.reset()
    assert (control.labels, control.version) == (0, 0)
    assert control.threshold(PROMISE) == RouteControl(PRIOR, "basis").threshold(PROMISE)


def test_a_restart_keeps_what_was_learnt() -> None:
    control = taught()
    again = RouteControl(PRIOR, "basis")
    again.restore(control.snapshot())
    assert again.threshold(PROMISE) == control.threshold(PROMISE)
    assert again.score(vector_of(7), 0.9) == pytest.approx(control.score(vector_of(7), 0.9), abs=1e-3)
    assert (again.labels, again.version) == (control.labels, control.version)
    assert again.estimate() == control.estimate() or np.isnan(again.estimate().of_all)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgpack.packb((VERSION, "basis")),
        msgpack.packb((VERSION - 1, "basis", NO_COUNTS, (0.0, 0.0, 0.0), {}, NO_ROWS, [], 7, NO_DRIFT)),
        msgpack.packb((VERSION, "another basis", NO_COUNTS, (0.0, 0.0, 0.0), {}, NO_ROWS, [], 7, NO_DRIFT)),
        msgpack.packb((VERSION, "basis", [[0.0] * 3] * 3, (0.0, 0.0, 0.0), {}, NO_ROWS, [], 7, NO_DRIFT)),
        msgpack.packb((VERSION, "basis", [[-1.0] * BANDS] * 3, (0.0, 0.0, 0.0), {}, NO_ROWS, [], 7, NO_DRIFT)),
        msgpack.packb((VERSION, "basis", [[1e300] * BANDS] * 3, (0.0, 0.0, 0.0), {}, NO_ROWS, [], 7, NO_DRIFT)),
        msgpack.packb((VERSION, "basis", [[float("nan")] * BANDS] * 3, (0.0, 0.0, 0.0), {}, NO_ROWS, [], 7, NO_DRIFT)),
        msgpack.packb((VERSION, "basis", NO_COUNTS, (0.0, 0.0, 0.0), {"no": 1}, NO_ROWS, [], 7, NO_DRIFT)),
        msgpack.packb((VERSION, "basis", NO_COUNTS, (0.0, 0.0, 0.0), {}, UNEQUAL_ROWS, [], 7, NO_DRIFT)),
        msgpack.packb((VERSION, "basis", NO_COUNTS, (0.0, 0.0, 0.0), {}, NO_ROWS, [("a",)], 7, NO_DRIFT)),
        msgpack.packb((VERSION, "basis", NO_COUNTS, ("many", 0.0, 0.0), {}, NO_ROWS, [], 7, NO_DRIFT)),
    ],
)
def test_a_snapshot_that_does_not_fit_is_refused_and_changes_nothing(data: bytes) -> None:
    control = taught()
    before = control.threshold(PROMISE), control.labels
    with pytest.raises(SnapshotInvalid):
        control.restore(data)
    assert (control.threshold(PROMISE), control.labels) == before


def test_a_snapshot_that_fits_is_not_refused() -> None:
    """The same form as those that are refused."""
    RouteControl(PRIOR, "basis").restore(
        msgpack.packb((VERSION, "basis", NO_COUNTS, (0.0, 0.0, 0.0), {}, NO_ROWS, [], 7, NO_DRIFT))
    )


def test_routes_do_not_learn_from_each_other() -> None:
    counts = {"a": 10, "b": 0}
    controls = Controls(PRIOR, "basis", lambda route: counts[route])
    seen(controls.of("a"), 0.9, Label.WRONG)
    assert (controls.of("a").labels, controls.of("b").labels) == (1, 0)
    assert {route for route, _ in controls.all()} == {"a", "b"}


def test_a_young_route_is_audited_more_often_until_its_promise_is_known() -> None:
    control = RouteControl(PRIOR, "basis")
    control.threshold(PROMISE)
    control.advance(1_000)
    for _ in range(300):
        control.hit()
    young = control.audit_chance(0.9, 0.02)
    for _ in range(LEAST_AUDITS):
        control.audited(Label.RIGHT, young)
    assert control.audit_chance(0.9, 0.02) == pytest.approx(young / YOUNG_AUDITS)


def test_a_route_whose_audits_say_nothing_is_not_audited_more_often_for_ever() -> None:
    control = RouteControl(PRIOR, "basis")
    control.threshold(PROMISE)
    control.advance(1_000)
    for _ in range(300):
        control.hit()
    young = control.audit_chance(0.9, 0.02)
    for _ in range(LEAST_AUDITS + 1):
        control.audited(Label.RIGHT, young, equal_chance=1.0)
    assert control.audit_chance(0.9, 0.02) == pytest.approx(young / YOUNG_AUDITS)
    assert control.audit_chance(0.9, 0.0) == 0.0
