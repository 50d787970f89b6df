"""Who asks is told by all that a client shows."""

from __future__ import annotations

from itertools import combinations

import pytest
from multidict import CIMultiDict

from gateway.credentials import ANONYMOUS, IDENTIFYING, KEYS, key_of, tenant_of


def test_who_shows_nothing_is_anonymous() -> None:
    assert tenant_of(CIMultiDict({"User-Agent": "x"})) == ANONYMOUS


@pytest.mark.parametrize("name", sorted(IDENTIFYING))
def test_every_identifying_header_tells_clients_apart(name: str) -> None:
    tenants = {tenant_of(CIMultiDict({name.title(): value})) for value in ("one", "two")}
    assert len(tenants | {ANONYMOUS}) == 3


@pytest.mark.parametrize(("one", "other"), list(combinations(sorted(IDENTIFYING), 2)))
def test_a_second_identifying_header_makes_another_tenant(one: str, other: str) -> None:
    assert tenant_of(CIMultiDict({one: "a"})) != tenant_of(CIMultiDict({one: "a", other: "b"}))


@pytest.mark.parametrize("name", KEYS)
def test_a_lone_key_counts_the_same_in_whichever_header_it_comes(name: str) -> None:
    bearer = tenant_of(CIMultiDict({"Authorization": "Bearer sk-1"}))
    assert tenant_of(CIMultiDict({name: "sk-1"})) == bearer
    assert key_of(CIMultiDict({name: "sk-1"})) == "sk-1"


def test_a_header_that_comes_twice_is_not_the_one_that_comes_once() -> None:
    once = CIMultiDict([("Authorization", "Bearer a")])
    twice = CIMultiDict([("Authorization", "Bearer a"), ("Authorization", "Bearer b")])
    assert tenant_of(once) != tenant_of(twice)
