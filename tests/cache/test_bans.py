"""What a removal means: every answer that was asked for before it and meets its conditions, and none that was not."""

from __future__ import annotations

from dataclasses import fields, replace

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cache.bans import (
    EVERYTHING,
    Ban,
    BanConditions,
    Bans,
    SimilarityCondition,
    decode,
    encode,
    is_same_tenant,
    limit_bans,
    with_matching,
)
from gateway.entries import EmbeddedVector, Entry
from tests.fixtures.entries import entry_of, hexed, vector_of

NOW = 1_000_000.0
NAMES = st.sampled_from(["a", "b", "c"])
MAYBE = st.none() | NAMES
TIMES = st.integers(0, 40).map(lambda i: NOW + i)
ENTRIES = st.builds(
    lambda name, tags, tenant, route, model, backend, created, upstream_s, imported: entry_of(
        name, tags=tuple(tags), tenant=tenant, route=route, model=model, backend=backend, created=created,
        upstream_s=upstream_s, expires=created + 100, imported=imported,
    ),
    NAMES, st.lists(NAMES, max_size=2), NAMES, NAMES, NAMES, NAMES, TIMES, st.integers(0, 20).map(float),
    st.just(0.0) | TIMES,
)  # fmt: skip
CONDITIONS = st.builds(
    BanConditions,
    tags=st.frozensets(NAMES, max_size=2),
    tenant=MAYBE,
    route=MAYBE,
    model=MAYBE,
    before=st.none() | TIMES,
    fingerprint=st.none() | NAMES.map(hexed),
    backend=MAYBE,
)
BANS = st.builds(
    Ban, id=st.uuids().map(str), at=TIMES, expires_at=st.integers(1, 400).map(lambda i: NOW + i), conditions=CONDITIONS
)


@pytest.mark.parametrize("name", [field.name for field in fields(BanConditions) if field.name != "near"])
def test_no_condition_of_a_ban_is_missing_from_its_record(name: str) -> None:
    """Else another gateway would remove more than the operator meant, or nothing."""
    value: object = {"tags": frozenset("a"), "subjects": frozenset("a"), "before": 1.0}.get(name, "a")
    ban = Ban("1", 2.0, 3.0, BanConditions(**{name: value}), erasure=True, records=4)  # type: ignore[arg-type]
    read = decode(encode(ban), 0.0)
    assert (read, read.records, read.erasure) == (ban, 4, True)


def ban_of(at: float = NOW, **conditions: object) -> Ban:
    return Ban("b", at, at + 1000, BanConditions(**conditions))  # type: ignore[arg-type]


def test_what_was_asked_for_before_and_came_after_is_covered() -> None:
    """The answer to a call that began before a removal is as old as what was removed."""
    late = entry_of(created=NOW + 30, upstream_s=31.0)
    assert ban_of().covers(late)
    assert not ban_of().covers(replace(late, upstream_s=29.0))


def test_what_an_operator_brings_back_afterwards_is_not_covered() -> None:
    old = entry_of(created=NOW - 100)
    assert ban_of().covers(old)
    assert not ban_of().covers(replace(old, imported=NOW + 1))
    assert ban_of(NOW + 2).covers(replace(old, imported=NOW + 1))


@pytest.mark.parametrize(
    ("conditions", "meant"),
    [
        ({}, True),
        ({"tags": frozenset({"docs"})}, True),
        ({"tags": frozenset({"other", "v2"})}, True),
        ({"tags": frozenset({"other"})}, False),
        ({"tenant": "acme"}, True),
        ({"tenant": "acm"}, False),
        ({"route": "default", "model": "m"}, True),
        ({"route": "default", "model": "other"}, False),
        ({"backend": "other"}, False),
        ({"before": NOW}, True),
        ({"before": NOW - 1}, False),
        ({"fingerprint": hexed("a")}, True),
        ({"fingerprint": hexed("b")}, False),
        ({"tags": frozenset({"docs"}), "tenant": "other"}, False),
    ],
)
def test_all_conditions_hold_and_of_the_tags_one(conditions: dict[str, object], meant: bool) -> None:
    entry = entry_of("a", created=NOW, upstream_s=0.5)
    assert ban_of(**conditions).covers(entry) is meant


def test_a_tenant_that_is_a_hash_may_be_given_by_the_digits_that_are_shown() -> None:
    tenant = hexed("key")
    assert is_same_tenant(tenant, tenant)
    assert is_same_tenant(tenant[:12], tenant)
    assert not is_same_tenant(tenant[:11], tenant)
    assert not is_same_tenant("acme-subsidi", "acme-subsidiary"), "a name is no hash"


def test_close_to_a_question_is_known_by_fingerprint_or_by_vector() -> None:
    asked = vector_of(1)
    near = SimilarityCondition(asked, 0.8, frozenset({hexed("found")}), "e1")
    ban = ban_of(near=near)
    matching, late = (entry_of(name, created=NOW) for name in ("found", "late"))
    assert ban.covers(matching)
    assert not ban.covers(late)
    assert ban.covers(late, EmbeddedVector(asked, "e1"))
    assert not ban.covers(late, EmbeddedVector(vector_of(2), "e1"))
    assert not ban.covers(late, EmbeddedVector(vector_of(1, dimension=7), "e1")), "damaged"
    assert with_matching(ban, [late.fingerprint]).covers(late)


