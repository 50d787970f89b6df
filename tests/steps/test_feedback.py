"""POST /v1/feedback: what was wrong is not served for that question again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cache.feedback import Counterexamples, ServedHit, ServedHits, relation_of
from tests.fixtures.entries import judged_of
from tests.fixtures.gateways import LOOSE, Answer, config_of, gateway_of, recovered
from tests.fixtures.gateways import Served as Running
from tests.fixtures.upstream import Upstream

HIT = judged_of()
STORED, ASKED = "alpha beta gamma delta epsilon", "alpha beta gamma delta zeta"


def config(folder: Path, upstream: Upstream) -> Any:
    return config_of(folder, {"main": {"adapter": "openai", "url": upstream.url}})


@pytest.fixture
async def loose(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Running]:
    """A threshold at which the two questions meet."""
    async with gateway_of(config(tmp_path, upstream), LOOSE) as served:
        yield served


async def semantic_hit(served: Running, headers: dict[str, str] | None = None) -> Answer:
    await served.chat(STORED, headers=headers)
    answer = await served.chat(ASKED, headers=headers)
    assert answer.cache_status == "nearhit; hit; detail=semantic"
    return answer


async def say(served: Running, verdict: object, request_id: object, headers: dict[str, str] | None = None) -> Answer:
    return await served.post("/v1/feedback", {"request_id": request_id, "verdict": verdict}, headers)


async def test_what_was_wrong_is_not_served_for_that_question_again(loose: Running, upstream: Upstream) -> None:
    hit = await semantic_hit(loose)
    said = await say(loose, "wrong", hit.headers["x-request-id"])
    assert said.status == 200
    assert said.json == {
        "request_id": hit.headers["x-request-id"],
        "verdict": "wrong",
        "route": "default",
        "stored": True,
    }
    again = await loose.chat(ASKED)
    assert again.cache_status == "nearhit; fwd=miss; stored"
    assert again.text == f"upstream answers: {ASKED}"
    assert len(upstream.chats) == 2


async def test_other_questions_are_still_answered_by_the_same_entry(loose: Running) -> None:
    hit = await semantic_hit(loose)
    await say(loose, "wrong", hit.headers["x-request-id"])
    assert (await loose.chat("alpha beta gamma delta eta")).cache_status == "nearhit; hit; detail=semantic"


async def test_what_was_right_goes_on_being_served(loose: Running) -> None:
    hit = await semantic_hit(loose)
    assert (await say(loose, "right", hit.headers["x-request-id"])).status == 200
    assert (await loose.chat(ASKED)).cache_status == "nearhit; hit; detail=semantic"


async def test_a_counterexample_outlives_the_gateway(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config(tmp_path, upstream), LOOSE) as served:
        hit = await semantic_hit(served)
        await say(served, "wrong", hit.headers["x-request-id"])
    async with gateway_of(config(tmp_path, upstream), LOOSE) as served:
        await recovered(served)
        assert (await served.chat(ASKED)).cache_status == "nearhit; fwd=miss; stored"


async def test_a_tenant_speaks_of_its_own_answers_alone(loose: Running) -> None:
    mine, other = {"Authorization": "Bearer mine"}, {"Authorization": "Bearer other"}
    hit = await semantic_hit(loose, mine)
    assert (await say(loose, "wrong", hit.headers["x-request-id"], other)).status == 404
    assert (await loose.chat(ASKED, headers=mine)).cache_status == "nearhit; hit; detail=semantic"


@pytest.mark.parametrize(
    ("verdict", "request_id", "sentence"),
    [
        ("bad", "r", "'verdict': expected 'wrong' or 'right'"),
        (None, "r", "'verdict' is null: expected 'wrong' or 'right'"),
        ("wrong", 7, "'request_id' is 7: expected the x-request-id of an answer"),
        ("wrong", "", "'request_id' is an empty string"),
    ],
)
async def test_feedback_of_another_form_is_refused(
    loose: Running, upstream: Upstream, verdict: object, request_id: object, sentence: str
) -> None:
    refused = await say(loose, verdict, request_id)
    assert refused.status == 400
    assert sentence in refused.json["error"]["message"]
    assert upstream.calls == []


async def test_an_answer_that_is_not_remembered_is_404(loose: Running) -> None:
    missing = await say(loose, "wrong", "never-heard-of")
    assert missing.status == 404
    assert "expected the x-request-id of a recent answer" in missing.json["error"]["message"]


async def test_feedback_is_counted_by_route_and_verdict(loose: Running) -> None:
    hit = await semantic_hit(loose)
    await say(loose, "right", hit.headers["x-request-id"])
    async with loose.session.get(loose.admin_url + "/metrics") as response:
        assert 'nearhit_feedback_total{route="default",verdict="right"} 1.0' in await response.text()


@given(st.lists(st.tuples(st.sampled_from("ab"), st.text(max_size=3)), max_size=60), st.integers(1, 8))
def test_served_hits_are_bounded_and_keep_the_latest(given_: list[tuple[str, str]], limit: int) -> None:
    hits = ServedHits(limit)
    for tenant, request_id in given_:
        hits.add(tenant, request_id, ServedHit("r", HIT))
    for tenant, request_id in list(dict.fromkeys(reversed(given_)))[:1]:
        assert hits.get(tenant, request_id) is not None
    assert sum(hits.get(*each) is not None for each in set(given_)) <= limit


def test_counterexamples_are_bounded_and_forget_the_oldest() -> None:
    known = Counterexamples(limit=2)
    relations = [relation_of("scope", question, "entry") for question in ("one", "two", "three")]
    known.add(relation.key() for relation in relations)
    assert [relation in known for relation in relations] == [False, True, True]
