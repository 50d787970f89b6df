"""The CPU that learning may take, and the pairs that it takes first. Clocks are the test's own; the encoder is real."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.adapters.embedding.embedders import BatchingEmbedder
from gateway.adapters.embedding.hashing import HashEncoder
from gateway.cache import learning_budget
from gateway.cache.answer_comparer import AnswerComparer
from gateway.cache.answer_similarity import compare_words
from gateway.cache.learning_budget import BURST_S, START_S, LearningBudget
from gateway.cache.load_level import EncoderLoad
from gateway.cache.threshold.route_control import RouteControl
from gateway.cache.threshold.wrong_hits import Label
from gateway.observability.telemetry import Telemetry
from gateway.ports import Acceptance, EncoderCpu, EncoderQueue
from tests.fixtures.waiting import until

PRIOR = [(0.5, 0.02)] * 50


@dataclass
class Machine:
    """The clocks of a machine: the passes of the encoder, the thread of the loop, and the wait for the encoder."""

    requests_s: float = 0.0
    learning_s: float = 0.0
    loop_s: float = 0.0
    wait_s: float = 0.0

    def budget(self, share: float, telemetry: Telemetry | None = None) -> LearningBudget:
        telemetry = telemetry or Telemetry()
        load = EncoderLoad([lambda: EncoderQueue(self.wait_s)], 1.0, telemetry.left_out)
        return LearningBudget(
            share, lambda: EncoderCpu(self.requests_s, self.learning_s), load, telemetry, lambda: self.loop_s
        )


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_learning_takes_its_share_of_the_cpu_of_requests_and_no_more(machine: Machine) -> None:
    budget = machine.budget(0.1)
    for _ in range(20_000):
        machine.requests_s += 0.003
        machine.loop_s += 0.001
        if budget.has_room:
            machine.learning_s += 0.012
    assert machine.learning_s == pytest.approx(0.1 * (machine.requests_s + machine.loop_s) + START_S, abs=0.02)


def test_the_whole_share_has_no_bound(machine: Machine) -> None:
    budget = machine.budget(1.0)
    machine.learning_s = 100.0
    assert budget.has_room


def test_a_long_quiet_time_saves_no_more_than_the_burst(machine: Machine) -> None:
    budget = machine.budget(0.1)
    machine.requests_s = 1e6
    budget.update()
    machine.learning_s = BURST_S
    assert not budget.has_room


def test_the_loop_counts_for_learning_where_it_learns(machine: Machine) -> None:
    telemetry = Telemetry()
    budget = machine.budget(0.1, telemetry)
    with budget.spending():
        machine.loop_s += 2.0
    machine.loop_s += 3.0
    assert not budget.has_room, "two seconds are more than the burst"
    assert telemetry.cpu_seconds.values == {("requests",): 3.0, ("learning",): 2.0}


async def test_a_turn_comes_with_the_cpu_and_without_load(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning_budget, "POLL_S", 0.0)
    telemetry = Telemetry()
    budget = machine.budget(0.1, telemetry)
    machine.learning_s, machine.wait_s = START_S, 0.03
    turn = asyncio.create_task(budget.wait_turn())
    await until(lambda: telemetry.learning_waits.values == {(): 1.0})
    machine.requests_s += 1.0
    await until(lambda: telemetry.left_out.values["learning",] == 1.0)
    assert not turn.done()
    machine.wait_s = 0.0
    await turn


def test_bands_that_are_known_least_and_near_the_threshold_are_worth_most() -> None:
    control = RouteControl(PRIOR, "basis")
    assert control.label_worth(0.5) == 1.0, "nothing is known of the threshold yet"
    threshold = control.threshold(Acceptance(max_wrong_hits=0.01))
    assert control.label_worth(threshold) > control.label_worth(threshold - 0.2) > control.label_worth(threshold - 0.4)


@pytest.mark.parametrize(
    ("a", "b", "label"),
    [
        ("It is in the Settings.", "it is in the  settings.", Label.RIGHT),
        ("Bake the bread for forty minutes.", "Open your account page and cancel.", Label.WRONG),
        ("Send the parcel back within 30 days of purchase.", "Send the parcel back within 14 days of purchase.", None),
        ("Send the unused parcel back to our shop within 30 days.", "Send the unused parcel back to our shop within 30 "
         "days, not later.", Label.UNDECIDED),
        ("Paris.", "Berlin.", None),
        ("Das Paket ist schon größtenteils unterwegs.", "The parcel is mostly on its way.", None),
        ("Open the settings and choose Security.", "Choose Security after you open settings.", None),
    ],
)  # fmt: skip
def test_words_decide_what_they_can(a: str, b: str, label: Label | None) -> None:
    assert compare_words(a, b) is label
    assert compare_words(b, a) is label


class CountingEncoder(HashEncoder):
    texts = 0

    def encode(self, texts: Any) -> Any:
        self.texts += len(texts)
        return super().encode(texts)


@pytest.fixture
def encoder() -> Iterator[CountingEncoder]:
    yield CountingEncoder()


async def test_an_answer_is_embedded_once_however_often_it_is_compared(
    machine: Machine, encoder: CountingEncoder
) -> None:
    embedder, labels = BatchingEmbedder(encoder, timeout_s=60.0), object()
    comparisons: Any = AnswerComparer(embedder, labels, Telemetry(), machine.budget(1.0))  # type: ignore[arg-type]
    stored = "Open the settings and choose Security there."
    for fresh in ("Go to settings first.", "See settings for that.", "In settings you find it."):
        await comparisons.compare_texts(stored, fresh)
    assert encoder.texts == 4
    await comparisons.compare_texts(stored, stored)
    await comparisons.compare_texts(stored, "Bake bread for forty minutes.")
    assert encoder.texts == 4, "words decide these"
    embedder.close()
