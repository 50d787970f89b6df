"""A pair that was compared once: links serve it again, decoys keep what is like it away."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.cache.decoys import MARGIN, MAX_PER_ENTRY, NEAR, Decoys
from gateway.cache.links import MAX_PER_QUESTION, Links, link_of
from gateway.entries import Vector
from gateway.observability.access_log import AccessLog
from tests.cache.test_audits import ASKED, HIT, MISS, OTHER, STORED, answering, config, other, policy, same, two_misses
from tests.fixtures.clock import FakeClock
from tests.fixtures.entries import hexed
from tests.fixtures.gateways import Served, gateway_of, recovered
from tests.fixtures.stores import OutsideServer
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

PROMISE = policy(accept="max_wrong_hits: 0.1%", more="")
Start = Callable[..., Any]
SCOPE, ENTRY = hexed("scope"), hexed("entry")


@pytest.fixture
def start(upstream: Upstream, tmp_path: Path) -> Start:
    def start(text: str = PROMISE, **more: Any) -> Any:
        return gateway_of(config(tmp_path, upstream), text, **more)

    return start


@pytest.fixture
async def promising(start: Start, upstream: Upstream) -> AsyncIterator[Served]:
    upstream.answer = answering(same)
    async with start() as served:
        yield served


async def linked(served: Served, headers: dict[str, str] | None = None) -> None:
    """Miss with both questions, and let the entry of the second one go."""
    for question in (STORED, ASKED):
        assert (await served.chat(question, headers=headers)).cache_status == MISS
    await compared(served)
    await let_go(served, ASKED)


async def compared(served: Served) -> None:
    """Wait until the second miss is compared with the first."""
    parts = served.gateway.parts
    await until(lambda: bool(parts.telemetry.labels.values) and parts.space.comparisons.idle)


async def let_go(served: Served, question: str) -> None:
    """Evict the entries of a question."""
    parts = served.gateway.parts
    names = await fingerprints_of(served, question)
    assert names
    await parts.spaces.forget(names)
    await parts.store.delete(names)


async def fingerprints_of(served: Served, question: str) -> list[str]:
    parts = served.gateway.parts
    names = await parts.space.index.fingerprints()
    entries = [await parts.store.get(name) for name in names]
    return [entry.fingerprint for entry in entries if entry is not None and entry.question == question]


def link_hits(served: Served) -> float:
    return sum(served.gateway.parts.telemetry.link_hits.values.values())


# Links


async def test_a_question_whose_answer_was_equal_is_served_from_the_older_entry(
    promising: Served, upstream: Upstream
) -> None:
    await linked(promising)
    answer = await promising.chat(ASKED)
    assert (answer.cache_status, answer.text) == (HIT, same(""))
    assert (len(upstream.chats), link_hits(promising)) == (2, 1)


async def test_without_equal_answers_there_is_no_link(promising: Served, upstream: Upstream) -> None:
    upstream.answer = answering(other)
    await linked(promising)
    assert (await promising.chat(ASKED)).cache_status == MISS
    assert link_hits(promising) == 0


async def test_the_older_question_is_served_from_the_younger_entry(promising: Served) -> None:
    await two_misses(promising)
    await compared(promising)
    await let_go(promising, STORED)
    assert (await promising.chat(STORED)).cache_status == HIT


async def test_spaces_without_a_meaning_do_not_break_a_link(promising: Served) -> None:
    await linked(promising)
    assert (await promising.chat(f"  {ASKED.replace(' ', '  ')} ")).cache_status == HIT


async def test_a_question_with_an_answer_of_its_own_keeps_it(start: Start, upstream: Upstream) -> None:
    upstream.answer = answering(same)
    async with start(policy(accept="max_wrong_hits: 0.1%", more="", exact="off")) as served:
        await two_misses(served)
        await compared(served)
        assert (await served.chat(ASKED)).cache_status == HIT
        assert link_hits(served) == 0, "it is verbatim"


async def test_the_log_says_that_a_link_decided(start: Start, upstream: Upstream) -> None:
    upstream.answer, lines = answering(same), io.StringIO()
    log = AccessLog(lines)
    async with start(access_log=log) as served:
        await linked(served)
        await served.chat(ASKED)
    log.flush()
    line = [json.loads(line) for line in lines.getvalue().splitlines()][-1]
    assert (line["verdict"], line["reason"]) == ("semantic", "link")
    assert 0.5 < line["similarity"] < 1


async def test_no_cache_asks_again(promising: Served) -> None:
    await linked(promising)
    assert (await promising.chat(ASKED, headers={"Cache-Control": "no-cache"})).cache_status.startswith("nearhit; fwd=")
    assert link_hits(promising) == 0


async def test_a_client_that_wants_a_younger_answer_gets_one(promising: Served) -> None:
    await linked(promising)
    assert (await promising.chat(ASKED, headers={"Cache-Control": "max-age=0"})).cache_status == MISS


async def test_a_link_ends_with_the_time_of_its_entry(start: Start, upstream: Upstream) -> None:
    upstream.answer, clock = answering(same), FakeClock()
    async with start(clock=clock) as served:
        await linked(served)
        clock.advance(3601)
        assert (await served.chat(ASKED)).cache_status == MISS
        assert link_hits(served) == 0


async def test_a_link_is_followed_again_when_its_entry_has_come_again(start: Start, upstream: Upstream) -> None:
    upstream.answer, clock = answering(same), FakeClock()
    async with start(clock=clock) as served:
        await two_misses(served)
        await compared(served)
        clock.advance(3601)
        assert (await served.chat(STORED)).cache_status == MISS
        assert (await served.chat(ASKED)).cache_status == HIT
        assert len(upstream.chats) == 3


async def test_what_was_purged_is_not_served_by_a_link(promising: Served) -> None:
    await linked(promising)
    purged = await promising.session.post(f"{promising.admin_url}/admin/cache/purge", json={"tenant": "anonymous"})
    assert purged.status == 200, await purged.text()
    assert (await promising.chat(ASKED)).cache_status == MISS
    assert link_hits(promising) == 0


async def test_a_link_of_one_tenant_is_none_of_another(promising: Served) -> None:
    mine, another = {"Authorization": "Bearer mine"}, {"Authorization": "Bearer other"}
    await linked(promising, mine)
    await promising.chat(STORED, headers=another)
    assert (await promising.chat(ASKED, headers=another)).cache_status == MISS
    assert (await promising.chat(ASKED, headers=mine)).cache_status == HIT


async def test_a_link_that_a_client_calls_wrong_is_not_followed_again(promising: Served) -> None:
    await linked(promising)
    hit = await promising.chat(ASKED)
    said = {"request_id": hit.headers["x-request-id"], "verdict": "wrong"}
    learned = promising.gateway.parts.space.controls.of("default").labels
    assert (await promising.post("/v1/feedback", said)).status == 200
    assert (await promising.chat(ASKED)).cache_status == MISS
    assert promising.gateway.parts.space.controls.of("default").labels == learned, "it had no score to learn from"


async def test_a_link_that_is_wrong_is_wrong_for_any_spaces(promising: Served) -> None:
    await linked(promising)
    hit = await promising.chat(f" {ASKED} ")
    said = {"request_id": hit.headers["x-request-id"], "verdict": "wrong"}
    assert (await promising.post("/v1/feedback", said)).status == 200
    assert (await promising.chat(f"{ASKED}  ")).cache_status == MISS
    assert link_hits(promising) == 1


async def test_hits_by_links_are_audited(start: Start, upstream: Upstream) -> None:
    upstream.answer = answering(same)
    async with start(policy(accept="max_wrong_hits: 0.1%")) as served:
        await linked(served)
        upstream.answer = answering(other)
        assert (await served.chat(ASKED)).cache_status == HIT
        await until(lambda: len(served.gateway.parts.space.audits) == 0)
        await let_go(served, ASKED)
        assert (await served.chat(ASKED)).cache_status == MISS, "the audit found it wrong"


async def test_a_link_outlives_the_gateway(start: Start, upstream: Upstream) -> None:
    upstream.answer = answering(same)
    async with start() as served:
        await linked(served)
    async with start() as served:
        await recovered(served)
        assert (await served.chat(ASKED)).cache_status == HIT


def test_links_are_bounded_and_drop_the_least_recently_used() -> None:
    links = Links(2)
    links.add(link_of(SCOPE, question, ENTRY, 0.9).key() for question in "ab")
    assert links.find(SCOPE, "a")
    links.add([link_of(SCOPE, "c", ENTRY, 0.9).key()])
    assert [len(links.find(SCOPE, question)) for question in "abc"] == [1, 0, 1]


def test_a_question_has_the_latest_links_and_each_once() -> None:
    links, entries = Links(), [hexed(f"{number}") for number in range(MAX_PER_QUESTION + 1)]
    links.add(link_of(SCOPE, "a", entry, 0.9).key() for entry in [*entries, entries[2]])
    assert [link.fingerprint for link in links.find(SCOPE, "a")] == [entries[2], *reversed(entries[3:]), entries[1]]
    assert len(links) == 1


def test_a_link_is_read_as_it_was_written_and_another_version_s_is_left_out() -> None:
    links, link = Links(), link_of(SCOPE, "a", ENTRY, 0.8125)
    links.add(["", "x:y:z:1", f"{SCOPE}:{SCOPE}:{ENTRY}", f"{link.key()}:more", f"{SCOPE}:{SCOPE}:{ENTRY}:high"])
    assert len(links) == 0
    links.add([link.key()])
    assert links.find(SCOPE, "a") == [link]
    assert links.find(hexed("another"), "a") == []
    assert links.entries_of("a") == [ENTRY]


# Decoys


def vector_at(cosine: float, of: int = 0, dimension: int = 8) -> Vector:
    """Return a unit vector at this cosine to the axis `of`, in the plane of that axis and the next."""
    vector = np.zeros(dimension, np.float32)
    vector[of], vector[of + 1] = cosine, np.sqrt(1 - cosine**2)
    return vector


def test_a_decoy_repels_what_is_nearer_to_it_than_to_the_entry() -> None:
    decoys, near = Decoys(), NEAR + 0.02
    decoys.add(ENTRY, vector_at(1.0))
    assert decoys.repel(ENTRY, vector_at(near), near - 2 * MARGIN)
    assert not decoys.repel(ENTRY, vector_at(near), near), "as near to the entry's own question"
    assert not decoys.repel(ENTRY, vector_at(NEAR - 0.02), 0.5), "unlike the decoy"
    assert not decoys.repel(hexed("another entry"), vector_at(near), 0.5)


def test_decoys_are_bounded_for_each_entry_and_in_all() -> None:
    decoys = Decoys(limit=20)
    for axis in range(MAX_PER_ENTRY + 2):
        decoys.add(ENTRY, vector_at(1.0, axis, 16))
    assert len(decoys) == MAX_PER_ENTRY
    assert not decoys.repel(ENTRY, vector_at(1.0, 0, 16), 0.5), "the oldest is dropped"
    assert decoys.repel(ENTRY, vector_at(1.0, MAX_PER_ENTRY + 1, 16), 0.5)
    for number in range(40):
        decoys.add(hexed(f"{number}"), vector_at(1.0))
    assert len(decoys) == 20
    assert decoys.entries_near(vector_at(1.0))[-1] == hexed("39")


def test_one_question_is_one_decoy() -> None:
    decoys = Decoys()
    for _ in range(3):
        decoys.add(ENTRY, vector_at(1.0))
    assert len(decoys) == 1


def test_decoys_go_with_their_entry() -> None:
    decoys = Decoys()
    decoys.add(ENTRY, vector_at(1.0))
    decoys.forget([ENTRY, hexed("another entry")])
    assert (len(decoys), decoys.repel(ENTRY, vector_at(1.0), 0.5)) == (0, False)


def test_a_decoy_of_another_embedding_model_is_not_taken_over() -> None:
    published: list[tuple[str, str, bytes]] = []
    decoys = Decoys("one", lambda *words: published.append(words))
    decoys.add(ENTRY, vector_at(1.0))
    same_model, another = Decoys("one"), Decoys("two")
    for each in (same_model, another):
        each.apply_event(*published[0])
    assert (len(same_model), len(another)) == (1, 0)
    assert same_model.repel(ENTRY, vector_at(1.0), 0.5)


# The words of the hash embedder count alike, so one word of ten moves a question by .1.
ENTRY_QUESTION = "alpha beta gamma delta epsilon zeta eta theta iota kappa"
WRONG_FOR = "alpha beta gamma delta epsilon zeta eta theta lambda mu"
LIKE_IT = "alpha beta gamma delta epsilon zeta eta theta lambda mu nu"


async def refuted(served: Served, headers: dict[str, str] | None = None) -> None:
    await served.chat(ENTRY_QUESTION, headers=headers)
    hit = await served.chat(WRONG_FOR, headers=headers)
    assert hit.cache_status == HIT
    said = {"request_id": hit.headers["x-request-id"], "verdict": "wrong"}
    assert (await served.post("/v1/feedback", said, headers)).status == 200


@pytest.fixture
async def plain(start: Start) -> AsyncIterator[Served]:
    async with start(policy(more="")) as served:
        yield served


async def test_an_entry_that_was_wrong_for_a_question_is_not_served_for_its_like(plain: Served) -> None:
    await refuted(plain)
    answer = await plain.chat(LIKE_IT)
    assert answer.cache_status == MISS
    refusals = plain.gateway.parts.telemetry.refusals.values
    assert refusals["default", "decoy"] == 1


async def test_the_entry_still_answers_what_is_like_its_own_question(plain: Served) -> None:
    await refuted(plain)
    assert (await plain.chat(f"{ENTRY_QUESTION} nu")).cache_status == HIT
    assert (await plain.chat(ENTRY_QUESTION, temperature=0.5)).status == 200


async def test_a_decoy_of_one_tenant_is_none_of_another(plain: Served) -> None:
    mine, another = {"Authorization": "Bearer mine"}, {"Authorization": "Bearer other"}
    await refuted(plain, mine)
    await plain.chat(ENTRY_QUESTION, headers=another)
    assert (await plain.chat(LIKE_IT, headers=another)).cache_status == HIT
    assert (await plain.chat(LIKE_IT, headers=mine)).cache_status == MISS


async def test_a_purge_takes_the_decoys_with_the_entries(plain: Served) -> None:
    await refuted(plain)
    assert len(plain.gateway.parts.space.decoys) == 1
    purged = await plain.session.post(f"{plain.admin_url}/admin/cache/purge", json={"tenant": "anonymous"})
    assert purged.status == 200
    assert len(plain.gateway.parts.space.decoys) == 0


async def test_gateways_on_one_store_share_links_and_decoys(
    upstream: Upstream, tmp_path: Path, outside_store: OutsideServer
) -> None:
    upstream.answer = answering(same)

    def on(name: str, text: str) -> Any:
        return gateway_of(config(tmp_path / name, upstream, store={"url": outside_store.url, "timeout": "10s"}), text)

    async with on("one", PROMISE) as one, on("two", PROMISE) as two:
        for served in (one, two):
            await recovered(served)
        await linked(one)
        memory, decoys = two.gateway.parts.memory, two.gateway.parts.space.decoys
        await one.chat(OTHER)  # the last change: what came before it is known then
        index, (last,) = two.gateway.parts.space.index, await fingerprints_of(one, OTHER)
        await until(lambda: len(memory.links) == 2 and index.holds(last) and index.size == 2)
        assert (await two.chat(ASKED)).cache_status == HIT
        await until(lambda: two.gateway.parts.fleet.is_following)
        one.gateway.parts.space.decoys.add(ENTRY, np.ones(384, np.float32))
        await until(lambda: len(decoys) == 1)
