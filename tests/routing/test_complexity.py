"""How hard a request is: judged by its text, and by where its embedding lies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.complexity import complexity, features_of, hardness_axis
from tests.fixtures.entries import vector_of

# Of our own, and none of them among the examples in the module.
EASY = [
    "What is the boiling point of water?",
    "Who painted the Mona Lisa?",
    "Translate 'thank you' into Italian.",
    "When does the shop close?",
    "Hello!",
    "What's 2 plus 2?",
    "Give me a word that rhymes with cat.",
    "How old is the universe?",
    "Is it raining in Bergen?",
    "Thanks, that helped.",
    "Where is my parcel?",
    "Define photosynthesis.",
    "What does HTML stand for?",
    "Name three fruits.",
    "Can I pay by card?",
    "How many days are in a leap year?",
    "Wie spät ist es in Tokio?",
    "¿Dónde está la estación?",
    "What is your name?",
    "Set a timer please",
]
HARD = [
    "Prove by induction that the sum of the first n odd numbers equals n squared.",
    "Design a schema for a multi-tenant billing system and explain the trade-offs of each alternative.",
    "Write a Python function that merges overlapping intervals, then analyse its complexity.",
    "Compare Kant's and Mill's views on lying, and evaluate which one handles white lies better.",
    "Explain step by step how TLS 1.3 establishes keys, and why it needs one round trip fewer than TLS 1.2.",
    "Solve for x: 3x^2 - 5x + 2 = 0, then derive the general formula.",
    "Refactor this code to avoid the race condition:\n```\ndef add(self):\n    self.n = self.n + 1\n```",
    "Plan a three-week trip through Japan for two adults and a toddler; the budget must stay below 6000 euros, "
    "and at least five nights should be outside of cities.",
    "Summarise the following contract in a table with at most ten rows, and list every clause that must be "
    "renegotiated, in order of risk.",
    "Diagnose why a Kubernetes pod restarts every ten minutes although its memory stays below the limit.",
    "What is the probability that two of thirty people share a birthday? Explain the reasoning.",
    "Critique the methodology of a survey with 40 self-selected respondents and suggest a better design.",
    "Optimise this query and justify each step: SELECT * FROM orders o JOIN items i ON o.id = i.order_id WHERE ...",
    "Write a short story in exactly three paragraphs that must contain a map, a storm and no dialogue, and then "
    "explain how the structure supports the theme.",
    "Analyse the implications of quantitative tightening for emerging markets with dollar debt.",
    "First parse the CSV, then group by month, and finally output JSON with only the three largest groups.",
    "Erkläre Schritt für Schritt, warum der Beweis des Satzes von Gödel Selbstbezüglichkeit braucht, und "
    "vergleiche ihn mit dem Halteproblem.",
    "Explica las diferencias entre la novela realista y la naturalista y compara dos ejemplos con detalle.",
    "Derive the eigenvalues of a symmetric 3x3 matrix with ones everywhere, and interpret the result.",
    "Our checkout fails for about 2 % of users since Tuesday. Logs show timeouts in the payment service after a "
    "deploy of the session cache. List hypotheses, rank them, and design the experiments that separate them.",
]


def score(text: str, max_tokens: int | None = None, hardness: float = 0.0) -> float:
    return complexity(features_of(text, max_tokens, hardness))


def test_hard_prompts_score_above_easy_ones() -> None:
    """The area under the ROC curve, by the text alone: the share of pairs in the right order."""
    easy, hard = list(map(score, EASY)), list(map(score, HARD))
    area = np.mean([(h > e) + 0.5 * (h == e) for h in hard for e in easy])
    assert area >= 0.9, sorted(zip(hard, HARD, strict=True))[:5]


def test_the_default_threshold_parts_them_usefully() -> None:
    assert sum(score(text) > 0.5 for text in EASY) == 0
    assert sum(score(text) > 0.5 for text in HARD) >= 8


@given(st.text(max_size=2000), st.none() | st.integers(1, 10**9), st.floats(-1, 1))
def test_complexity_lies_strictly_between_0_and_1(text: str, max_tokens: int | None, hardness: float) -> None:
    assert 0.0 < score(text, max_tokens, hardness) < 1.0


@pytest.mark.parametrize("text", ["", " ", "\n" * 5000, "def f(" * 100_000, "```" * 50_000, "1+1" * 100_000])
def test_odd_texts_are_judged_like_all_others(text: str) -> None:
    assert 0.0 < score(text) < 1.0


@given(st.floats(-1, 1), st.floats(-1, 1))
def test_the_nearer_to_hard_examples_the_higher(a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert score("Tell me about bees", hardness=low) <= score("Tell me about bees", hardness=high)


@given(st.integers(1, 100_000), st.integers(1, 100_000))
def test_the_more_is_to_be_written_the_higher(a: int, b: int) -> None:
    low, high = sorted((a, b))
    assert score("Tell me about bees", low) <= score("Tell me about bees", high)


@pytest.mark.parametrize(
    "addition",
    [
        " and explain why",
        " Compare it with wasps.",
        "\n```\ndef bee(): pass\n```",
        " Calculate the probability.",
        " First do this, then that, finally the rest.",
        " It must be a table with at least 5 rows.",
    ],
)
def test_what_asks_for_more_scores_higher(addition: str) -> None:
    assert score("Tell me about bees" + addition) > score("Tell me about bees" + "," * 3)


def test_the_axis_points_from_easy_to_hard() -> None:
    easy, hard = [vector_of(i) for i in range(5)], [vector_of(i) for i in range(5, 10)]
    axis = hardness_axis(easy, hard)
    assert float(np.linalg.norm(axis)) == pytest.approx(1.0, abs=1e-5)
    assert axis.dtype == np.float32
    assert np.mean([v @ axis for v in hard]) > np.mean([v @ axis for v in easy])


def test_examples_that_cannot_be_told_apart_give_no_direction() -> None:
    same = [vector_of(1)] * 3
    assert float(np.linalg.norm(hardness_axis(same, same))) == 0.0
