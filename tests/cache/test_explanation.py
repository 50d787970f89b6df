"""The explanation of a judgement."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from gateway.admin.explain_pair import PairRequest, explain_pair, parse_pair, semantic_route
from gateway.cache.explanation import ExplainedPair
from gateway.cache.threshold.ledger import BANDS
from gateway.cache.threshold.route_control import Observation, RouteControl
from gateway.cache.threshold.wrong_hits import Label
from gateway.cache.threshold_verifier import ThresholdVerifier
from gateway.cache.verifiers import LearnedVerifier, load_weights
from gateway.config.policy.model import Policy, Route
from gateway.config.policy.schema import SemanticRule
from gateway.entries import Embedding, Vector
from gateway.errors import BadRequest
from gateway.outcomes import Refusal
from gateway.ports import Opinion, StoredCandidate
from tests.fixtures.entries import vector_of
from tests.fixtures.targets import one_backend

PROMISE = SemanticRule.model_validate({"ttl": "60s", "max_wrong_hits": "1%"})
PLAIN = SemanticRule.model_validate({"ttl": "60s", "min_similarity": 0.9})
# Wrong up to a score of 0.7, and right above it.
PRIOR = [(0.9 if band < 15 else 0.0, 0.002) for band in range(BANDS)]
STORED, ASKED = "where is my parcel", "where has my parcel got to"


class Placed:
    """An embedder of two places, by whether a text is the stored one."""

    fingerprint, dimension = "placed", 2

    def __init__(self, stored: Vector, asked: Vector, *, truncated: bool = False, unreadable: bool = False) -> None:
        self._stored, self._asked, self._truncated, self._unreadable = stored, asked, truncated, unreadable

    async def embed(self, text: str, owner: str = "") -> Embedding:
        return Embedding(self._stored if text == STORED else self._asked, 3, self._truncated, self._unreadable)


class Scripted:
    """A verifier of one opinion, and of one on a closer look."""

    basis, floor, prior = "scripted-1", 0.5, PRIOR

    def __init__(self, first: Opinion, second: Opinion | None = None) -> None:
        self._first, self._second = first, second

    def opinions(self, question: str, candidates: Any) -> list[Opinion]:
        return [self._first for _ in candidates]

    async def second_opinion(self, question: str, candidate: StoredCandidate, first: Opinion) -> Opinion | None:
        return self._second

    def features(self, question: str, candidate: StoredCandidate) -> dict[str, float]:
        return {"length": 3.0, "person": 0.123456}


def pair_of(
    first: Opinion,
    second: Opinion | None = None,
    *,
    rule: SemanticRule = PROMISE,
    control: RouteControl | None = None,
    embedder: Placed | None = None,
    pair: PairRequest | None = None,
) -> ExplainedPair:
    control = control or RouteControl(PRIOR, "basis")
    embedder = embedder or Placed(vector_of(1), vector_of(1))
    return asyncio.run(
        explain_pair(pair or PairRequest(STORED, ASKED), "r", rule, control, embedder, Scripted(first, second))
    )


def decision(pair: ExplainedPair) -> str:
    return pair.as_text().splitlines()[-1].removeprefix("decision").strip()


def test_a_score_that_reaches_the_threshold_is_served() -> None:
    found = pair_of(Opinion(0.9, 0.8))
    assert (found.served, found.reason, found.opinion, found.opinion_probability) == (True, None, 0.9, 0.8)
    assert decision(found) == f"served: the score 0.9000 reaches the threshold {found.threshold:.4f}"
    assert found.promise == "max_wrong_hits 1.00%"
    assert found.features == {"length": 3.0, "person": 0.123456}
    assert "length 3, person 0.123" in found.as_text()


def test_below_the_threshold_the_doubt_is_the_reason() -> None:
    found = pair_of(Opinion(0.2, 0.1, doubt=Refusal.NUMBERS))
    assert (found.served, found.reason, found.doubt) == (False, "numbers", "numbers")
    assert decision(found).startswith("not served: numbers: the score 0.2000 is below the threshold ")


def test_a_veto_stands_whatever_the_score() -> None:
    found = pair_of(Opinion(0.99, 0.9, veto=Refusal.PAYLOAD))
    assert (found.served, found.reason, found.veto, found.probability) == (False, "payload", "payload", 0.0)
    assert decision(found) == "not served: payload: a veto, whatever the score"


def test_a_loose_promise_does_not_loosen_the_threshold_of_a_part_of_a_long_prompt() -> None:
    text = "The yard is closed in winter. " * 40
    long = PairRequest(f"{text}Who cleans the lifts?", f"{text}Who repairs the lifts?")
    prior = [(1.0 - band / BANDS, 0.02) for band in range(BANDS)]
    loose = SemanticRule.model_validate({"ttl": "60s", "max_wrong_hits": "5%"})
    part, short, strict = (
        pair_of(Opinion(0.5, 0.5), rule=rule, pair=pair, control=RouteControl(prior, "basis")).threshold
        for rule, pair in ((loose, long), (loose, None), (PROMISE, long))
    )
    assert part == strict > short


def test_a_second_opinion_decides_where_it_could_get_the_answer_served() -> None:
    threshold = RouteControl(PRIOR, "basis").threshold(PROMISE.acceptance)
    low, high = Opinion(threshold - 0.1, 0.5), Opinion(threshold + 0.1, 0.5)
    open_low, open_high = (replace(each, ceiling=threshold + 0.2) for each in (low, high))
    raised, lowered = pair_of(open_low, high), pair_of(open_high, low)
    assert (raised.read_closely, raised.served, lowered.read_closely, lowered.served) == (True, True, True, False)
    assert (raised.opinion, raised.second_opinion) == (pytest.approx(low.score), pytest.approx(high.score))
    assert lowered.score == pytest.approx(low.score)
    assert f"{high.score:.4f}" in raised.as_text()


def test_without_a_second_opinion_the_first_one_decides_and_the_text_says_why() -> None:
    threshold = RouteControl(PRIOR, "basis").threshold(PROMISE.acceptance)
    absent = pair_of(Opinion(threshold + 0.1, 0.5, ceiling=threshold + 0.2))
    assert (absent.read_closely, absent.second_opinion, absent.served) == (True, None, True)
    assert "no result" in absent.as_text()
    too_low = pair_of(Opinion(threshold - 0.2, 0.5, ceiling=threshold - 0.1), Opinion(1.0, 1.0))
    assert (too_low.read_closely, too_low.second_opinion, too_low.served) == (False, None, False)
    assert "not run: it could not change the decision" in too_low.as_text()


def test_what_the_route_has_learnt_nearby_is_a_shift_of_its_own() -> None:
    control = RouteControl(PRIOR, "basis")
    for _ in range(5):
        control.learn(Observation(vector_of(1), 0.9, 0.8, Label.WRONG))
    found = pair_of(Opinion(0.9, 0.8), control=control)
    assert found.evidence_shift == pytest.approx(0.5 * -0.8 * 5 / 5.5)
    assert found.score == pytest.approx(0.9 + found.evidence_shift)
    assert "learnt from 5 labelled lookups" in found.as_text()
    assert control.labels == 5, "looking changes nothing"


def test_with_a_plain_threshold_similarity_alone_decides() -> None:
    found = pair_of(Opinion(0.1, 0.1, veto=Refusal.NUMBERS), rule=PLAIN)
    assert (found.served, found.opinion, found.veto, found.threshold) == (True, None, None, 0.9)
    assert decision(found) == "served: the similarity 1.0000 reaches the threshold 0.9000"
    apart = pair_of(Opinion(0.99, 0.9), rule=PLAIN, embedder=Placed(vector_of(1), -vector_of(1)))
    assert (apart.served, apart.reason) == (False, "similarity")


def test_what_is_too_far_to_be_read_is_not_served_whatever_the_verifier_would_say() -> None:
    found = pair_of(Opinion(0.99, 0.9), embedder=Placed(vector_of(1), -vector_of(1)))
    assert (found.served, found.reason) == (False, "similarity")
    assert "the minimum for a neighbour" in found.why


def test_what_is_longer_than_the_model_reads_is_not_looked_at() -> None:
    found = pair_of(Opinion(0.99, 0.9), embedder=Placed(vector_of(1), vector_of(1), truncated=True))
    assert (found.served, found.reason, found.features) == (False, "too-long", {})


def test_what_the_model_cannot_read_is_told_as_the_lookup_tells_it() -> None:
    found = pair_of(Opinion(0.99, 0.9), embedder=Placed(vector_of(1), vector_of(1), unreadable=True))
    assert (found.served, found.reason) == (False, "unreadable")
    assert found.why.startswith("unreadable: one of the two has words that the embedding model cannot read")


def test_the_same_words_need_no_threshold() -> None:
    found = pair_of(Opinion(0.0, 0.0, veto=Refusal.NUMBERS), pair=PairRequest(STORED, f" {STORED}  "))
    assert (found.served, found.why, found.score, found.evidence_shift) == (True, "the same words", 1.0, 0.0)


def test_of_prompts_in_one_frame_the_varying_parts_are_compared() -> None:
    frame = " ".join(["Classify the following review, written by a customer of our shop, by its tone:"] * 3)
    pair = PairRequest(f"{frame} good", f"{frame} bad")
    embedder = Placed(vector_of(1), vector_of(1))
    assert pair_of(Opinion(0.99, 0.9), pair=pair, embedder=embedder).framed
    empty = pair_of(Opinion(0.99, 0.9), pair=replace(pair, stored=frame), embedder=embedder)
    assert (empty.framed, empty.served, empty.veto) == (True, False, "template")


def test_json_comes_back_as_it_went() -> None:
    found = pair_of(Opinion(0.2, 0.1, doubt=Refusal.NUMBERS))
    value = json.loads(json.dumps(found.as_json()))
    assert ExplainedPair.from_json(value | {"of a later version": 1}) == found
    for broken in ({}, {**value, "score": "high"}, {**value, "features": [1]}):
        with pytest.raises(ValueError, match=r"."):
            ExplainedPair.from_json(broken)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"{", "the body is not valid JSON"),
        (b"[]", "the body is no JSON object"),
        (b'{"stored": "secret"}', "'asked' is missing, empty or no text"),
        (b'{"stored": "  ", "asked": "secret"}', "'stored' is missing, empty or no text"),
        (b'{"stored": "secret", "asked": 1}', "'asked' is missing, empty or no text"),
        (b'{"stored": "secret", "asked": "a", "route": 1}', "'route' is no text"),
        (b'{"stored": "secret", "asked": "a", "rout": "x"}', "unknown key 'rout'"),
    ],
)
def test_a_body_that_is_no_pair_is_one_sentence_without_the_prompts(body: bytes, sentence: str) -> None:
    with pytest.raises(BadRequest) as error:
        parse_pair(body)
    assert error.value.message.startswith(sentence)
    assert 'expected {"stored"' in error.value.message
    assert "secret" not in error.value.message


def test_a_route_that_is_not_there_or_has_no_semantic_cache_is_named() -> None:
    policy = Policy((Route("faq", one_backend("b")), Route("default", one_backend("b"), semantic=PROMISE)), "hash")
    assert semantic_route(policy, None) == semantic_route(policy, "default") == (policy.routes[1], PROMISE)
    with pytest.raises(BadRequest, match="no route is called 'fax': expected faq, default"):
        semantic_route(policy, "fax")
    with pytest.raises(BadRequest, match="the semantic cache of route 'faq' is off"):
        semantic_route(policy, "faq")


def test_verifiers_name_what_sets_two_prompts_apart_and_nothing_else() -> None:
    checks, learned = ThresholdVerifier(), LearnedVerifier(load_weights())
    asked, stored = "Who did not win in 2014?", StoredCandidate("Who won in 2018?", 0.9)
    assert checks.features(asked, stored) == {"numbers": 1.0, "negation": 1.0}
    said = learned.features(asked, stored)
    assert (said["numbers_swapped"], said["negation"]) == (1.0, 1.0)
    assert "units_swapped" not in said
    for verifier in (checks, learned):
        assert verifier.features(asked, StoredCandidate(asked, 1.0)) == {}
        assert verifier.features("", StoredCandidate("", 1.0)) == {}
