"""How hard a request is: judged by its text, and by where its embedding lies."""

from __future__ import annotations

import hashlib
import io
import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.adapters.system.clock import SystemClock
from gateway.adapters.system.weight_files import WeightsCorrupt
from gateway.admin.explanation import parse_request
from gateway.entries import Vector
from gateway.routing.complexity import (
    TRAINED,
    WEIGHTS,
    build_complexity,
    load_weights,
    weights_from,
)
from gateway.routing.prompt_features import HEAD, NAMES, OPTION_NAMES, TAIL, Commonness, PromptReading, corrected
from training.perturb import typo

ENCODER = "all-MiniLM-L6-v2/onnx-int8/0123456789ab"
MODEL = build_complexity(ENCODER)

# Of our own, and none of them among the graded prompts of training/.
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
EXAM_EASY = (
    "Which of the following is the capital of Norway?\nA. Oslo\nB. Bergen\nC. Trondheim\nD. Tromsø\nAnswer:",
    "The river that flows through Cairo is the\nA. Nile\nB. Congo\nC. Niger\nD. Volta\nAnswer:",
    "The largest organ of the human body is the\nA. skin\nB. liver\nC. heart\nD. brain\nAnswer:",
)
EXAM_HARD = (
    "Statement 1 | If H and K are subgroups of G of order 12 and 35, then |H ∩ K| = 1. Statement 2 | Every group of "
    "order 49 is cyclic.\nA. True, True\nB. False, False\nC. True, False\nD. False, True\nAnswer:",
    "A firm has total costs of 100 + 4q + q^2 and the price is 24. If a tax of 2 per unit is levied, by how much does "
    "its output fall?\nA. 1\nB. 2\nC. 4\nD. 10\nAnswer:",
    "Construct a truth table, then say which is equivalent to ~(P ⊃ (Q ∨ ~R)).\nA. P · ~Q · R\nB. ~P ∨ Q ∨ ~R\n"
    "C. P · Q · ~R\nD. ~P · ~Q · R\nAnswer:",
)


def score(text: str, max_tokens: int | None = None, vector: Vector | None = None) -> float:
    return MODEL.judge(text, max_tokens, vector).score


def vector_of(seed: int) -> Vector:
    """A unit vector of the embedding model's dimension."""
    drawn = np.random.default_rng(seed).normal(size=384)
    return np.asarray(drawn / np.linalg.norm(drawn), np.float32)


def in_order(easy: list[float], hard: list[float]) -> float:
    """The area under the ROC curve: the share of pairs in the right order."""
    return float(np.mean([(h > e) + 0.5 * (h == e) for h in hard for e in easy]))


def test_hard_prompts_score_above_easy_ones_by_the_text_alone() -> None:
    easy, hard = list(map(score, EASY)), list(map(score, HARD))
    assert in_order(easy, hard) >= 0.98, sorted(zip(hard, HARD, strict=True))[:5]


def test_the_default_threshold_parts_them_usefully() -> None:
    assert sum(score(text) > 0.5 for text in EASY) == 0
    assert sum(score(text) > 0.5 for text in HARD) >= 8


def test_exam_questions_that_need_reasoning_score_above_those_that_name_a_fact() -> None:
    assert max(map(score, EXAM_EASY)) < min(map(score, EXAM_HARD))


def test_length_alone_does_not_make_a_prompt_hard() -> None:
    thanks = "Thank you very much, that was kind of you, and have a good evening. " * 4
    assert score(thanks) < 0.5 < score("Prove that there are infinitely many primes of the form 4k + 3, step by step.")


@pytest.mark.parametrize(
    ("fewer", "more"),
    [
        (
            "Tim has 4 apples and buys 3 more. How many apples does he have?",
            "Tim has 4 crates of 12 apples each. He sells 3/4 of them for 2 dollars each, gives half of the rest to "
            "each of his 2 sisters, and pays 15 % tax. How much has he left?",
        ),
        ("What is 3 plus 4?", "What is the remainder when the sum of the first 100 squares is divided by 7?"),
    ],
)
def test_a_longer_chain_of_sums_scores_higher(fewer: str, more: str) -> None:
    assert score(more) > score(fewer)


