"""A last turn means what the turns before it make it mean: matched within equal conversations, never across others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.gateways import Answer, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream

# Anything is similar enough: what keeps answers apart here is the scope alone.
ANYTHING = """
version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.3}}
    route: {backend: main}
"""
PROMISE = ANYTHING.replace("min_similarity: 0.3", "max_wrong_hits: 5%")
WINTER, IN_WINTER = "And in winter?", "And how is it in winter?"
Turns = list[dict[str, Any]]


@pytest.fixture
async def lenient(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, ANYTHING) as served:
        yield served


def turns(*texts: str) -> Turns:
    """A conversation that the user begins and ends."""
    roles = ["user", "assistant"] * len(texts)
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]


async def ask(served: Served, messages: Turns) -> Answer:
    return await served.post("/v1/chat/completions", {"model": "m", "messages": messages})


def is_semantic(answer: Answer) -> bool:
    return answer.cache_status == "nearhit; hit; detail=semantic"


def is_miss(answer: Answer) -> bool:
    return answer.cache_status == "nearhit; fwd=miss; stored"


OSLO = turns("How warm is Oslo in summer?", "About 20 degrees.", WINTER)
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
OTHERS = {
    "another city": turns("How warm is Rome in summer?", "About 20 degrees.", WINTER),
    "another answer": turns("How warm is Oslo in summer?", "About 21 degrees.", WINTER),
    "no history": turns(WINTER),
    "a turn more": turns("Hi", "Hello", *(turn["content"] for turn in OSLO)),
    "a turn less": OSLO[1:],
    "other roles": [{**OSLO[0], "role": "system"}, *OSLO[1:]],
    "other speakers": [{**OSLO[0], "name": "ann"}, *OSLO[1:]],
    "a system prompt": [{"role": "system", "content": "Be brief."}, *OSLO],
    "an image in the history": [
        {"role": "user", "content": [{"type": "text", "text": OSLO[0]["content"]}, {"type": "image_url"}]},
        *OSLO[1:],
    ],
    "a tool call in the history": [
        OSLO[0],
        {"role": "assistant", "content": OSLO[1]["content"], "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "1", "content": "20"},
        OSLO[2],
    ],
    "another order": [OSLO[1], OSLO[0], OSLO[2]],
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
async def test_the_same_last_turn_after_another_history_never_matches(
    lenient: Served, upstream: Upstream, other: Turns
) -> None:
    assert is_miss(await ask(lenient, OSLO))
    assert is_miss(await ask(lenient, other))
    assert len(upstream.calls) == 2
    assert is_miss(await ask(lenient, [*other[:-1], {"role": "user", "content": f"{WINTER}  "}])) is False, "its own"


async def test_what_was_asked_late_in_an_equal_conversation_matches_in_other_words(lenient: Served) -> None:
    assert is_miss(await ask(lenient, OSLO))
    hit = await ask(lenient, [*OSLO[:-1], {"role": "user", "content": IN_WINTER}])
    assert is_semantic(hit)
    assert hit.text == f"upstream answers: {WINTER}"
    assert is_miss(await ask(lenient, [*OTHERS["another city"][:-1], {"role": "user", "content": IN_WINTER}]))


async def test_the_very_same_conversation_is_an_exact_hit(lenient: Served) -> None:
    assert is_miss(await ask(lenient, OSLO))
    assert (await ask(lenient, OSLO)).cache_status.startswith("nearhit; hit; detail=exact")


async def test_a_conversation_of_many_turns_matches_at_its_end(lenient: Served) -> None:
    long = [text for turn in range(50) for text in (f"question {turn}", f"answer {turn}")]
    assert is_miss(await ask(lenient, turns(*long, WINTER)))
    assert is_semantic(await ask(lenient, turns(*long, IN_WINTER)))
    assert is_miss(await ask(lenient, turns(*long[:-1], "answer 50", IN_WINTER)))


async def test_within_an_equal_conversation_the_verifier_still_decides(upstream: Upstream, tmp_path: Path) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, PROMISE) as served:
        assert is_miss(await ask(served, OSLO))
        assert is_miss(await ask(served, [*OSLO[:-1], {"role": "user", "content": "And in summer?"}]))
        assert is_semantic(await ask(served, [*OSLO[:-1], {"role": "user", "content": f" {WINTER}"}]))
