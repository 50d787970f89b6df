"""What the past says of an answer's latency: quantiles that forget, and predictions from them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.latency import HALF_LIFE_S, LatencyBook, LatencyModel
from gateway.routing.sketch import RATIO, SMALLEST_S, DecayingQuantiles

LATENCY = st.floats(2 * SMALLEST_S, 3600.0)


@given(st.lists(LATENCY, min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_a_quantile_is_off_by_four_percent_at_most(values: list[float], q: float) -> None:
    sketch = DecayingQuantiles(60.0)
    for value in values:
        sketch.add(value, now=0.0)
    exact = sorted(values)[math.ceil(q * len(values) - 1e-9) - 1]
    assert sketch.quantile(q) == pytest.approx(exact, rel=math.sqrt(RATIO) - 1 + 1e-9)


def test_nothing_is_known_of_nothing() -> None:
    assert DecayingQuantiles(60.0).quantile(0.5) is None
    assert DecayingQuantiles(60.0).weight(0.0) == 0.0


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-12])
def test_what_takes_no_time_counts_as_the_smallest(value: float) -> None:
    sketch = DecayingQuantiles(60.0)
    sketch.add(value, now=0.0)
    assert 0 < (sketch.quantile(0.5) or 0) <= SMALLEST_S * RATIO


def test_weight_halves_with_each_half_life() -> None:
    sketch = DecayingQuantiles(60.0)
    for _ in range(8):
        sketch.add(1.0, now=0.0)
    assert [sketch.weight(now) for now in (0.0, 60.0, 120.0)] == [8.0, 4.0, 2.0]


def test_the_present_outweighs_the_past() -> None:
    """A hundred slow answers ten half-lives ago weigh less than one fast answer now."""
    sketch = DecayingQuantiles(60.0)
    for _ in range(100):
        sketch.add(5.0, now=0.0)
    sketch.add(0.1, now=600.0)
    assert sketch.quantile(0.5) == pytest.approx(0.1, rel=0.05)


@given(st.lists(st.tuples(LATENCY, st.floats(0.0, 50_000.0)), min_size=1, max_size=60))
def test_years_of_observations_neither_overflow_nor_vanish(steps: list[tuple[float, float]]) -> None:
    sketch, now = DecayingQuantiles(60.0), 0.0
    for value, wait in steps:
        now += wait
        sketch.add(value, now)
    assert 1.0 - 1e-6 <= sketch.weight(now) <= len(steps) + 1e-6
    assert math.isfinite(sketch.quantile(0.95) or math.nan)


def test_rescaling_keeps_the_present_in_charge() -> None:
    """Steady traffic for two hours: the buckets are rescaled on the way, and the last minutes decide all the same."""
    sketch = DecayingQuantiles(60.0)
    for second in range(7200):
        sketch.add(5.0 if second < 6600 else 0.1, now=float(second))
        if second % 600 == 599:
            assert 80 < sketch.weight(float(second)) < 90
    assert sketch.quantile(0.5) == pytest.approx(0.1, rel=0.05)
    assert sketch.quantile(0.95) == pytest.approx(0.1, rel=0.05)


def book_of(*totals: float, stream: bool = False, max_tokens: int | None = None, tokens: int = 0) -> LatencyBook:
    book = LatencyBook()
    for total in totals:
        book.observe(
            stream=stream, max_tokens=max_tokens, ttft_s=total / 10 if stream else total, total_s=total,
            output_tokens=tokens, now=0.0,
        )  # fmt: skip
    return book


def test_an_unknown_backend_predicts_nothing() -> None:
    assert LatencyBook().predict(stream=False, max_tokens=None, now=0.0) is None


def test_a_whole_answer_is_predicted_at_the_95th_percentile() -> None:
    prediction = book_of(*(i / 100 for i in range(1, 101))).predict(stream=False, max_tokens=None, now=0.0)
    assert prediction is not None
    assert prediction.total_s == prediction.ttft_s == pytest.approx(0.95, rel=0.05)
    assert prediction.tpot_s == 0.0


def test_a_stream_is_predicted_from_its_tokens() -> None:
    prediction = book_of(*[10.0] * 20, stream=True, tokens=90).predict(stream=True, max_tokens=None, now=0.0)
    assert prediction is not None
    assert prediction.ttft_s == pytest.approx(1.0, rel=0.05)
    assert prediction.tpot_s == pytest.approx(0.1, rel=0.05)
    assert prediction.total_s == pytest.approx(10.0, rel=0.1)


def test_a_limit_on_tokens_bounds_the_prediction() -> None:
    book = book_of(*[10.0] * 20, stream=True, tokens=90)
    limited = book.predict(stream=True, max_tokens=9, now=0.0)
    assert limited is not None
    assert limited.total_s == pytest.approx(1.9, rel=0.1)


def test_streams_say_nothing_of_whole_answers() -> None:
    assert book_of(1.0, stream=True, tokens=5).predict(stream=False, max_tokens=None, now=0.0) is None
    assert book_of(1.0).predict(stream=True, max_tokens=None, now=0.0) is None


def test_sizes_are_told_apart() -> None:
    book = book_of(*[0.1] * 10, max_tokens=10)
    for _ in range(10):
        book.observe(stream=False, max_tokens=1000, ttft_s=5.0, total_s=5.0, output_tokens=0, now=0.0)
    short, long = (book.predict(stream=False, max_tokens=n, now=0.0) for n in (20, 900))
    assert short is not None and long is not None
    assert short.total_s == pytest.approx(0.1, rel=0.05)
    assert long.total_s == pytest.approx(5.0, rel=0.05)


def test_a_size_not_seen_yet_is_predicted_no_sooner_than_the_others() -> None:
    """A promise is made of it: where nothing is known, the slower one is the safe one."""
    book = book_of(*[0.1] * 10, max_tokens=10)
    book.observe(stream=False, max_tokens=100, ttft_s=2.0, total_s=2.0, output_tokens=0, now=0.0)
    unseen = book.predict(stream=False, max_tokens=5000, now=0.0)
    assert unseen is not None
    assert unseen.total_s == pytest.approx(2.0, rel=0.05)


def test_a_backend_that_was_not_asked_for_long_becomes_unknown_again() -> None:
    """Otherwise one slow minute would shut it out for ever: nobody would ask it and learn that it has recovered."""
    book = book_of(*[60.0] * 50)
    assert book.predict(stream=False, max_tokens=None, now=5 * HALF_LIFE_S) is not None
    assert book.predict(stream=False, max_tokens=None, now=7 * HALF_LIFE_S) is None


def test_an_answer_without_tokens_counts_as_one_piece() -> None:
    model = LatencyModel()
    model.observe(ttft_s=1.0, total_s=1.0, output_tokens=0, now=0.0)
    prediction = model.predict(None, 0.0)
    assert prediction is not None
    assert prediction.tpot_s == 0.0
