"""Prompts go to the upstream that saw their longest prefix, until it has twice the load of the least loaded one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.anthropic.dialect import Anthropic
from gateway.dialects.openai.dialect import OpenAI
from gateway.features.prefixes.prefixes import (
    BLOCK_BYTES,
    BLOCK_ENDS,
    MAX_PROMPT_BYTES,
    PrefixTable,
    pick_warm,
    prefix_blocks,
)
from gateway.upstream.load_balancer import LoadCandidate, first_within_bound, pick

SYSTEM = {"role": "system", "content": "rules " * 200}


def turns(*texts: str) -> list[dict[str, str]]:
    return [{"role": "assistant" if i % 2 else "user", "content": text * 300} for i, text in enumerate(texts)]


def blocks(messages: list[Any], tenant: str = "acme", **fields: Any) -> list[bytes]:
    body = orjson.dumps({"model": "m", "messages": messages, **fields})
    return prefix_blocks(OpenAI().parse("/v1/chat/completions", body, {}), tenant)


def shared(one: list[bytes], other: list[bytes]) -> int:
    """Return the number of equal digests. They are equal up to the first difference only."""
    count = sum(a == b for a, b in zip(one, other, strict=False))
    assert one[:count] == other[:count]
    return count


def test_every_turn_begins_with_the_blocks_of_the_turn_before() -> None:
    first, second = blocks([SYSTEM, *turns("a ")]), blocks([SYSTEM, *turns("a ", "b ", "c ")])
    assert 0 < len(first) < len(second)
    assert second[: len(first)] == first


def test_a_difference_changes_all_blocks_after_it() -> None:
    one, other = blocks([SYSTEM, *turns("a ", "b ", "c ")]), blocks([SYSTEM, *turns("a ", "x ", "c ")])
    assert 3 <= shared(one, other) < len(one)


@pytest.mark.parametrize(
    "other",
    [
        blocks([SYSTEM], tenant="other"),
        blocks([SYSTEM], model="n"),
        blocks([SYSTEM], tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]),
        blocks([SYSTEM], prompt_cache_key="k"),
    ],
)
def test_another_tenant_model_toolset_or_key_shares_no_block(other: list[bytes]) -> None:
    assert not set(blocks([SYSTEM])) & set(other)


def test_a_key_is_a_prefix_of_all_prompts_that_have_it() -> None:
    one, other = blocks(turns("a "), prompt_cache_key="k"), blocks(turns("b "), prompt_cache_key="k")
    assert shared(one, other) == 1
    assert blocks([{"role": "user", "content": "hi"}], prompt_cache_key="k") == one[:1]


def test_what_does_not_fill_a_block_has_none() -> None:
    assert blocks([{"role": "user", "content": "hi"}]) == []
    assert blocks([{"role": "user", "content": "x" * 2 * BLOCK_BYTES}]) != []
    embeddings = orjson.dumps({"model": "m", "input": "long " * 1000})
    assert prefix_blocks(OpenAI().parse("/v1/embeddings", embeddings, {}), "acme") == []


def test_a_huge_prompt_has_a_bounded_number_of_blocks() -> None:
    huge = [{"role": "user", "content": "x" * 2 * MAX_PROMPT_BYTES}]
    assert len(blocks(huge)) == len(BLOCK_ENDS) < 100
    assert BLOCK_ENDS[-1] == MAX_PROMPT_BYTES


def test_marks_that_move_from_turn_to_turn_change_no_block() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}

    def claude(marked: int) -> list[bytes]:
        said = [{"type": "text", "text": f"{i} " * 300} for i in range(3)]
        content = [{**block, **(mark if i == marked else {})} for i, block in enumerate(said)]
        body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": content}]}
        return prefix_blocks(Anthropic().parse("/v1/messages", orjson.dumps(body), {}), "acme")

    assert claude(0) == claude(2) == claude(9)


def candidates(*loads: int) -> list[LoadCandidate]:
    return [LoadCandidate(name, load, 1.0) for name, load in zip("abc", loads, strict=False)]


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ((0, 0), 0),
        ((1, 0), 0),  # with this call 2, and 1 on the other
        ((2, 0), None),  # 3 would be more than twice 1
        ((3, 1), 0),
        ((4, 1), None),
        ((7, 3, 9), 0),
        ((8, 3, 9), None),
    ],
)
def test_a_preferred_upstream_is_passed_over_above_twice_the_least(
    loads: tuple[int, ...], expected: int | None
) -> None:
    assert first_within_bound(("a",), candidates(*loads)) == expected


def test_the_bound_counts_weights() -> None:
    heavy = [LoadCandidate("a", 5, 3.0), LoadCandidate("b", 0, 1.0)]
    assert first_within_bound(("a",), heavy) == 0  # 6 / 3 is twice 1
    assert first_within_bound(("a",), [LoadCandidate("a", 6, 3.0), heavy[1]]) is None


def test_without_prefixes_a_preferred_upstream_is_taken_within_the_same_bound() -> None:
    assert pick(candidates(0, 1), lambda: 0.0, preferred="b") == 1
    assert pick(candidates(0, 3), lambda: 0.0, preferred="b") == 0
    assert pick(candidates(0, 1), lambda: 0.0, preferred="gone") == 0
    assert pick(candidates(0, 1), lambda: 0.0, key=b"k", preferred="b") == 1


def test_the_longest_prefix_wins_then_the_next_then_the_order_of_the_hash() -> None:
    table = PrefixTable()
    table.record([b"1"], "b")
    assert table.names([b"1", b"2", b"3"]) == ["b"]
    table.record([b"1", b"2"], "a")
    table.record([b"1"], "b")
    names = table.names([b"1", b"2", b"3"])
    assert names == ["a", "b"]
    prompt = [b"1", b"2", b"3"]
    assert pick_warm(prompt, names, candidates(0, 0, 0)) == (0, "warm")
    assert pick_warm(prompt, names, candidates(9, 0, 0)) == (1, "moved")
    assert pick_warm(prompt, names, candidates(9, 9, 0)) == (2, "moved")
    assert pick_warm(prompt, [], candidates(9, 9, 0)) == (2, "cold")
    assert pick_warm(prompt, names, candidates(0, 0, 1), preferred="c") == (2, "preferred")
    assert pick_warm(prompt, names, candidates(0, 0, 5), preferred="c") == (0, "warm")


@given(st.binary(min_size=16, max_size=16), st.permutations("abcd"))
def test_gateways_without_a_common_table_agree_on_a_cold_prompt(digest: bytes, names: list[str]) -> None:
    listed = [LoadCandidate(name, 0, 1.0) for name in names]
    index, outcome = pick_warm([digest], [], listed)
    by_name = [LoadCandidate(name, 0, 1.0) for name in "abcd"]
    assert (listed[index].name, outcome) == (by_name[pick_warm([digest], [], by_name)[0]].name, "cold")


@given(st.lists(st.binary(min_size=1, max_size=1), min_size=1, max_size=400))
def test_no_load_exceeds_twice_the_least(keys: list[bytes]) -> None:
    """All prompts stay in flight, and all may share one prefix."""
    table, loads = PrefixTable(), Counter[str]()
    for key in keys:
        given_now = [LoadCandidate(name, loads[name], 1.0) for name in "abc"]
        prompt = [b"system", key]
        index, _ = pick_warm(prompt, table.names(prompt), given_now)
        table.record(prompt, given_now[index].name)
        loads[given_now[index].name] += 1
        assert max(loads[name] for name in "abc") <= 2 * (min(loads[name] for name in "abc") + 1)


def test_the_table_is_bounded_and_forgets_long_prefixes_first() -> None:
    table = PrefixTable(max_blocks=4)
    table.record([b"1", b"2", b"3"], "a")
    table.record([b"4", b"5", b"6"], "b")
    assert len(table) == 4
    assert table.names([b"1", b"2", b"3"]) == ["a"]  # of the older prompt the shortest prefix is left
    assert table.names([b"2"]) == table.names([b"3"]) == []
