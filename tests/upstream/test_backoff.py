"""How long upstreams want to be left alone, in every form in which they say it."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.backoff import MAX_ACCOUNTS, MAX_BACKOFF_S, UpstreamBackoff, retry_delay_s

WALL = 1_800_000_000.0  # 2027-01-15T08:00:00Z


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (429, {"retry-after": "7"}, 7),
        (503, {"retry-after": "7"}, 7),
        (200, {"retry-after": "7"}, 0),
        (500, {"retry-after": "7"}, 0),
        (429, {"retry-after": formatdate(WALL + 30, usegmt=True)}, 30),
        (429, {"retry-after": formatdate(WALL - 30, usegmt=True)}, 0),
        (429, {"retry-after": "86400"}, MAX_BACKOFF_S),
        (429, {"retry-after": "soon"}, 0),
        (429, {"retry-after": "-3"}, 0),
        (429, {"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        (429, {}, 0),
        (200, {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m30s"}, 90),
        (200, {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s"}, MAX_BACKOFF_S),
        (200, {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "120ms"}, 0.12),
        (200, {"x-ratelimit-remaining-requests": "1", "x-ratelimit-reset-requests": "1m30s"}, 0),
        (200, {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "tomorrow"}, 0),
        (200, {"x-ratelimit-remaining-requests": "0"}, 0),
        (
            200,
            {
                "anthropic-ratelimit-requests-remaining": "0",
                "anthropic-ratelimit-requests-reset": "2027-01-15T08:00:20Z",
                "anthropic-ratelimit-tokens-remaining": "10",
                "anthropic-ratelimit-tokens-reset": "2027-01-15T08:04:00Z",
            },
            20,
        ),
        (200, {"ratelimit-remaining": "0", "ratelimit-reset": "15"}, 15),
        (200, {"ratelimit": "limit=100, remaining=0, reset=15"}, 15),
        (200, {"ratelimit": '"burst";r=3;t=40, "daily";r=0;t=15'}, 15),
        (200, {"ratelimit": "default;r=0;t=15"}, 15),
        (200, {"ratelimit": '"default";r=50;t=15'}, 0),
        (429, {"retry-after": "7", "ratelimit": '"default";r=0;t=15'}, 15),
    ],
)
def test_headers_are_read(status: int, headers: dict[str, str], expected: float) -> None:
    assert retry_delay_s(status, headers, WALL) == pytest.approx(expected)


NAMES = [
    "retry-after",
    "retry-after-ms",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "anthropic-ratelimit-tokens-remaining",
    "anthropic-ratelimit-tokens-reset",
    "ratelimit-remaining",
    "ratelimit-reset",
    "ratelimit",
]
VALUES = st.one_of(st.text(max_size=30), st.from_regex(r"[0-9rtmsh=;:,. TZ-]{0,30}", fullmatch=True), st.just("0"))


@given(st.integers(100, 599), st.dictionaries(st.sampled_from(NAMES), VALUES))
def test_whatever_is_written_there_the_wait_is_bounded(status: int, headers: dict[str, str]) -> None:
    assert 0 <= retry_delay_s(status, headers, WALL) <= MAX_BACKOFF_S


def test_a_limit_is_of_the_account_that_met_it() -> None:
    waits = UpstreamBackoff()
    waits.add("acme", 30.0)
    assert waits.remaining_s("acme", 10.0) == 20.0
    assert waits.remaining_s("other", 10.0) == 0.0
    waits.add("", 15.0)
    assert waits.remaining_s("other", 10.0) == 5.0
    waits.add("acme", 12.0)
    assert waits.remaining_s("acme", 10.0) == 20.0, "the longest counts"
    assert waits.remaining_s("acme", 31.0) == 0.0


def test_a_crowd_of_accounts_takes_no_more_room_than_it_may() -> None:
    waits = UpstreamBackoff()
    for i in range(3 * MAX_ACCOUNTS):
        waits.add(str(i), 30.0)
    assert waits.remaining_s("0", 0.0) == 0.0
    assert waits.remaining_s(str(3 * MAX_ACCOUNTS - 1), 0.0) == 30.0
