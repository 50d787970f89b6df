"""What the past says of an answer's latency: by input, output and load, with bounds that are kept as often as said."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.latency_forecast import Prediction
from gateway.upstream.latency import (
    HALF_LIFE_S,
    KINDS,
    PRIOR_WEIGHT,
    RATIO,
    REACH,
    CallFeatures,
    LatencyBook,
    Levels,
    RatioSketch,
    Trend,
)

LARGEST = RATIO**REACH
WITHIN = st.floats(1.01 / LARGEST, LARGEST / 1.01)
WAITS = st.floats(0.0, 1e7)


def plenty(*values: float, times: int = 4000) -> RatioSketch:
    """So often that the prior does not count."""
    ratios = RatioSketch(60.0)
    for _ in range(times // len(values) + 1):
        for value in values:
            ratios.add(value, now=0.0)
    return ratios


@given(st.lists(WITHIN, min_size=1, max_size=20), st.floats(0.02, 0.98))
def test_a_quantile_is_off_by_one_bucket_at_most(values: list[float], q: float) -> None:
    ratios = plenty(*values)
    ordered = sorted(values)
    low, high = (ordered[min(len(ordered) - 1, max(0, math.ceil(len(ordered) * p) - 1))] for p in (q - 0.01, q + 0.01))
    assert low / RATIO * 0.999 <= ratios.quantile(q) <= high * RATIO * 1.001


@given(st.lists(st.tuples(WITHIN, WAITS), max_size=40), st.floats(0, 1), st.floats(0, 1))
def test_a_higher_confidence_is_never_a_lower_bound(steps: list[tuple[float, float]], a: float, b: float) -> None:
    ratios, now = RatioSketch(60.0), 0.0
    for value, wait in steps:
        now += wait
        ratios.add(value, now)
    low, high = sorted((a, b))
    assert 0 < ratios.quantile(low) <= ratios.quantile(high) < math.inf


@given(st.floats(allow_nan=False), st.floats(0, 1))
def test_what_lies_beyond_all_buckets_counts_as_the_outermost(value: float, q: float) -> None:
    ratios = RatioSketch(60.0)
    ratios.add(value, now=0.0)
    ratios.add_censored(value, now=0.0)
    assert 1 / LARGEST / RATIO <= ratios.quantile(q) <= LARGEST * RATIO
    assert math.isfinite(ratios.beyond(value)) or math.isinf(value)


def test_the_present_outweighs_the_past_and_after_a_silence_one_answer_is_not_all_that_is_known() -> None:
    ratios = plenty(5.0, times=100)
    for _ in range(100):
        ratios.add(0.5, now=600.0)
    assert ratios.quantile(0.5) == pytest.approx(0.5, rel=0.06)
    ratios.add(0.5, now=1e6)
    assert ratios.quantile(0.95) > 1.0, "the prior is back"


def test_an_answer_given_up_is_taken_to_lie_beyond() -> None:
    """Half of the answers take 1, half 4; one more given up at 2 would have taken 4."""
    ratios = plenty(1.0, 4.0, times=1000)
    assert ratios.beyond(2.0) == pytest.approx(4.0, rel=0.06)
    for _ in range(2000):
        ratios.add_censored(2.0, now=0.0)
    assert ratios.quantile(0.3) > 3.5, "told by half a weight each: one of three is a 1"
    assert ratios.quantile(0.2) < 1.1


def test_giving_up_at_once_tells_nothing() -> None:
    ratios = plenty(1.0, times=100)
    before = ratios.quantile(0.95)
    for _ in range(1000):
        ratios.add_censored(1e-6, now=0.0)
    assert ratios.quantile(0.95) == before


PARTS = st.lists(st.floats(0, 100), min_size=3, max_size=3)


@given(st.lists(st.tuples(PARTS, st.floats(1e-6, 3600.0), WAITS), max_size=60), PARTS, PARTS)
def test_more_of_anything_never_makes_an_answer_sooner(
    steps: list[tuple[list[float], float, float]], a: list[float], more: list[float]
) -> None:
    trend, now = Trend(3, 600.0), 0.0
    for parts, seconds, wait in steps:
        now += wait
        trend.observe(parts, seconds, now)
    both = [x + y for x, y in zip(a, more, strict=True)]
    assert 0.0 <= trend.of(a) <= trend.of(both) < math.inf


def test_the_parts_of_an_answer_are_told_apart() -> None:
    """Through noise: 0.2 s, 0.5 s a thousand tokens of input, 10 ms a token of output."""
    draw, trend = random.Random(1), Trend(3, 600.0)
    for i in range(3000):
        parts = [1.0, draw.uniform(0, 4), draw.uniform(1, 300)]
        seconds = (0.2 + 0.5 * parts[1] + 0.01 * parts[2]) * draw.lognormvariate(-0.02, 0.2)
        trend.observe(parts, seconds, i * 0.1)
    assert trend.coefficients == pytest.approx([0.2, 0.5, 0.01], rel=0.25)
    assert trend.of([1.0, 2.0, 100.0]) == pytest.approx(2.2, rel=0.05)


def test_days_without_variety_blow_nothing_up() -> None:
    """Recursive least squares with forgetting does, here: nothing but the constant is ever excited."""
    trend = Trend(3, 600.0)
    for i in range(20_000):
        trend.observe([1.0, 0.0, 0.0], 1.0, i * 60.0)
    assert trend.of([1.0, 0.0, 0.0]) == pytest.approx(1.0, rel=0.01)
    trend.observe([1.0, 1.0, 1.0], 2.0, 20_000 * 60.0)
    assert 0.9 < trend.of([1.0, 1.0, 1.0]) < 2.1


def test_kinds_of_requests_that_are_remembered_are_bounded() -> None:
    levels = Levels()
    for i in range(3 * KINDS):
        levels.add((f"route {i}", 0), 2.0, 0.0)
    assert len(levels._kinds) == KINDS


def book_of(*totals: float, stream: bool = False, max_tokens: int | None = None, tokens: int = 0) -> LatencyBook:
    book = LatencyBook()
    for total in totals:
        observe(book, total, stream=stream, max_tokens=max_tokens, tokens=tokens)
    return book


def observe(
    book: LatencyBook,
    total: float,
    *,
    stream: bool = False,
    max_tokens: int | None = None,
    tokens: int = 0,
    load: int = 0,
    now: float = 0.0,
    route: str = "",
    input_tokens: float = 0.0,
) -> None:
    asked = CallFeatures(stream, input_tokens, max_tokens, route)
    ttft = total / 10 if stream else total
    book.observe(asked, load=load, ttft_s=ttft, total_s=total, output_tokens=tokens, now=now)


ANY = CallFeatures()


def predicted(book: LatencyBook, asked: CallFeatures = ANY, *, load: int = 0, q: float = 0.95) -> Prediction:
    prediction = book.predict(asked, load=load, now=0.0, confidence=q)
    assert prediction is not None
    return prediction


def test_an_unknown_upstream_predicts_nothing() -> None:
    assert LatencyBook().predict(CallFeatures(), load=0, now=0.0) is None


def test_one_answer_makes_a_wide_guess_and_many_a_narrow_one() -> None:
    one, many = book_of(1.0), book_of(*[1.0] * 500)
    assert 1.5 < predicted(one).total_s < 3.0
    assert 1.0 <= predicted(many).total_s < 1.1


@pytest.mark.parametrize("q", [0.5, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("spread", [0.1, 0.3, 0.7])
def test_a_bound_is_kept_as_often_as_it_says(q: float, spread: float) -> None:
    draw, book, kept = random.Random(7), LatencyBook(), 0
    for i in range(3000):
        total, now = draw.lognormvariate(0.0, spread), i * 0.1
        prediction = book.predict(CallFeatures(), load=0, now=now, confidence=q)
        kept += i >= 500 and prediction is not None and total <= prediction.total_s
        book.observe(CallFeatures(), load=0, ttft_s=total, total_s=total, output_tokens=0, now=now)
    assert kept / 2500 == pytest.approx(q, abs=0.025)


def test_a_stream_is_predicted_from_its_tokens() -> None:
    prediction = predicted(book_of(*[10.0] * 200, stream=True, tokens=90), CallFeatures(stream=True))
    assert prediction.ttft_s == pytest.approx(1.0, rel=0.1)
    assert prediction.tpot_s == pytest.approx(0.1, rel=0.1)
    assert prediction.total_s == pytest.approx(10.0, rel=0.1)


def test_a_limit_on_tokens_bounds_the_prediction() -> None:
    book = book_of(*[10.0] * 200, stream=True, tokens=90)
    assert predicted(book, CallFeatures(stream=True, max_tokens=9)).total_s == pytest.approx(1.9, rel=0.15)


def test_a_whole_answer_takes_what_a_stream_takes_to_its_end() -> None:
    streams = book_of(*[10.0] * 200, stream=True, tokens=90)
    assert predicted(streams).total_s == predicted(streams).ttft_s == pytest.approx(10.0, rel=0.1)
    assert predicted(book_of(*[1.0] * 200), CallFeatures(stream=True)).total_s == pytest.approx(1.0, rel=0.1)


def test_the_sum_is_not_bounded_by_the_sum_of_the_bounds() -> None:
    """First token and writing vary independently: 95 % of the sums are below what 95 % of both would add up to."""
    draw, book = random.Random(3), LatencyBook()
    for i in range(2000):
        first, writing = draw.lognormvariate(0, 0.5), draw.lognormvariate(0, 0.5)
        book.observe(
            CallFeatures(stream=True), load=0, ttft_s=first, total_s=first + writing, output_tokens=100, now=i * 0.05
        )
    prediction = book.predict(CallFeatures(stream=True), load=0, now=100.0)
    assert prediction is not None
    assert prediction.total_s < 0.9 * (prediction.ttft_s + 100 * prediction.tpot_s)


def test_sizes_and_routes_are_told_apart() -> None:
    book = LatencyBook()
    for _ in range(100):
        observe(book, 0.1, max_tokens=10, route="a")
        observe(book, 5.0, max_tokens=1000, route="a")
        observe(book, 0.4, max_tokens=10, route="b")
    found = [
        predicted(book, CallFeatures(max_tokens=n, route=r), q=0.5).total_s
        for n, r in ((10, "a"), (1000, "a"), (10, "b"))
    ]
    assert found == pytest.approx([0.1, 5.0, 0.4], rel=0.3)


def test_a_size_not_seen_yet_is_predicted_no_sooner_than_smaller_ones() -> None:
    book = book_of(*[0.1] * 10, max_tokens=10)
    assert predicted(book, CallFeatures(max_tokens=5000), q=0.5).total_s > 0.2


def test_long_inputs_take_longer() -> None:
    draw, book = random.Random(5), LatencyBook()
    for i in range(500):
        tokens = draw.uniform(0, 4000)
        observe(book, 0.2 + tokens / 4000, input_tokens=tokens, now=i * 0.01)
    short, long = (book.predict(CallFeatures(input_tokens=n), load=0, now=5.0, confidence=0.5) for n in (0, 4000))
    assert short is not None and long is not None
    assert short.total_s == pytest.approx(0.2, rel=0.25)
    assert long.total_s == pytest.approx(1.2, rel=0.15)


def test_what_is_ahead_is_waited_for() -> None:
    """Four at a time, a second each."""
    book, draw = LatencyBook(), random.Random(9)
    for i in range(600):
        load = draw.randrange(20)
        observe(book, 1.0 + max(0, load - 3) / 4, load=load, now=i * 0.05)
    bounds = [book.predict(CallFeatures(), load=n, now=30.0, confidence=0.5) for n in (0, 3, 8, 16)]
    assert [b.total_s for b in bounds if b] == pytest.approx([1.0, 1.0, 2.25, 4.25], rel=0.2)


def test_an_upstream_that_slows_down_is_believed_within_some_answers() -> None:
    book = book_of(*[0.5] * 1000)
    for i in range(10):
        observe(book, 2.0, now=float(i))
    slow = book.predict(CallFeatures(), load=0, now=10.0, confidence=0.5)
    assert slow is not None
    assert 1.0 < slow.total_s < 2.5


def test_calls_given_up_say_that_it_is_slow() -> None:
    book = book_of(*[0.5] * 100)
    before = predicted(book).total_s
    for i in range(10):
        book.observe_censored(CallFeatures(), load=0, seconds=3.0, now=float(i))
    after = book.predict(CallFeatures(), load=0, now=10.0)
    assert after is not None
    assert after.total_s > max(2.5, 3 * before)


def test_a_call_given_up_on_an_unknown_upstream_tells_the_least_that_it_takes() -> None:
    book = LatencyBook()
    book.observe_censored(CallFeatures(), load=0, seconds=3.0, now=0.0)
    assert predicted(book, q=0.5).total_s >= 2.9


def test_an_upstream_that_was_not_asked_for_long_becomes_unknown_again() -> None:
    """Otherwise one slow minute would shut it out for ever: nobody would ask it and learn that it has recovered."""
    book = book_of(*[60.0] * 50)
    assert book.predict(CallFeatures(), load=0, now=5 * HALF_LIFE_S) is not None
    assert book.predict(CallFeatures(), load=0, now=7 * HALF_LIFE_S) is None


STEP = st.tuples(
    st.booleans(), st.floats(0, 3600.0), st.integers(0, 10_000), st.integers(0, 10**6), WAITS, st.booleans()
)


@given(st.lists(STEP, max_size=40), st.floats(0.01, 0.999))
def test_whatever_was_seen_a_prediction_is_a_number_and_grows_with_the_load(
    steps: list[tuple[bool, float, int, int, float, bool]], q: float
) -> None:
    book, now = LatencyBook(), 0.0
    for stream, seconds, load, tokens, wait, given_up in steps:
        now += wait
        asked = CallFeatures(stream, float(tokens), tokens or None)
        if given_up:
            book.observe_censored(asked, load=load, seconds=seconds, now=now)
        else:
            book.observe(asked, load=load, ttft_s=seconds / 2, total_s=seconds, output_tokens=tokens, now=now)
    for stream in (False, True):
        found = [book.predict(CallFeatures(stream), load=load, now=now, confidence=q) for load in (0, 5, 500)]
        assert (found[0] is None) == (not steps)
        bounds = [b.total_s for b in found if b is not None]
        assert bounds == sorted(bounds)
        assert all(0 <= b.ttft_s <= b.total_s < math.inf and 0 <= b.tpot_s < math.inf for b in found if b)


def test_a_prior_is_worth_what_it_says() -> None:
    assert sum(RatioSketch(60.0)._weights) == pytest.approx(PRIOR_WEIGHT)
