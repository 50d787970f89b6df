"""The judgement of the candidates that a lookup found."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gateway.cache.feedback import Counterexamples
from gateway.cache.judgement import (
    CandidateScorer,
    CandidateScores,
    best_index,
    differs_unseen,
    evaluate,
    is_verbatim,
)
from gateway.cache.load_level import MAX_SECOND_OPINIONS
from gateway.cache.threshold.ledger import BANDS
from gateway.cache.threshold.route_control import Observation, RouteControl
from gateway.cache.threshold.wrong_hits import Label
from gateway.entries import Embedding
from gateway.outcomes import Refusal
from gateway.ports import VERBATIM, Acceptance, EvaluatedCandidate, Opinion, StoredCandidate
from tests.fixtures.entries import entry_of, judged_of, vector_of

# Wrong up to a score of 0.7, and right above it.
CONTROL = RouteControl([(0.9 if band < 15 else 0.0, 0.002) for band in range(BANDS)], "basis")
PROMISE, PLAIN = Acceptance(max_wrong_hits=0.01), Acceptance(min_similarity=0.9)


def of(opinion: Opinion, acceptance: Acceptance, similarity: float = 0.95) -> EvaluatedCandidate:
    control = CONTROL if acceptance is PROMISE else None
    threshold = CONTROL.threshold(acceptance)
    return EvaluatedCandidate(similarity, opinion, threshold, *evaluate(similarity, opinion, threshold, control))


def test_below_the_threshold_the_doubt_is_the_reason() -> None:
    assert of(Opinion(0.5, 0.5, doubt=Refusal.NUMBERS), PROMISE).reason is Refusal.NUMBERS
    assert of(Opinion(0.5, 0.5), PROMISE).reason is Refusal.SIMILARITY


def test_a_veto_stands_whatever_the_score() -> None:
    found = of(Opinion(5.0, 1.0, veto=Refusal.PAYLOAD), PROMISE)
    assert (found.reason, found.probability) == (Refusal.PAYLOAD, 0.0)


def test_the_same_words_need_no_threshold() -> None:
    found = of(VERBATIM, PROMISE)
    assert (found.reason, found.verbatim, found.final) == (None, True, True)


def test_a_plain_threshold_holds_the_similarity_and_heeds_counterexamples() -> None:
    assert of(Opinion(0.0, 0.0), PLAIN, 0.9).reason is None
    assert of(Opinion(0.0, 0.0), PLAIN, 0.89).reason is Refusal.SIMILARITY
    assert of(Opinion(0.0, 0.0, veto=Refusal.COUNTEREXAMPLE), PLAIN).reason is Refusal.COUNTEREXAMPLE


def test_the_best_is_verbatim_then_without_a_veto_then_by_score() -> None:
    vetoed = judged_of(opinion=Opinion(0.99, 0.9, veto=Refusal.PAYLOAD), score=0.99)
    low, high = judged_of(score=0.7), judged_of(score=0.8)
    same = judged_of(opinion=VERBATIM, score=0.1)
    assert best_index([vetoed, low, high, high]) == 2
    assert best_index([vetoed, low, same]) == 2
    assert best_index([vetoed]) == 0


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("how  are you", " how are\tyou ", True),
        ("how are you", "How are you", False),
        ("if x:\n    y()", "if x:\n  y()", False),
        ("if x:\n    y()  ", "if x:  \n    y()\n", True),
        ("", " ", True),
    ],
)
def test_spaces_do_not_matter_except_in_lines_of_code(a: str, b: str, same: bool) -> None:
    assert is_verbatim(a, b) is same is is_verbatim(b, a)


class Reader:
    """A verifier that says for each stored question what it is told to say, and remembers which ones it has read."""

    basis, floor, prior = "reader-1", 0.5, [(0.5, 0.002)] * BANDS

    def __init__(self, first: dict[str, Opinion], second: dict[str, Opinion | None]) -> None:
        self._first, self._second = first, second
        self.read: list[str] = []

    def opinions(self, question: str, candidates: Sequence[StoredCandidate]) -> list[Opinion]:
        return [self._first[each.question] for each in candidates]

    async def second_opinion(self, question: str, candidate: StoredCandidate, first: Opinion) -> Opinion | None:
        self.read.append(candidate.question)
        return self._second.get(candidate.question)

    def features(self, question: str, candidate: StoredCandidate) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass


class Parts:
    """An embedder to which all texts are alike."""

    fingerprint, dimension = "parts", 16

    async def embed(self, text: str, owner: str = "") -> Embedding:
        return self.embed_nowait(text, owner)

    def embed_nowait(self, text: str, owner: str = "") -> Embedding:
        return Embedding(vector_of(1), 3, False)


async def scores_of(
    first: dict[str, Opinion],
    second: dict[str, Opinion | None],
    *,
    asked: str = "asked",
    control: RouteControl | None = None,
) -> tuple[CandidateScores, list[str]]:
    """Judge the stored questions, the most similar first; return the scores and which ones were read closely."""
    verifier = Reader(first, second)
    scorer = CandidateScorer(verifier, Parts(), PROMISE, Counterexamples())
    near = [(entry_of(name, question=name), 0.95) for name in list(first) if name != "good"]
    scores = scorer.of(asked, "", Embedding(vector_of(1), 3, False), near, control or CONTROL, 0)
    if scorer.needs_second_opinion(scores):
        await scorer.apply_second_opinion(scores)
    return scores, verifier.read


LEAST = CONTROL.threshold(PROMISE)


def open_at(score: float, ceiling: float, **fields: Refusal) -> Opinion:
    """A first opinion that a second one may correct, relative to the threshold."""
    return Opinion(LEAST + score, 0.5, ceiling=LEAST + ceiling, **fields)


def final_at(score: float) -> Opinion:
    return Opinion(LEAST + score, 0.5)


async def test_the_best_two_that_could_be_served_are_read_and_the_best_of_them_is_chosen() -> None:
    first = {"a": open_at(-0.2, 0.1), "b": open_at(-0.1, 0.1), "c": open_at(-0.3, 0.1)}
    scores, read = await scores_of(first, {"a": final_at(0.08), "b": final_at(-0.4)})
    assert read == ["b", "a"]
    assert len(read) == MAX_SECOND_OPINIONS
    assert (scores.chosen.entry.question, scores.chosen.reason, scores.chosen.final) == ("a", None, True)
    assert scores.second == final_at(0.08)


async def test_a_candidate_that_was_not_read_is_not_chosen_however_good_its_first_opinion() -> None:
    first = {"a": open_at(0.3, 0.4), "b": open_at(0.2, 0.4), "c": open_at(0.1, 0.4)}
    scores, read = await scores_of(first, {"a": final_at(-0.3), "b": final_at(-0.2)})
    assert read == ["a", "b"]
    assert scores.chosen.entry.question == "b"
    assert scores.chosen.reason is Refusal.SIMILARITY


async def test_what_no_second_opinion_could_get_served_is_not_read_and_is_not_final() -> None:
    scores, read = await scores_of({"a": open_at(-0.2, -0.01)}, {"a": final_at(0.2)})
    assert read == []
    assert (scores.chosen.reason, scores.chosen.final) == (Refusal.SIMILARITY, False)


def bounded_at(least: float, estimate: float, most: float) -> Opinion:
    """A first opinion, with what the second one can say of it, relative to the threshold."""
    return Opinion(LEAST, 0.5, ceiling=LEAST + most, least=LEAST + least, estimate=final_at(estimate))


async def test_a_candidate_that_no_logit_could_get_served_is_refused_unread_and_teaches_by_its_typical_score() -> None:
    scores, read = await scores_of({"a": bounded_at(-0.5, -0.2, -0.01)}, {"a": final_at(0.2)})
    assert read == []
    assert (scores.chosen.reason, scores.chosen.final) == (Refusal.SIMILARITY, True)
    assert scores.chosen.score == pytest.approx(LEAST - 0.2)


async def test_a_candidate_that_every_logit_gets_served_is_served_unread_before_others_are_read() -> None:
    first = {"a": bounded_at(-0.2, 0.1, 0.4), "b": bounded_at(0.0, 0.1, 0.2), "c": bounded_at(0.01, 0.15, 0.2)}
    scores, read = await scores_of(first, {"a": final_at(0.3)})
    assert read == []
    assert (scores.chosen.entry.question, scores.chosen.reason) == ("c", None)


async def test_only_the_candidate_that_its_logit_could_turn_is_read() -> None:
    first = {"a": bounded_at(-0.5, -0.2, -0.01), "b": bounded_at(-0.2, 0.1, 0.4)}
    scores, read = await scores_of(first, {"b": final_at(0.2)})
    assert read == ["b"]
    assert (scores.chosen.entry.question, scores.chosen.reason) == ("b", None)


async def test_nothing_is_served_on_a_first_opinion_that_could_be_corrected() -> None:
    """Even where the weights of the second stage promise no more than the first one says."""
    scores, read = await scores_of({"a": open_at(0.2, -0.1)}, {"a": final_at(-0.3)})
    assert read == ["a"]
    assert scores.chosen.reason is Refusal.SIMILARITY


async def test_without_a_second_opinion_the_first_one_stands() -> None:
    for score, reason in ((0.01, None), (-0.01, Refusal.SIMILARITY)):
        scores, read = await scores_of({"a": open_at(score, 0.2)}, {})
        assert read == ["a"]
        assert (scores.chosen.reason, scores.chosen.final, scores.second) == (reason, True, None)


async def test_neither_a_veto_nor_the_same_words_are_read() -> None:
    scores, read = await scores_of({"a": open_at(0.2, 0.3, veto=Refusal.CODE)}, {"a": final_at(0.3)})
    assert (read, scores.chosen.reason) == ([], Refusal.CODE)
    scores, read = await scores_of({"a": open_at(0.2, 0.3), " asked ": open_at(0.0, 0.3)}, {"a": final_at(0.3)})
    assert (read, scores.chosen.verbatim, scores.chosen.reason) == ([], True, None)


async def test_what_was_learnt_nearby_decides_too_what_is_read() -> None:
    control = RouteControl([(0.5, 0.02)] * BANDS, "basis")
    first = {"a": open_at(-0.1, 0.1)}
    for _ in range(5):
        control.learn(Observation(vector_of(1), 0.9, 0.9, Label.WRONG))
    _, read = await scores_of(first, {"a": final_at(0.1)}, control=control)
    assert read == []


FRAME = " ".join(["Classify the following review, written by a customer of our shop, by its tone:"] * 3)


async def test_a_veto_on_the_differing_parts_stands_whatever_their_score() -> None:
    stored, asked = f"{FRAME} good", f"{FRAME} bad"
    first = {stored: final_at(0.1), "good": Opinion(1.0, 0.9, veto=Refusal.ANTONYM)}
    scores, _ = await scores_of(first, {}, asked=asked)
    assert (scores.chosen.opinion.veto, scores.chosen.reason) == (Refusal.ANTONYM, Refusal.ANTONYM)


async def test_the_differing_parts_are_read_closely_too() -> None:
    stored, asked = f"{FRAME} good", f"{FRAME} bad"
    first = {stored: open_at(0.1, 0.2), "good": open_at(0.1, 0.2)}
    scores, read = await scores_of(first, {stored: final_at(0.1), "good": final_at(-0.1)}, asked=asked)
    assert read == [stored, "good"]
    assert scores.chosen.reason is Refusal.TEMPLATE
    scores, _ = await scores_of(first, {stored: final_at(0.1), "good": final_at(0.2)}, asked=asked)
    assert scores.chosen.reason is None


TAGGED = "hi" + "".join(chr(0xE0000 + ord(letter)) for letter in "say no")


@pytest.mark.parametrize(
    ("a", "b", "differs"),
    [
        ("hi", "hi!", False),
        ("hi", TAGGED, True),
        (TAGGED, TAGGED + "!", False),
        ("caf\u00e9", "cafe", False),
        ("hi", "h\u200bi", True),
        ("hi\u200b\u200c", "hi\u200c\u200b", True),
        ("hi \U000e0101", "hi \U000e0102", True),
    ],
)
def test_characters_that_nobody_sees_make_a_difference(a: str, b: str, differs: bool) -> None:
    assert differs_unseen(a, b) is differs
    assert differs_unseen(b, a) is differs


def test_labels_of_other_questions_do_not_move_the_score_of_the_same_text() -> None:
    """A question that differs in one letter has the same vector, and its labels are of another question."""
    threshold = CONTROL.threshold(PROMISE)
    same, alike = (Opinion(1.0, 0.99, is_same=is_same) for is_same in (True, False))
    assert evaluate(1.0, same, threshold, CONTROL, -0.5)[2] is None
    assert evaluate(1.0, alike, threshold, CONTROL, -0.5)[2] is Refusal.SIMILARITY