@given(BANS, ENTRIES)
def test_a_sweep_takes_what_is_covered_and_what_claims_to_come_from_the_future(ban: Ban, entry: Entry) -> None:
    swept = ban.sweeps(entry, None, NOW + 50)
    assert swept is ban.covers(entry)
    early = ban.sweeps(entry, None, NOW - 1)
    assert early is ban.conditions.matches(entry)


@given(st.lists(BANS, max_size=20), st.integers(1, 8), ENTRIES)
def test_a_bounded_list_covers_all_that_the_bans_did(bans: list[Ban], limit: int, entry: Entry) -> None:
    kept = limit_bans(bans, NOW, limit)
    assert len(kept) <= limit
    assert [ban.at for ban in kept] == sorted(ban.at for ban in kept)
    if any(ban.covers(entry) for ban in bans):
        assert any(ban.covers(entry) for ban in kept)
    for ban in bans:
        if ban.covers(entry):
            assert max(each.expires_at for each in kept if each.covers(entry)) >= ban.expires_at


@given(st.lists(BANS, max_size=5, unique_by=lambda ban: ban.conditions), ENTRIES)
def test_within_the_bound_nothing_else_is_covered(bans: list[Ban], entry: Entry) -> None:
    assert any(ban.covers(entry) for ban in bans) == any(ban.covers(entry) for ban in limit_bans(bans, NOW, 64))


@given(BANS, BANS, ENTRIES)
def test_what_includes_another_covers_all_that_it_does(one: Ban, other: Ban, entry: Entry) -> None:
    if one.is_superset(other) and other.covers(entry):
        assert one.covers(entry)


def test_what_is_over_is_forgotten() -> None:
    assert limit_bans([ban_of()], NOW + 999) == (ban_of(),)
    assert limit_bans([ban_of()], NOW + 1000) == ()


@given(BANS, ENTRIES)
def test_a_ban_comes_back_from_the_store_as_it_was(ban: Ban, entry: Entry) -> None:
    assert decode(encode(ban), NOW) == ban


def test_one_by_a_question_comes_back_too() -> None:
    ban = ban_of(near=SimilarityCondition(vector_of(1), 0.8, frozenset({"x", "y"}), "e1"))
    back = decode(encode(ban), NOW).conditions.near
    assert back is not None
    assert np.array_equal(back.vector, vector_of(1))
    assert (back.similarity, back.matching, back.embedder) == (0.8, frozenset({"x", "y"}), "e1")


def test_one_by_a_question_is_compared_with_vectors_of_its_own_embedder_alone() -> None:
    """The same dimension says nothing: only the fingerprint tells whose a vector is."""
    ban = ban_of(near=SimilarityCondition(vector_of(1), 0.8, frozenset({hexed("found")}), "e1"))
    asked = entry_of("other", created=NOW - 10)
    matching = entry_of("found", created=NOW - 10)
    for each in (ban, decode(encode(ban), NOW)):
        assert each.covers(asked, EmbeddedVector(vector_of(1), "e1"))
        assert not each.covers(asked, EmbeddedVector(vector_of(1), "e2"))
        assert each.covers(matching, EmbeddedVector(vector_of(2), "e2")), "what it found when it was made stays removed"


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", msgpack.packb([1]), msgpack.packb({"format": 1}), encode(ban_of())[:-9]]
)
def test_one_that_cannot_be_read_covers_everything(data: bytes) -> None:
    ban = decode(data, NOW)
    assert (ban.at, ban.conditions) == (NOW, EVERYTHING)


def test_one_of_a_newer_gateway_covers_everything_up_to_its_time() -> None:
    newer = {**msgpack.unpackb(encode(ban_of(tags=frozenset({"docs"})))), "format": 2}
    assert decode(msgpack.packb(newer), NOW + 5) == Ban("b", NOW, NOW + 1000, EVERYTHING)


def test_each_change_has_a_version_and_what_is_newer_than_all_bans_costs_one_comparison() -> None:
    bans = Bans()
    assert not bans.covers(entry_of(created=NOW))
    bans.add(ban_of(), NOW)
    assert bans.version == 1
    assert bans.covers(entry_of(created=NOW))
    assert not bans.covers(entry_of(created=NOW + 2, upstream_s=1.0))


def test_one_that_could_not_be_read_is_in_force_for_as_long_as_the_store_has_it() -> None:
    bans = Bans()
    bans.stored([decode(b"what a later version writes", NOW)], NOW)
    assert bans.covers(entry_of(created=NOW))
    bans.stored([], NOW)
    assert len(bans) == 0


def test_what_the_store_could_not_be_told_stays_in_force_here() -> None:
    bans = Bans()
    own, other = ban_of(route="a"), Ban("o", NOW, NOW + 1000, BanConditions(route="b"))
    bans.add(own, NOW)
    assert bans.stored([other], NOW) == (other,)
    assert bans.loaded
    assert {ban.id for ban in bans.in_force} == {"b", "o"}
    assert bans.stored([own, other], NOW) == ()
    assert bans.stored([], NOW) == (), "a store that was killed has lost them"
    assert {ban.id for ban in bans.in_force} == {"b", "o"}
    bans.expire(NOW + 1000)
    assert len(bans) == 0
