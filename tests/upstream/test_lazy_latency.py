"""A book that is read when it is asked says what one says that is read at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.latency import HALF_LIFE_S, MAX_PENDING, CallFeatures, LatencyBook, LazyLatencyBook

ANSWER = st.tuples(
    st.builds(CallFeatures, stream=st.booleans(), input_tokens=st.floats(0, 4000)),
    st.integers(0, 20),  # load
    st.floats(0.001, 60.0),  # seconds
    st.floats(0.0, 2 * HALF_LIFE_S),  # since the one before
    st.sampled_from(["answered", "given up", "asked"]),
)
SEEN = CallFeatures(stream=True, input_tokens=100.0)


def see(book: LatencyBook | LazyLatencyBook, asked: CallFeatures, load: int, seconds: float, now: float) -> None:
    tokens = 10 if asked.stream else 0
    book.observe(asked, load=load, ttft_s=seconds / 2, total_s=seconds, output_tokens=tokens, now=now)


@given(st.lists(ANSWER, max_size=MAX_PENDING))
def test_whenever_it_is_asked_it_says_what_one_says_that_is_read_at_once(answers: list[tuple]) -> None:
    late, at_once, now = LazyLatencyBook(), LatencyBook(), 0.0
    for asked, load, seconds, pause, what in answers:
        now += pause
        for book in (late, at_once):
            if what == "answered":
                see(book, asked, load, seconds, now)
            elif what == "given up":
                book.observe_censored(asked, load=load, seconds=seconds, now=now)
        if what == "asked":
            assert late.predict(asked, load=load, now=now) == at_once.predict(asked, load=load, now=now)
    assert late.predict(SEEN, load=1, now=now) == at_once.predict(SEEN, load=1, now=now)


def test_of_answers_that_nobody_asked_about_the_last_ones_are_read() -> None:
    late, at_once = LazyLatencyBook(), LatencyBook()
    for i in range(10 * MAX_PENDING):
        see(late, SEEN, 0, 9.0 if i < 9 * MAX_PENDING else 1.0, float(i))
    for i in range(9 * MAX_PENDING, 10 * MAX_PENDING):
        see(at_once, SEEN, 0, 1.0, float(i))
    now = 10.0 * MAX_PENDING
    assert late.predict(SEEN, load=0, now=now) == at_once.predict(SEEN, load=0, now=now)


def test_where_somebody_asks_none_is_lost() -> None:
    late, at_once, now = LazyLatencyBook(), LatencyBook(), 0.0
    for i in range(5 * MAX_PENDING):
        now += 0.1
        for book in (late, at_once):
            see(book, SEEN, i % 7, 1.0 + i % 3, now)
        if i % 400 == 0:  # every 40 s
            late.predict(SEEN, load=0, now=now)
    expected = at_once.predict(SEEN, load=0, now=now)
    assert expected is not None
    assert late.predict(SEEN, load=0, now=now) == expected


def test_a_book_that_nobody_asks_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LatencyBook, "observe", lambda *_, **__: pytest.fail("it was read"))
    book = LazyLatencyBook()
    for i in range(2 * MAX_PENDING):
        see(book, SEEN, 0, 1.0, float(i))
