"""A semantic hit for which nothing has to be waited for begins no flight, and is the same hit in all else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.adapters.faiss_index import FaissIndex
from gateway.flights.flight import Flight
from gateway.messages import Neighbour, Refusal, Vector
from gateway.stages import coalesce
from tests.fixtures.gateways import Answer, Served, aboard, at_rest, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

POLICY = """
version: 1
routes:
  - name: promising
    match: {model: promising}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, max_wrong_hits: 50%}}
    route: {backend: main}
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.7}}
    route: {backend: main}
"""
ASKED, SAME = "how do I reset the password of my account", "HOW do I reset the password of my account"
OTHER = "why is the sky blue in summer"
HIT, MISS = "nearhit; hit; detail=semantic", "nearhit; fwd=miss; stored"


@pytest.fixture
async def served(tmp_path: Path, upstream: Upstream) -> AsyncIterator[Served]:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, POLICY) as served:
        await at_rest(served)  # else the index may be in use, and is not at hand
        yield served


@pytest.fixture
def flights(monkeypatch: pytest.MonkeyPatch) -> list[Flight]:
    begun: list[Flight] = []

    def counted(*given: Any) -> Flight:
        begun.append(Flight(*given))
        return begun[-1]

    monkeypatch.setattr(coalesce, "Flight", counted)
    return begun


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which of the index' two ways were taken."""
    ways: list[str] = []
    at_hand, search = FaissIndex.at_hand, FaissIndex.search

    def looked(self: FaissIndex, scope: str, vector: Vector) -> list[Neighbour] | None:
        ways.append("at hand")
        return at_hand(self, scope, vector)

    async def searched(self: FaissIndex, scope: str, vector: Vector, k: int) -> list[Neighbour]:
        ways.append("search")
        return await search(self, scope, vector, k)

    monkeypatch.setattr(FaissIndex, "at_hand", looked)
    monkeypatch.setattr(FaissIndex, "search", searched)
    return ways


def told(answer: Answer) -> dict[str, str]:
    """The headers that say what became of a request, without what differs each time."""
    timed = [step.partition(";dur=")[0] for step in answer.headers["Server-Timing"].split(", ")]
    names = ("Content-Type", "Cache-Status", "x-nearhit-similarity", "x-nearhit-route")
    return {name: answer.headers[name] for name in names} | {"steps": ", ".join(timed)}


async def test_a_hit_from_memory_begins_no_flight_and_is_told_like_any_other(
    served: Served, upstream: Upstream, flights: list[Flight], searches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await served.chat(ASKED)).cache_status == MISS
    flights.clear()
    searches.clear()
    hit = await served.chat(SAME)
    assert (hit.cache_status, flights, searches) == (HIT, [], ["at hand"])
    monkeypatch.setattr(FaissIndex, "at_hand", lambda *_: None)
    other_way = await served.chat("HOW DO I reset the password of my account")
    assert (len(flights), searches) == (1, ["at hand", "search"])
    assert told(hit) == told(other_way)
    assert told(hit)["steps"] == 'exact, embed, search, verify;desc="p=1.000"'
    assert hit.body == other_way.body
    assert len(upstream.calls) == 1
    control = served.gateway.parts.space.controls.of("default")
    assert control.served == pytest.approx(2, abs=0.01)
    answer = await served.post("/v1/feedback", {"request_id": hit.headers["x-request-id"], "verdict": "wrong"})
    assert answer.json["stored"] is True
    assert (await served.chat(SAME)).cache_status == MISS  # a counterexample


async def test_a_record_that_left_memory_is_read_from_the_store_on_the_other_way(
    served: Served, upstream: Upstream, flights: list[Flight]
) -> None:
    await served.chat(ASKED)
    parts = served.gateway.parts
    (name,) = await parts.space.index.fingerprints()
    parts.store.forget(name)
    flights.clear()
    assert (await served.chat(SAME)).cache_status == HIT
    assert len(flights) == 1
    assert len(upstream.calls) == 1


async def test_where_nothing_is_near_the_index_is_asked_once_and_the_refusal_counted_once(
    served: Served, upstream: Upstream, searches: list[str]
) -> None:
    await served.chat(ASKED)
    searches.clear()
    assert (await served.chat(OTHER)).cache_status == MISS
    assert searches == ["at hand"]
    refusals = served.gateway.parts.telemetry.refusals.values
    assert refusals == {("default", Refusal.SIMILARITY): 1.0}
    assert len(upstream.calls) == 2


async def test_where_a_verifier_has_to_be_asked_there_is_a_flight(
    served: Served, upstream: Upstream, flights: list[Flight]
) -> None:
    await served.chat(ASKED, model="promising")
    flights.clear()
    assert (await served.chat(SAME, model="promising")).cache_status == HIT
    assert len(flights) == 1


async def test_a_crowd_that_asks_what_nobody_has_answered_makes_one_call(
    served: Served, upstream: Upstream, flights: list[Flight]
) -> None:
    await served.chat(ASKED)
    flights.clear()
    upstream.gate.clear()
    asked = [asyncio.create_task(served.chat(OTHER)) for _ in range(20)]
    await until(lambda: aboard(served) == 20)
    upstream.gate.set()
    answers = await asyncio.gather(*asked)
    assert {answer.text for answer in answers} == {f"upstream answers: {OTHER}"}
    assert len(flights) == 1
    assert len(upstream.calls) == 2


async def test_what_was_removed_or_has_expired_is_not_served_from_memory(served: Served, upstream: Upstream) -> None:
    await served.chat(ASKED)
    aged = await served.chat(SAME, headers={"Cache-Control": "max-age=0"})
    assert aged.cache_status == MISS
    assert (await served.chat(SAME.replace("do", "DO"))).cache_status == HIT
    async with served.session.post(served.admin_url + "/admin/cache/purge", json={"all": True}) as purged:
        assert purged.status == 200
    assert (await served.chat(SAME.replace("my", "MY"))).cache_status == MISS
    assert len(upstream.calls) == 3
