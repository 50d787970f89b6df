"""How much an answer says about its question depends on how often unlike questions get it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cache.threshold.answer_shares import (
    LEAST_ANSWERS,
    MAX_ANSWERS,
    MAX_SCOPES,
    RECENT,
    AnswerShares,
    AnswerText,
    RouteAnswers,
    label_weight,
    right_after_equal,
)
from gateway.cache.threshold.ledger import BANDS
from gateway.cache.threshold.route_control import Observation, RouteControl
from gateway.cache.threshold.wrong_hits import Label
from gateway.ports import Acceptance
from tests.fixtures.entries import vector_of

SENTENCE = "the parcel leaves oslo on monday and arrives two days later in bergen"
OUTAGE = "the service is not available right now. please try again in a few minutes, or write to our support."


def text(words: str) -> AnswerText:
    return AnswerText(words)


def shares_of(*answers: str) -> AnswerShares:
    shares = AnswerShares()
    for answer in answers:
        shares.observe(text(answer))
    return shares


def route_of(*answers: str, scope: str = "scope") -> RouteAnswers:
    route = RouteAnswers()
    for answer in answers:
        route.observe(scope, text(answer))
    return route


def evidence(route: RouteAnswers, stored: str, fresh: str, scope: str = "scope") -> float | None:
    """Return the chance of an equal answer; None: these answers teach nothing."""
    if route.says_nothing(scope, text(stored), text(fresh)):
        return None
    return route.evidence_chance(scope, text(fresh))


def rare(route: RouteAnswers, stored: str, fresh: str) -> bool:
    chance = evidence(route, stored, fresh)
    return chance is not None and chance < 0.3


def test_an_answer_that_all_questions_get_proves_nothing() -> None:
    chance = shares_of(*["no"] * 200).chance(text("no"))
    assert chance == 1.0
    assert right_after_equal(0.5, chance) == 0.5


def test_a_rare_answer_proves_that_questions_ask_the_same() -> None:
    chance = shares_of(*["no"] * 500, *map(str, range(500)), "fraud").chance(text("fraud"))
    assert chance < 0.1
    assert right_after_equal(0.5, chance) > 0.9


@pytest.mark.parametrize("answer", ["yes", SENTENCE, OUTAGE])
def test_before_other_answers_are_known_an_equal_one_says_nothing(answer: str) -> None:
    """An outage answers with a long sentence from the first request on."""
    assert AnswerShares().chance(text(answer)) == 1.0
    assert shares_of(answer, answer).chance(text(answer)) == 1.0


def test_the_answer_that_is_compared_does_not_count_against_itself() -> None:
    assert shares_of(SENTENCE).chance(text(SENTENCE)) <= AnswerShares().chance(text(SENTENCE))
    assert shares_of("a", "b", SENTENCE).share(text(SENTENCE)) == 0.0


def test_answers_in_other_words_count_as_the_same() -> None:
    shares, sorry = AnswerShares(), vector_of(1)
    for number in range(50):
        shares.observe(AnswerText(f"sorry, no, {number}", sorry))
    assert shares.chance(AnswerText("sorry, no", sorry)) > 0.9
    assert shares.share(AnswerText("sorry, no", sorry)) > 0.9
    assert shares.chance(AnswerText("sorry, no", vector_of(2))) < 0.5


def test_the_answers_of_a_route_are_bounded_and_the_frequent_ones_stay() -> None:
    shares = shares_of(*["no"] * 50, *map(str, range(3 * MAX_ANSWERS)))
    assert len(shares._answers) <= MAX_ANSWERS
    assert "no" in shares._answers


def test_the_scopes_of_a_route_are_bounded() -> None:
    route = RouteAnswers()
    for number in range(3 * MAX_SCOPES):
        route.observe(f"scope {number}", text("no"))
    assert len(route._scopes) == MAX_SCOPES


def test_no_answer_is_frequent_before_some_are_known() -> None:
    assert not RouteAnswers().is_frequent("scope", text("yes"))
    assert not route_of("yes").is_frequent("scope", text("yes"))
    assert shares_of("yes").largest == 0.0
    assert shares_of(*["yes"] * LEAST_ANSWERS).largest < 0.5 < shares_of(*["yes"] * 40).largest


def test_a_classifier_beside_a_chat_is_known_by_its_scope() -> None:
    """On the whole route "no" is rare."""
    route = RouteAnswers()
    for number in range(300):
        route.observe("chat", text(f"{SENTENCE} {number}"))
    for _ in range(12):
        route.observe("classifier", text("no"))
    for number in range(RECENT):
        route.observe("chat", text(f"{OUTAGE} {number}"))
    assert route.is_frequent("classifier", text("no"))
    assert not route.is_frequent("chat", text("no"))


def test_an_outage_teaches_nothing_after_a_few_answers_and_its_end_is_noticed() -> None:
    route = route_of(*map(str, range(900)))
    for _ in range(RECENT // 4):
        route.observe("scope", text(OUTAGE))
    assert evidence(route, OUTAGE, OUTAGE) is None
    assert evidence(route, "17", OUTAGE) is None  # that the answers differ says nothing either
    for number in range(RECENT):
        route.observe("scope", text(str(900 + number)))
    assert rare(route, "17", "17")
    assert rare(route, "17", "900")


def test_an_apology_at_any_time_teaches_nothing() -> None:
    route = route_of(*(OUTAGE if number % 5 == 0 else str(number) for number in range(500)))
    assert evidence(route, OUTAGE, OUTAGE) is None
    assert evidence(route, "1", OUTAGE) is evidence(route, OUTAGE, "1") is None
    assert rare(route, "1", "1")


def test_what_the_frequent_answers_leave_out_counts_as_chance() -> None:
    """Nine pairs of unequal answers have one of them where five equal ones have."""
    few = route_of(*map(str, range(500)))
    many = route_of(*("no" if number % 2 else str(number) for number in range(500)))
    assert (evidence(many, "2", "2") or 0.0) > (evidence(few, "2", "2") or 0.0) + 0.4


def test_where_unlike_neighbours_mostly_get_equal_answers_none_teaches() -> None:
    """Messages about a stolen and about a lost card are both "fraud", however rare that is."""
    route = route_of(*("no" if number % 3 else f"rare {number}" for number in range(200)))
    for number in range(100):
        route.observe_unlike("scope", equal=number % 5 > 1)
    assert evidence(route, "rare 3", "rare 3") is evidence(route, "rare 3", "rare 6") is None


def test_unlike_neighbours_with_equal_answers_raise_the_chance_of_every_answer() -> None:
    route = route_of(*(f"class {number % 12}" for number in range(240)))
    before = evidence(route, "class 1", "class 1") or 0.0
    for number in range(100):
        route.observe_unlike("scope", equal=number % 4 == 0)
    assert (evidence(route, "class 1", "class 1") or 0.0) > max(before, 0.2)


def test_unlike_neighbours_whose_answers_no_other_question_gets_ask_the_same_after_all() -> None:
    route = route_of(*map(str, range(100)))
    before = evidence(route, "1", "1")
    for number in range(100):
        route.observe_unlike("scope", equal=number % 3 == 0)
    assert evidence(route, "1", "1") == before


@given(st.floats(0.0, 1.0), st.floats(0.0, 0.999))
def test_what_is_counted_has_the_share_of_wrong_ones_whatever_the_chance(probability: float, chance: float) -> None:
    unequal = (1 - probability) * (1 - chance)
    right = (1 - unequal) * label_weight(probability, chance, equal=True)
    wrong = unequal * label_weight(probability, chance, equal=False)
    assert wrong == pytest.approx((1 - probability) * (right + wrong), abs=1e-9)


def test_what_says_nothing_weighs_nothing() -> None:
    assert label_weight(0.9, 1.0, equal=True) == 0.0


def two_labels(rare: float) -> Callable[[random.Random], str]:
    return lambda rng: "yes" if rng.random() < rare else "no"


def ten_labels(rng: random.Random) -> str:
    return f"class {min(9, int(rng.expovariate(0.35)))}"


def fixed(_: random.Random) -> str:
    return OUTAGE


@pytest.mark.parametrize(
    "answer",
    [two_labels(0.01), two_labels(0.1), two_labels(0.5), ten_labels, fixed],
    ids=["99-1", "90-10", "50-50", "ten", "fixed"],
)
def test_equal_answers_do_not_teach_that_unlike_questions_are_alike(answer: Callable[[random.Random], str]) -> None:
    control, route, rng = RouteControl([(0.3, 0.02)] * BANDS, "basis"), RouteAnswers(), random.Random(7)
    cold = control.threshold(Acceptance(max_wrong_hits=0.01))
    for number in range(1_000):
        stored, fresh = text(answer(rng)), text(answer(rng))
        label = Label.RIGHT if stored == fresh else Label.WRONG
        if not route.says_nothing("scope", stored, fresh):
            chance = route.evidence_chance("scope", fresh)
            control.learn(Observation(vector_of(number), 0.9, 0.7, label, chance=chance))
        route.observe("scope", fresh)
    control._forget_thresholds()
    assert control.threshold(Acceptance(max_wrong_hits=0.01)) >= cold
    assert control.shift(vector_of(5_000)) < 0.05


def test_one_body_for_all_questions_teaches_nothing_at_all() -> None:
    control, route = RouteControl([(0.3, 0.02)] * BANDS, "basis"), RouteAnswers()
    for number in range(300):
        chance = route.evidence_chance("scope", text(OUTAGE))
        control.learn(Observation(vector_of(number), 0.9, 0.7, Label.RIGHT, chance=chance))
        route.observe("scope", text(OUTAGE))
    assert control.labels == 0
    assert control.shift(vector_of(1)) == 0.0
