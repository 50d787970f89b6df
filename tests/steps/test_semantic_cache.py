"""The semantic cache with the real embedding model, from the client's side of a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.adapters.onnx.model_files import ModelCorrupt, ModelMissing, default_model_dir, load_manifest
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import Answer, Served, at_rest, config_of, gateway_of, recovered
from tests.fixtures.upstream import Upstream

POLICY = """
version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 30m, max_wrong_hits: 5%}}
    route: {backend: main}
"""
ASKED = "How do I reset my password?"
SAME = "How can I reset my password?"
RED, BLUE = ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{c}"}} for c in ("AAAA", "BBBB"))


@pytest.fixture(scope="session")
def model() -> None:
    try:
        load_manifest(default_model_dir() / "all-MiniLM-L6-v2")
    except (ModelMissing, ModelCorrupt) as reason:
        pytest.skip(str(reason))


def config_for(upstream: Upstream, path: Path, **sections: Any) -> Any:
    backends = {"main": {"adapter": "openai", "url": upstream.url}}
    return config_of(path, backends, embedder={"adapter": "onnx", "timeout": "20s"}, **sections)


@pytest.fixture
async def semantic(model: None, upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    async with gateway_of(config_for(upstream, tmp_path), POLICY) as served:
        yield served


def is_semantic(answer: Answer) -> bool:
    return answer.cache_status == "nearhit; hit; detail=semantic"


def is_miss(answer: Answer) -> bool:
    return answer.cache_status == "nearhit; fwd=miss; stored"


def turns(*texts: str, system: str | None = None) -> list[dict[str, Any]]:
    """A conversation that the user begins and ends."""
    roles = ["user", "assistant"] * len(texts)
    head = [] if system is None else [{"role": "system", "content": system}]
    return head + [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]


async def ask(served: Served, messages: list[dict[str, Any]], **fields: Any) -> Answer:
    return await served.post("/v1/chat/completions", {"model": "m", "messages": messages, **fields})


async def test_a_paraphrase_gets_the_stored_answer(semantic: Served, upstream: Upstream) -> None:
    assert is_miss(first := await semantic.chat(ASKED))
    hit = await semantic.chat(SAME)
    assert is_semantic(hit)
    assert hit.text == first.text == f"upstream answers: {ASKED}"
    assert 0.84 <= float(hit.headers["x-nearhit-similarity"]) < 1.0
    assert int(hit.headers["Age"]) <= 60
    streamed = await semantic.chat(SAME, stream=True)
    assert is_semantic(streamed)
    assert streamed.body.endswith(b"data: [DONE]\n\n")
    assert len(upstream.calls) == 1


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ("How do I turn the heating on?", "How do I turn the heating off?"),
        ("Is it safe to eat raw eggs?", "Is it not safe to eat raw eggs?"),
        ("Who won the world cup in 2018?", "Who won the world cup in 2014?"),
        ("Convert 5 km to miles", "Convert 5 miles to km"),
        ("What is the capital of Austria?", "What is the capital of Australia?"),
        ("How do I enable two-factor login?", "How do I disable two-factor login?"),
        ("What is the weather like today?", "How do I bake bread?"),
    ],
)
async def test_a_different_question_gets_its_own_answer(semantic: Served, stored: str, asked: str) -> None:
    assert is_miss(await semantic.chat(stored))
    other = await semantic.chat(asked)
    assert is_miss(other)
    assert other.text == f"upstream answers: {asked}"


async def test_the_same_last_turn_after_two_histories_never_matches(semantic: Served) -> None:
    """Keys made of the last message alone were wrong nearly always: "and the second one?" is no question by itself."""
    cats = turns("Tell me about cats", "They purr.", "And how long do they live?")
    dogs = turns("Tell me about dogs", "They bark.", "And how long do they live?")
    assert is_miss(await ask(semantic, cats))
    assert is_miss(await ask(semantic, dogs))
    assert is_miss(await ask(semantic, turns("And how long do they live?")))
    assert is_miss(await ask(semantic, turns("Tell me about cats", "They mew.", "And how long do they live?")))


async def test_a_paraphrase_late_in_an_equal_conversation_matches(semantic: Served) -> None:
    assert is_miss(await ask(semantic, turns("My name is Ann.", "Hello Ann.", ASKED)))
    assert is_semantic(await ask(semantic, turns("My name is Ann.", "Hello Ann.", SAME)))


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": turns(SAME, system="You answer in French.")},
        {"tools": [{"type": "function", "function": {"name": "reset"}}]},
        {"model": "n"},
        {"temperature": 1.5},
        {"seed": 3},
        {"max_tokens": 16},
        {"response_format": {"type": "json_object"}},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_what_decides_the_answer_beside_the_question_has_to_be_equal(
    semantic: Served, fields: dict[str, Any]
) -> None:
    assert is_miss(await ask(semantic, turns(ASKED)))
    assert is_miss(await ask(semantic, **{"messages": turns(SAME), **fields}))
    assert is_semantic(await ask(semantic, turns(SAME)))


async def test_images_beside_the_question_have_to_be_equal(semantic: Served) -> None:
    def shown(text: str, *images: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"role": "user", "content": [*images, {"type": "text", "text": text}]}]

    first, second = "What can be seen in this picture?", "What can you see in this picture?"
    assert is_miss(await ask(semantic, shown(first, RED)))
    assert is_miss(await ask(semantic, shown(second, BLUE)))
    assert is_miss(await ask(semantic, shown(second, RED, BLUE)))
    assert is_miss(await ask(semantic, shown(second)))
    assert is_semantic(await ask(semantic, shown(second.replace("picture", "image"), RED)))


async def test_the_place_of_images_between_texts_has_to_be_equal(semantic: Served) -> None:
    """Which caption belongs to which picture is part of the question."""
    one, two = {"type": "text", "text": "the left one:"}, {"type": "text", "text": "the right one:"}
    assert is_miss(await ask(semantic, [{"role": "user", "content": [one, RED, two, BLUE]}]))
    assert is_miss(await ask(semantic, [{"role": "user", "content": [RED, one, BLUE, two]}]))


async def test_a_long_text_to_work_on_is_matched_by_all_its_words(semantic: Served) -> None:
    """A vector of its head would stand for every text with this head."""
    head = "the quick brown fox jumps over the lazy dog " * 40
    assert is_miss(await semantic.chat(head + "Summarise this in French."))
    assert is_miss(await semantic.chat(head + "Summarise this in German."))
    assert is_semantic(await semantic.chat("  " + head + " Summarise  this in German.\n"))


async def test_a_question_that_the_model_cuts_is_not_matched(semantic: Served) -> None:
    """It is too short to be split, and has more tokens than the model reads."""
    head = "0x7f 1a-2b; " * 60
    for end in ("Which one is odd?", "Which one is even?"):
        assert is_miss(answer := await semantic.chat(head + end))
        assert answer.text.endswith(end)
    assert semantic.gateway.parts.space.index.size == 0


async def test_a_semantic_hit_is_never_stored_again(semantic: Served) -> None:
    """Errors would spread from neighbour to neighbour."""
    await semantic.chat(ASKED)
    parts = semantic.gateway.parts
    before = (await parts.store.stats()).entries, parts.space.index.size
    assert is_semantic(await semantic.chat(SAME))
    assert is_semantic(await semantic.chat(SAME))
    assert ((await parts.store.stats()).entries, parts.space.index.size) == before == (1, 1)


async def test_the_index_is_rebuilt_from_the_store(model: None, upstream: Upstream, tmp_path: Path) -> None:
    config = config_for(upstream, tmp_path)
    async with gateway_of(config, POLICY) as served:
        await served.chat(ASKED)
    async with gateway_of(config, POLICY) as served:
        await recovered(served)
        assert is_semantic(await served.chat(SAME))
    assert len(upstream.calls) == 1


async def test_a_deleted_entry_is_never_served_through_the_index(semantic: Served, upstream: Upstream) -> None:
    """Also when it was deleted behind this gateway's back."""
    await at_rest(semantic)  # a comparison with the store would take it out of the index
    await semantic.chat(ASKED)
    parts = semantic.gateway.parts
    (stored,) = [stored async for stored in parts.store.vectors()]
    await parts.store.delete([stored.fingerprint])
    assert parts.space.index.size == 1
    assert is_miss(await semantic.chat(SAME))
    assert parts.space.index.size == 1, "the deleted one is out of the index, the new one in"
    assert len(upstream.calls) == 2


