"""Whether a stored answer may still be served."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cache.freshness import freshness_of
from gateway.entries import CacheDirectives, Lifetime
from tests.fixtures.entries import entry_of

ANY = CacheDirectives()
HOUR = 3600.0


def at(age_s: float, *, ttl_s: float = HOUR, max_age_s: float | None = None, now: float = 1e9) -> tuple:
    found = freshness_of(entry_of(created=now - age_s), Lifetime(ttl_s), CacheDirectives(max_age_s=max_age_s), now)
    return found.fresh, pytest.approx(found.age_s, abs=1e-3), pytest.approx(found.ttl_s, abs=1e-3)


def test_an_answer_is_fresh_until_its_ttl_and_not_at_it() -> None:
    assert at(0) == (True, 0, HOUR)
    assert at(HOUR - 1) == (True, HOUR - 1, 1)
    assert at(HOUR) == (False, HOUR, 0)
    assert at(10 * HOUR) == (False, 10 * HOUR, 0)


def test_max_age_shortens_and_never_lengthens_the_life() -> None:
    assert at(30, max_age_s=60) == (True, 30, 30)
    assert at(60, max_age_s=60) == (False, 60, 0)
    assert at(0, max_age_s=0) == (False, 0, 0)
    assert at(HOUR + 1, max_age_s=10 * HOUR) == (False, HOUR + 1, 0)


def test_an_answer_from_the_future_is_expired() -> None:
    """Somebody set the clock back an hour: the answer would otherwise live an hour longer, or for ever if it happens
    again and again."""
    assert at(-HOUR)[0] is False
    assert at(-1.5)[0] is False


def test_a_second_of_skew_between_machines_is_no_fault() -> None:
    assert at(-0.5) == (True, 0, HOUR)


@given(
    created=st.floats(0, 4e9),
    now=st.floats(0, 4e9),
    ttl_s=st.floats(0.001, 1e8),
    max_age_s=st.none() | st.floats(0, 1e9),
)
def test_nothing_is_served_beyond_its_ttl_whatever_the_clocks_say(
    created: float, now: float, ttl_s: float, max_age_s: float | None
) -> None:
    found = freshness_of(entry_of(created=created), Lifetime(ttl_s), CacheDirectives(max_age_s=max_age_s), now)
    assert found.age_s >= 0
    assert found.ttl_s <= ttl_s
    assert found.fresh == (found.ttl_s > 0)
    if found.fresh:
        assert -1.0 <= now - created < ttl_s
        assert max_age_s is None or found.age_s < max_age_s


@pytest.mark.parametrize(
    ("age_s", "served"), [(50, "fresh"), (100, "both"), (129, "both"), (130, "on error"), (199, "on error"), (200, "")]
)
def test_after_its_ttl_an_answer_may_still_do(age_s: float, served: str) -> None:
    lifetime = Lifetime(100, revalidate_s=30, error_s=100)
    found = freshness_of(entry_of(created=1e9 - age_s), lifetime, ANY, 1e9)
    said = {(True, False, False): "fresh", (False, True, True): "both", (False, False, True): "on error"}
    assert said.get((found.fresh, found.stale_while_revalidate, found.stale_if_error), "") == served
    assert lifetime.longest_s == 200


@pytest.mark.parametrize("directives", [CacheDirectives(max_age_s=500), CacheDirectives(min_fresh_s=1)])
def test_a_client_that_says_what_age_it_accepts_gets_nothing_stale(directives: CacheDirectives) -> None:
    found = freshness_of(entry_of(created=1e9 - 110), Lifetime(100, revalidate_s=60, error_s=60), directives, 1e9)
    assert not (found.fresh or found.stale_while_revalidate or found.stale_if_error)


def test_min_fresh_asks_for_time_that_is_left() -> None:
    entry = entry_of(created=1e9 - 90)
    assert freshness_of(entry, Lifetime(100), CacheDirectives(min_fresh_s=9), 1e9).fresh
    assert not freshness_of(entry, Lifetime(100), CacheDirectives(min_fresh_s=10), 1e9).fresh


def test_jitter_spreads_the_end_and_never_lengthens_a_life() -> None:
    lifetime = Lifetime(1000, jitter=0.2)
    ends = [lifetime.ttl_of(entry_of(str(i))) for i in range(300)]
    assert all(800 <= end <= 1000 for end in ends)
    assert len(set(ends)) == 300 and max(ends) - min(ends) > 150
    assert lifetime.ttl_of(entry_of("a")) == lifetime.ttl_of(entry_of("a"))