@settings(deadline=None)
@given(st.text(max_size=2000), st.none() | st.integers(1, 10**9), st.booleans())
def test_complexity_lies_strictly_between_0_and_1(text: str, max_tokens: int | None, embedded: bool) -> None:
    assert 0.0 < score(text, max_tokens, vector_of(1) if embedded else None) < 1.0


@pytest.mark.parametrize(
    "text",
    ["", " ", "\n" * 5000, "def f(" * 100_000, "```" * 50_000, "1+1" * 100_000, "A. x\n" * 10_000, "\ud800", "𝟙²½٣"],
)
def test_odd_texts_are_judged_like_all_others(text: str) -> None:
    assert 0.0 < score(text) < 1.0


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


def test_an_embedding_moves_the_row_and_never_the_score() -> None:
    judged = [MODEL.judge("Tell me about bees", None, vector_of(i) if i else None) for i in range(4)]
    assert len({each.score for each in judged}) == 1
    assert len({each.row.tobytes() for each in judged}) == 4
    assert len({len(each.row) for each in judged}) == 1


@pytest.mark.parametrize("encoder", ["hash/384/v2", "bge-small/onnx-int8/0123456789ab", ""])
def test_vectors_of_another_model_are_not_read(encoder: str) -> None:
    model = build_complexity(encoder)
    assert not model.reads_vectors
    row = model.judge("Tell me about bees", None, vector_of(1)).row
    assert row.tobytes() == model.judge("Tell me about bees", None, None).row.tobytes()


def test_a_vector_of_another_length_is_not_read() -> None:
    row = MODEL.judge("Tell me about bees", None, np.ones(7, np.float32)).row
    assert row.tobytes() == MODEL.judge("Tell me about bees", None, None).row.tobytes()


@pytest.mark.parametrize(
    "text",
    [
        "Which?\nA. one\nB. two\nC. three\nD. four\nAnswer:",
        "Which?\n(A) one\n(B) two\n(C) three",
        "Which?\n  A) one\n  B) two\n",
        "word " * 2000 + "\nA. one\nB. two\nC. three\nD. four\nAnswer:",
    ],
)
def test_lettered_options_are_read_as_such(text: str) -> None:
    options = PromptReading(text, Commonness(["word"])).options
    assert options is not None
    assert len(options) == len(OPTION_NAMES)


@pytest.mark.parametrize(
    "text", ["A. one", "1. one\n2. two\n3. three", "Hello", "B. x\nA. y\nD. z", "a man said: A. I"]
)
def test_other_texts_have_no_options(text: str) -> None:
    assert PromptReading(text, Commonness(["word"])).options is None


def test_what_lies_between_head_and_tail_of_a_long_text_changes_nothing() -> None:
    head, tail = "a" * HEAD, "b" * TAIL
    middle = "prove that " * 500
    assert score(head + middle + tail) == score(head + "x" * len(middle) + tail)


@given(st.text(max_size=300))
def test_every_feature_is_a_finite_number(text: str) -> None:
    features = PromptReading(text, Commonness(["word"])).features
    assert features.shape == (len(NAMES),)
    assert np.isfinite(features).all()


def _shipped() -> tuple[bytes, bytes]:
    return (WEIGHTS / TRAINED.about_file).read_bytes(), (WEIGHTS / TRAINED.arrays_file).read_bytes()


def test_weights_that_were_tampered_with_are_refused(tmp_path: Path) -> None:
    about, arrays = _shipped()
    (tmp_path / TRAINED.about_file).write_bytes(about)
    (tmp_path / TRAINED.arrays_file).write_bytes(arrays[:-1] + b"x")
    with pytest.raises(WeightsCorrupt, match=r"sha256 .* complexity.json says"):
        load_weights(tmp_path)


def test_missing_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsCorrupt, match="cannot be read"):
        load_weights(tmp_path)


