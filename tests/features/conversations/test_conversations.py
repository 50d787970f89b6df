"""After a semantic hit, a conversation goes on as the one whose answer was served. All at a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.cache.links import HALF, Links, turn_key
from tests.fixtures.entries import hexed
from tests.fixtures.gateways import LOOSE, Answer, Served, config_of, gateway_of, recovered
from tests.fixtures.responses import answering, text_item
from tests.fixtures.stores import OutsideServer
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

ASKED, REWORDED, THIRD = "who wrote the play hamlet", "who wrote the play hamlet then", "so who wrote the play hamlet"
NEXT, NEXT_REWORDED = "when was he born in england", "when was he born in england then"
LAST, LAST_REWORDED = "and how did he die in the end", "and how did he die in the end then"
WORDS = "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
OFF = LOOSE.replace("min_similarity: 0.5", "min_similarity: 0.5, conversations: off")


def config_for(upstream: Upstream, path: Path, **sections: Any) -> Any:
    return config_of(path, {"main": {"adapter": "openai", "url": upstream.url}}, **sections)


@pytest.fixture
async def talks(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    async with gateway_of(config_for(upstream, tmp_path), LOOSE) as served:
        yield served


def messages_of(turns: Sequence[str]) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)]


async def ask(served: Served, *turns: str, headers: dict[str, str] | None = None, **fields: Any) -> Answer:
    return await served.post(CHAT, {"model": "m", "messages": messages_of(turns), **fields}, headers)


def is_semantic(answer: Answer) -> bool:
    return answer.cache_status == "nearhit; hit; detail=semantic"


def is_miss(answer: Answer) -> bool:
    return answer.cache_status == "nearhit; fwd=miss; stored"


async def conversation(served: Served, *questions: str, **more: Any) -> list[str]:
    """Ask questions one after another, each with all turns before it, and return all turns."""
    turns = list[str]()
    for question in questions:
        answer = await ask(served, *turns, question, **more)
        turns += [question, answer.text]
    return turns


async def test_a_follow_up_of_a_reworded_opening_is_a_hit(talks: Served, upstream: Upstream) -> None:
    stored = await conversation(talks, ASKED, NEXT)
    opening = await ask(talks, REWORDED)
    assert is_semantic(opening)
    follow_up = await ask(talks, REWORDED, opening.text, NEXT_REWORDED)
    assert is_semantic(follow_up)
    assert follow_up.text == stored[3]
    assert len(upstream.chats) == 2


async def test_so_is_one_with_the_words_of_the_stored_follow_up(talks: Served) -> None:
    stored = await conversation(talks, ASKED, NEXT)
    opening = await ask(talks, REWORDED)
    assert (await ask(talks, REWORDED, opening.text, NEXT)).text == stored[3]


async def test_hits_in_a_row_go_on_in_one_conversation(talks: Served, upstream: Upstream) -> None:
    stored = await conversation(talks, ASKED, NEXT, LAST)
    other = await conversation(talks, REWORDED, NEXT_REWORDED, LAST_REWORDED)
    assert other[1::2] == stored[1::2]
    assert len(upstream.chats) == 3


async def test_a_turn_that_missed_in_between_stays_as_the_client_sent_it(talks: Served, upstream: Upstream) -> None:
    await conversation(talks, ASKED, NEXT)
    opening = await ask(talks, REWORDED)
    turns = REWORDED, opening.text, "which bakery sells good bread"
    assert is_miss(missed := await ask(talks, *turns))
    assert upstream.chats[-1].json["messages"] == messages_of(turns), "the backend reads what the client sent"
    assert (await ask(talks, *turns)).cache_status.startswith("nearhit; hit; detail=exact"), "under its own key"
    again = await ask(talks, REWORDED, opening.text, "which bakery sells good bread then")
    assert again.text == missed.text, "and so do other clients of this wording find it"


async def test_the_same_words_after_another_opening_are_never_served(talks: Served) -> None:
    """Fifty conversations have a follow-up in the same words. Openings in other words are hits of each. Then 200 times
    the follow-up stands after an answer that is not the one of its opening."""
    openings = [" ".join(f"{word}{number}" for word in WORDS) for number in range(50)]
    stored = [await conversation(talks, opening, NEXT) for opening in openings]
    assert len({turns[1] for turns in stored}) == len(openings), "each has an answer of its own"
    for opening, turns in zip(openings, stored, strict=True):
        hit = await ask(talks, f"{opening} then")
        assert is_semantic(hit)
        assert hit.text == turns[1]
    served = list[tuple[int, str, str]]()
    for place, opening in enumerate(openings):
        own, other = stored[place][1], stored[place - 1][1]
        for answer in (other, "I do not know.", own[:-1], f"{own} Or so they say."):
            follow_up = await ask(talks, f"{opening} then", answer, NEXT)
            if "; hit" in follow_up.cache_status:
                served.append((place, answer, follow_up.cache_status))
    assert served == []


async def test_an_equal_answer_of_a_backend_is_no_hit(talks: Served, upstream: Upstream) -> None:
    """Two plays have one writer. Only a hit says that a question is the stored one."""

    async def same(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        text = "Shakespeare." if len(body["messages"]) == 1 else f"answer {len(upstream.chats)}"
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return web.json_response({"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]})

    upstream.answer = same
    await conversation(talks, ASKED, NEXT)
    fresh = await ask(talks, "which man made the drama macbeth")
    assert is_miss(fresh)
    assert is_miss(await ask(talks, "which man made the drama macbeth", fresh.text, NEXT))


@pytest.mark.parametrize(
    "fields",
    [{"temperature": 0.5}, {"tools": [{"type": "function", "function": {"name": "reset"}}]}, {"model": "n"}],
    ids=lambda fields: next(iter(fields)),
)
async def test_a_conversation_with_other_parameters_is_another_one(talks: Served, fields: dict[str, Any]) -> None:
    await conversation(talks, ASKED, NEXT)
    opening = await ask(talks, REWORDED)
    assert is_miss(await ask(talks, REWORDED, opening.text, NEXT_REWORDED, **fields))


async def test_another_system_prompt_is_another_conversation(talks: Served) -> None:
    await conversation(talks, ASKED, NEXT)
    opening = await ask(talks, REWORDED)
    turns = [{"role": "system", "content": "Be brief."}, *messages_of((REWORDED, opening.text, NEXT_REWORDED))]
    assert is_miss(await talks.post(CHAT, {"model": "m", "messages": turns}))


async def test_a_client_that_edits_its_history_has_left_the_conversation(talks: Served) -> None:
    await conversation(talks, ASKED, NEXT)
    opening = await ask(talks, REWORDED)
    assert is_miss(await ask(talks, REWORDED, opening.text + "!", NEXT_REWORDED))
    assert is_miss(await ask(talks, REWORDED + " please", opening.text, NEXT_REWORDED))
    assert is_miss(await ask(talks, "hello you", "hello", REWORDED, opening.text, NEXT_REWORDED))


async def test_a_tenant_continues_only_its_own_conversations(talks: Served) -> None:
    one, two = ({"authorization": f"Bearer {name}"} for name in ("one", "two"))
    await conversation(talks, ASKED, NEXT, headers=one)
    opening = await ask(talks, REWORDED, headers=one)
    assert is_semantic(opening)
    assert is_miss(await ask(talks, REWORDED, opening.text, NEXT_REWORDED, headers=two))
    assert is_semantic(await ask(talks, REWORDED, opening.text, NEXT_REWORDED, headers=one))


async def test_streams_and_whole_answers_are_one_conversation(talks: Served) -> None:
    stored = await conversation(talks, ASKED, NEXT)
    assert is_semantic(await ask(talks, REWORDED, stream=True))
    follow_up = await ask(talks, REWORDED, stored[1], NEXT_REWORDED, stream=True)
    assert is_semantic(follow_up)


async def test_a_history_in_parts_of_text_is_the_same(talks: Served) -> None:
    await conversation(talks, ASKED, NEXT)
    opening = await ask(talks, REWORDED)
    parts: list[dict[str, Any]] = messages_of((REWORDED, opening.text, NEXT_REWORDED))
    parts[1]["content"] = [{"type": "text", "text": opening.text}]
    assert is_semantic(await talks.post(CHAT, {"model": "m", "messages": parts}))


@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
async def test_other_dialects_have_conversations_too(talks: Served, upstream: Upstream, path: str) -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await answering(text_item(f"answer {len(upstream.calls)}"))(request, body)

    upstream.answer = answer if path == RESPONSES else None

    async def turn(*turns: str) -> tuple[Answer, str]:
        if path == MESSAGES:
            answer = await talks.post(path, {"model": "m", "max_tokens": 99, "messages": messages_of(turns)})
            return answer, answer.json["content"][0]["text"]
        given: Any = turns[0] if len(turns) == 1 else messages_of(turns)
        answer = await talks.post(path, {"model": "m", "input": given, "store": False})
        return answer, answer.json["output"][0]["content"][0]["text"]

    _, first = await turn(ASKED)
    _, second = await turn(ASKED, first, NEXT)
    opening, text = await turn(REWORDED)
    assert is_semantic(opening)
    follow_up, answered = await turn(REWORDED, text, NEXT_REWORDED)
    assert is_semantic(follow_up)
    assert answered == second


async def test_a_purged_entry_ends_its_conversations(talks: Served) -> None:
    stored = await conversation(talks, ASKED, NEXT)
    opening = await ask(talks, REWORDED)
    await purge(talks, ASKED)
    assert is_miss(await ask(talks, REWORDED, opening.text, NEXT_REWORDED))
    assert (await ask(talks, ASKED, stored[1], NEXT)).cache_status.startswith("nearhit; hit"), "this one is stored yet"


async def purge(served: Served, question: str) -> None:
    entry = next(each for each in await entries_of(served) if each["question"] == question)
    body = {"fingerprint": entry["fingerprint"]}
    async with served.session.post(served.admin_url + "/admin/cache/purge", json=body) as purged:
        assert (await purged.json())["removed"] == 1


async def entries_of(served: Served) -> list[dict[str, Any]]:
    async with served.session.get(served.admin_url + "/admin/cache/entries") as response:
        found: list[dict[str, Any]] = (await response.json())["entries"]
        return found


async def test_a_conversation_goes_on_after_a_restart(upstream: Upstream, tmp_path: Path) -> None:
    config = config_for(upstream, tmp_path)
    async with gateway_of(config, LOOSE) as first:
        await conversation(first, ASKED, NEXT)
        opening = await ask(first, REWORDED)
        async with asyncio.timeout(60):
            while not any(key.endswith(":turn") for key in await first.gateway.stores.redis.links()):
                await asyncio.sleep(0)
    async with gateway_of(config, LOOSE) as second:
        await recovered(second)
        assert is_semantic(await ask(second, REWORDED, opening.text, NEXT_REWORDED))


async def test_another_gateway_goes_on_with_the_conversation(
    upstream: Upstream, outside_store: OutsideServer, tmp_path: Path
) -> None:
    configs = [
        config_for(upstream, tmp_path / name, store={"url": outside_store.url, "timeout": "10s"}) for name in ("a", "b")
    ]
    async with gateway_of(configs[0], LOOSE) as first, gateway_of(configs[1], LOOSE) as second:
        stored = await conversation(first, ASKED, NEXT)
        opening = await ask(first, REWORDED)
        await until(lambda: second.gateway.parts.space.index.size == 2 and second.gateway.parts.memory.links.has_turns)
        follow_up = await ask(second, REWORDED, opening.text, NEXT_REWORDED)
        assert is_semantic(follow_up)
        assert follow_up.text == stored[3]
        await purge(first, ASKED)
        await until(lambda: second.gateway.parts.space.index.size == 1)
        assert is_miss(await ask(second, REWORDED, opening.text, NEXT_REWORDED))


async def test_a_conversation_of_an_erased_subject_is_over_for_everybody(talks: Served) -> None:
    await conversation(talks, ASKED, NEXT, user="alice")
    opening = await ask(talks, REWORDED, user="bob")
    assert is_semantic(await ask(talks, REWORDED, opening.text, NEXT_REWORDED, user="bob"))
    async with talks.session.post(talks.admin_url + "/admin/cache/erase", json={"subject": "user:alice"}) as response:
        assert (await response.json())["report"]["counts"]["entries"] == 2
    assert is_miss(await ask(talks, REWORDED, opening.text, NEXT_REWORDED, user="bob"))
    kept = (talks.gateway.stores.redis.links(), talks.gateway.stores.redis.counterexamples())
    assert [await each for each in kept] == [[], []], "nothing names the erased entry"


async def test_explain_names_the_scope_in_which_a_request_goes_on(talks: Served) -> None:
    stored = await conversation(talks, ASKED, NEXT)
    opening = await ask(talks, REWORDED)
    first, follow_up, of_the_entry = [
        await explain(talks, *turns)
        for turns in ([REWORDED], [REWORDED, opening.text, NEXT_REWORDED], [ASKED, stored[1], NEXT])
    ]
    assert first["conversation"] is None
    assert follow_up["conversation"] == f"continues one whose answer a hit served, in the scope {of_the_entry['scope']}"


async def explain(served: Served, *turns: str) -> dict[str, Any]:
    body = {"model": "m", "messages": messages_of(turns)}
    async with served.session.post(served.admin_url + "/admin/explain", json=body) as response:
        explanation: dict[str, Any] = await response.json()
        return explanation


async def test_a_policy_may_turn_it_off(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config_for(upstream, tmp_path), OFF) as served:
        await conversation(served, ASKED, NEXT)
        opening = await ask(served, REWORDED)
        assert is_semantic(opening)
        assert is_miss(await ask(served, REWORDED, opening.text, NEXT_REWORDED))


def test_turns_are_bounded_and_go_with_their_entry_or_question() -> None:
    links = Links(max_turns=2)
    names = [hexed(f"entry {number}") for number in range(3)]
    links.add([turn_key(hexed("scope"), f"question {number}", name) for number, name in enumerate(names)])
    assert links.has_turns
    assert [links.turn(hexed("scope"), f"question {number}") for number in range(3)] == ["", names[1], names[2]]
    links.forget({names[1]}, set())
    assert links.turn(hexed("scope"), "question 1") == ""
    digest = turn_key(hexed("scope"), "question 2", names[2]).split(":")[1]
    links.forget(set(), {digest})
    assert not links.has_turns
    assert len(links) == 0, "a turn is no link"
    assert len(bytes.fromhex(digest)) > HALF
