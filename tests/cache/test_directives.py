"""Cache-Control of requests: RFC 9111 section 5.2.1, and section 5.2.3 for what is unknown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cache.freshness import parse_directives
from gateway.entries import CacheDirectives


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, CacheDirectives()),
        ("", CacheDirectives()),
        ("no-store", CacheDirectives(no_store=True)),
        ("no-cache", CacheDirectives(no_cache=True)),
        ("only-if-cached", CacheDirectives(only_if_cached=True)),
        ("max-age=60", CacheDirectives(max_age_s=60.0)),
        ("max-age=0", CacheDirectives(max_age_s=0.0)),
        ("min-fresh=10, max-age=60", CacheDirectives(max_age_s=60.0, min_fresh_s=10.0)),
        ("No-Store, MAX-AGE=5", CacheDirectives(no_store=True, max_age_s=5.0)),  # names are case-insensitive
        ('max-age="60"', CacheDirectives(max_age_s=60.0)),  # a recipient accepts both forms (section 5.2)
        (" no-cache ,\tmax-age=1 , ", CacheDirectives(no_cache=True, max_age_s=1.0)),
        ("no-store,no-cache,only-if-cached", CacheDirectives(no_store=True, no_cache=True, only_if_cached=True)),
    ],
)
def test_directives_are_read(header: str | None, expected: CacheDirectives) -> None:
    assert parse_directives(header) == expected


@pytest.mark.parametrize(
    "header",
    [
        "max-stale=10, no-transform, immutable",
        "max-age",
        "max-age=",
        "max-age=-1",
        "max-age=1.5",
        "max-age=1e9",
        "max-age=\u0661\u0662",  # Arabic digits
        "max-age=soon",
        "nostore; no_cache",
        "no-storex, xno-cache",
        "=no-store",
        ",,,=,",
        "\x00\x01",
    ],
)
def test_what_is_unknown_or_malformed_is_ignored(header: str) -> None:
    assert parse_directives(header) == CacheDirectives()


def test_a_malformed_directive_does_not_hide_the_others() -> None:
    assert parse_directives("max-age=soon, =, no-store") == CacheDirectives(no_store=True)


def test_a_number_without_end_is_only_large() -> None:
    assert parse_directives("max-age=" + "9" * 400).max_age_s > 1e300


@given(st.text(max_size=200))
def test_no_header_whatsoever_raises(header: str) -> None:
    parse_directives(header)
