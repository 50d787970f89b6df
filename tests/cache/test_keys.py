"""Who and what may share an answer. A collision here is an answer given to somebody it was not made for."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cache.keys import keys_of, owner_of
from gateway.calls import Call, Decisive
from gateway.dialects.openai.dialect import OpenAI

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
OWNER = st.tuples(st.sampled_from(["user", "tenant", "global"]), TEXT, st.none() | TEXT)


@dataclass
class Bare:
    """The three things of a call that decide its key."""

    operation: str
    content: bytes
    dialect_name: str = "openai"

    def call(self) -> Call:
        dialect = OpenAI()
        dialect.name = self.dialect_name
        return Call(
            dialect=dialect,
            operation=self.operation,
            body={},
            model="m",
            stream=False,
            decisive_source=Decisive(self.content, self.content, None),
            prompt_source="",
            max_tokens=None,
            user=None,
        )


def scope_of(owner: str, route: str, call: Call) -> str:
    return keys_of(owner, route, call)[0]


def fingerprint_of(owner: str, route: str, call: Call) -> str:
    return keys_of(owner, route, call)[1]


PARTS = st.tuples(TEXT, TEXT, TEXT, st.binary(max_size=8), TEXT)


@given(PARTS, PARTS)
def test_keys_are_equal_only_when_owner_route_operation_content_and_query_all_are(a: tuple, b: tuple) -> None:
    """Small alphabets of parts and short texts: shifted boundaries between parts are tried too."""
    for which in (0, 1):
        keys = [
            keys_of(owner, route, Bare(operation, content).call(), query)[which]
            for owner, route, operation, content, query in (a, b)
        ]
        assert (keys[0] == keys[1]) == (a == b)


@given(TEXT, TEXT, st.binary(max_size=4))
def test_no_boundary_between_parts_can_be_moved(left: str, right: str, content: bytes) -> None:
    """Each part carries its length: what one part ends with cannot pass for the beginning of the next."""
    joined = left + right
    splits = [(joined[:i], joined[i:]) for i in range(len(joined) + 1)]
    keys = {fingerprint_of(owner, route, Bare("chat", content).call()) for owner, route in splits}
    assert len(keys) == len(set(splits))


def test_an_exact_key_is_never_a_scope() -> None:
    call = Bare("chat", b"x").call()
    assert fingerprint_of("o", "r", call) != scope_of("o", "r", call)


def test_users_with_names_as_long_as_bodies_leave_nothing_behind() -> None:
    call = Bare("chat", b"x").call()
    tracemalloc.start()
    try:
        for number in range(20):
            keys_of(owner_of("user", "t", f"{number}" * 100_000), "r", call)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 100_000


def test_dialects_do_not_share() -> None:
    keys = {fingerprint_of("o", "r", Bare("chat", b"x", name).call()) for name in ("openai", "anthropic")}
    assert len(keys) == 2


def test_a_key_is_a_whole_sha256() -> None:
    """A truncated one could be found for another request by trying."""
    key = fingerprint_of("o", "r", Bare("chat", b"x").call())
    assert len(bytes.fromhex(key)) == 32


@given(OWNER, OWNER)
def test_owners_are_equal_only_for_who_may_share(a: tuple, b: tuple) -> None:
    def sharers(share: str, tenant: str, user: str | None) -> object:
        if share == "global":
            return "all"
        return (tenant, user or "") if share == "user" else tenant

    if a[0] == b[0] and "\0" not in a[1] + b[1]:  # a route shares in one way; credentials are hashes or names
        assert (owner_of(*a) == owner_of(*b)) == (sharers(*a) == sharers(*b))


@pytest.mark.parametrize("user", [None, ""])
def test_users_without_a_name_share_within_their_tenant_only(user: str | None) -> None:
    assert owner_of("user", "acme", user) == owner_of("user", "acme", None)
    assert owner_of("user", "acme", user) != owner_of("user", "other", user)
    assert owner_of("user", "acme", user) != owner_of("user", "acme", "ann")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(extra=st.dictionaries(TEXT.map(lambda name: "x-" + name), JSON, max_size=4), seed=st.randoms())
def test_the_order_of_fields_does_not_matter_and_unknown_fields_do(extra: dict, seed: object) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **extra}
    shuffled = list(body.items())
    seed.shuffle(shuffled)

    def key(given: dict) -> str:
        return fingerprint_of("o", "r", OpenAI().parse("/v1/chat/completions", orjson.dumps(given), {}))

    assert key(body) == key(dict(shuffled))
    assert (key(body) == key({"model": "m", "messages": body["messages"]})) == (not extra)