async def test_a_semantic_hit_lives_as_long_as_its_own_ttl(model: None, upstream: Upstream, tmp_path: Path) -> None:
    clock = FakeClock()
    async with gateway_of(config_for(upstream, tmp_path), POLICY, clock=clock) as served:
        await served.chat(ASKED)
        clock.advance(1799)
        assert is_semantic(await served.chat(SAME))
        clock.advance(2)
        assert is_miss(await served.chat(SAME))
        assert (await served.chat(ASKED)).cache_status.startswith("nearhit; hit; detail=exact"), "its ttl is an hour"


async def test_cache_control_holds_for_semantic_hits_too(model: None, upstream: Upstream, tmp_path: Path) -> None:
    clock = FakeClock()
    async with gateway_of(config_for(upstream, tmp_path), POLICY, clock=clock) as served:
        await served.chat(ASKED)
        clock.advance(10)
        assert is_semantic(await served.chat(SAME, headers={"Cache-Control": "only-if-cached"}))
        assert is_semantic(await served.chat(SAME, headers={"Cache-Control": "max-age=11"}))
        for directive in ("no-store", "max-age=10", "no-cache"):
            answer = await served.chat(SAME, headers={"Cache-Control": directive})
            assert not answer.cache_status.startswith("nearhit; hit"), directive
            assert answer.text == f"upstream answers: {SAME}"


async def test_completions_match_by_their_prompt_and_embeddings_never(semantic: Served) -> None:
    assert is_miss(await semantic.post("/v1/completions", {"model": "m", "prompt": ASKED}))
    assert is_semantic(await semantic.post("/v1/completions", {"model": "m", "prompt": SAME}))
    assert is_miss(await semantic.post("/v1/embeddings", {"model": "m", "input": ASKED}))
    assert is_miss(await semantic.post("/v1/embeddings", {"model": "m", "input": SAME}))


async def test_a_last_turn_that_is_not_the_users_is_not_matched(semantic: Served) -> None:
    for question in (ASKED, SAME):
        messages = [*turns("hi"), {"role": "tool", "tool_call_id": "1", "content": question}]
        assert is_miss(await ask(semantic, messages))


async def test_the_learned_verifier_serves_paraphrases_and_not_their_opposites(
    model: None, upstream: Upstream, tmp_path: Path
) -> None:
    config = config_for(upstream, tmp_path, verifier={"adapter": "learned"})
    async with gateway_of(config, POLICY) as served:
        await served.chat("How do I turn on dark mode in the app?")
        assert is_semantic(await served.chat("how can I turn on dark mode in the app"))
        assert is_miss(await served.chat("How do I turn off dark mode in the app?"))
        await served.chat("Translate to French: good morning, how are you today?")
        assert is_miss(await served.chat("Translate to French: good evening, how are you today?"))