def _changed(**arrays: object) -> tuple[bytes, bytes]:
    about, shipped = _shipped()
    with np.load(io.BytesIO(shipped), allow_pickle=False) as file:
        tables = {name: file[name] for name in file.files}
    out = io.BytesIO()
    np.savez(out, **{**tables, **arrays})
    said = json.loads(about) | {"sha256": hashlib.sha256(out.getvalue()).hexdigest()}
    return json.dumps(said).encode(), out.getvalue()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"names": np.array(["length"])}, "other features"),
        ({"open/deviation": np.zeros(len(NAMES))}, "above 0"),
        ({"text/wrong/features": np.ones(3)}, "text/wrong/features must be"),
        ({"vector/open/vector": np.full(384, np.nan)}, "vector/open/vector must be 384 finite numbers"),
    ],
)
def test_weights_of_another_shape_are_refused(arrays: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        weights_from(*_changed(**arrays))


def test_the_weights_weigh_little_and_say_what_they_were_made_from() -> None:
    about, arrays = _shipped()
    assert len(arrays) < 2_000_000
    assert {"outcomes", "outcomes of many models", "graded prompts", "common words"} == set(
        json.loads(about)["made_from"]
    )


KINDS = [json.loads(line) for line in (Path(__file__).parent / "easy_and_hard.jsonl").read_text("utf-8").splitlines()]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f"tool_{at}",
            "description": "Derive, compare and analyse the trade-offs of each step, then prove the result.",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
        },
    }
    for at in range(20)
]


def test_the_file_has_two_hundred_prompts() -> None:
    assert sum(len(kind["easy"]) + len(kind["hard"]) for kind in KINDS) == 200


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind["kind"]))
def test_no_language_and_no_tool_list_sends_everything_to_one_side(kind: dict[str, list[str]]) -> None:
    tools = TOOLS if kind["kind"] == "tools" else []
    easy, hard = ([asked(text, tools) for text in kind[side]] for side in ("easy", "hard"))
    assert in_order(easy, hard) >= 0.95
    assert sum(each > 0.5 for each in easy) == 0
    assert sum(each > 0.5 for each in hard) >= 3


def asked(text: str, tools: list[dict[str, object]]) -> float:
    """The score of a request with a list of tools, by the text that the gateway scores."""
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **({"tools": tools} if tools else {})}
    request, call = parse_request(body, SystemClock(), "the test")
    assert request.estimates.complexity is None
    return score(call.question or call.prompt)


@pytest.mark.parametrize(
    ("bare", "polite"),
    [
        ("what is a monad?", "Please, what is a monad?"),
        ("Who wrote Hamlet?", "Could you please tell me: Who wrote Hamlet?"),
        ("Who wrote Hamlet?", "Who wrote Hamlet? Thank you!"),
        ("Explain TLS", "Hello, could you Explain TLS, please"),
        ("Thanks", "Thanks"),
    ],
)
def test_courtesies_change_no_feature(bare: str, polite: str) -> None:
    assert score(polite) == score(bare)


@pytest.mark.parametrize("text", EASY + HARD)
def test_another_case_changes_a_score_little(text: str) -> None:
    assert score(text.upper()) == pytest.approx(score(text), abs=0.05)
    assert score(text.lower()) == pytest.approx(score(text), abs=0.05)


def test_a_missing_final_mark_hardly_changes_a_score() -> None:
    moves = [abs(score(text) - score(text.rstrip("?.! "))) for text in EASY + HARD]
    assert np.mean(moves) <= 0.005


@pytest.mark.parametrize(
    ("mistyped", "word"),
    [
        ("calclate", "calculate"),
        ("probabilty", "probability"),
        ("exlpain", "explain"),
        ("pythonn", "python"),
        ("wich", "which"),
        ("oslo", "oslo"),
        ("photosynthesis", "photosynthesis"),
        ("", ""),
    ],
)
def test_a_mistyped_word_of_a_list_counts_as_that_word(mistyped: str, word: str) -> None:
    assert corrected(mistyped) == word


@pytest.mark.parametrize("change", [str.upper, str.lower, str.title, lambda text: text.replace(" ", "  ")])
def test_case_and_spacing_change_no_choice(change: Callable[[str], str]) -> None:
    assert all((score(change(text)) > 0.5) == (score(text) > 0.5) for text in EASY + HARD)


def test_options_without_their_marks_are_read_as_such() -> None:
    for text in EXAM_HARD:
        assert PromptReading(re.sub(r"[^\w\s]", "", text), Commonness(["word"])).options is not None
    assert PromptReading("A man met\nB and went\nhome", Commonness(["word"])).options is None


def test_three_typing_errors_change_a_score_little() -> None:
    draw = random.Random(0)

    def mistyped(text: str) -> str:
        for _ in range(3):
            text = typo(text, draw) or text
        return text

    moves = [abs(score(text) - score(mistyped(text))) for text in EASY + HARD for _ in range(5)]
    assert np.mean(moves) <= 0.024
