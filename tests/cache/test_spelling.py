"""What may differ between two texts that count as the same, and what never may."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from unicodedata import decomposition

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cache.lexical import hard_difference, read
from gateway.cache.spelling import SAME, compare, compare_read
from gateway.outcomes import Refusal
from gateway.text_forms import FOLDED, KEPT, fold_forms

PAIRS = [
    json.loads(line) for line in (Path(__file__).parent / "spellings.jsonl").read_text(encoding="utf-8").splitlines()
]

VETOES = [
    (Refusal.CASE, "Does it affect us?", "Does it affect US?"),
    (Refusal.CASE, "Will this law affect us?", "Does the law affect US?"),
    (Refusal.CASE, "What is the value of g?", "What is the value of G?"),
    (Refusal.CASE, "how much is 3 mw?", "How much is 3 MW?"),
    (Refusal.CASE, "is it a good career?", "Is IT a good career?"),
    (Refusal.CASE, "what does %m print?", "What does %M print?"),
    (Refusal.CASE, "what does git branch -d do?", "what does git branch -D do?"),
    (Refusal.CASE, "Was macht das weiche Gelenk?", "Was macht das Weiche Gelenk?"),
    (Refusal.ACCENT, "Was kostet die Fahre?", "Was kostet die Fähre?"),
    (Refusal.ACCENT, "What does año mean?", "Tell me what ano means"),
    (Refusal.ACCENT, "Jak zrobić łaskę?", "Jak zrobić laskę?"),
    (Refusal.SIGN, "My day was 😂", "My day was 😭"),
    (Refusal.SIGN, "Which flag is 🇫🇷?", "Tell me which flag is 🇳🇱"),
    (Refusal.SIGN, "I feel 🙂 today", "I feel today"),
    (Refusal.SIGN, "What does ++i do?", "What does i++ do?"),
    (Refusal.SIGN, "What is 5! equal to?", "What is 5 equal to?"),
    (Refusal.SIGN, "What is 1.5 + 2?", "What is 1,5 + 2?"),
    (Refusal.SIGN, "What is -3 times 2?", "What is 3 times 2?"),
    (Refusal.SIGN, "What does x² mean?", "What does x³ mean?"),
    (Refusal.SIGN, "How do I type – on a keyboard?", "How do I type — on a keyboard?"),
    (Refusal.SIGN, "👍", "👎"),
]  # fmt: skip

HARD = [
    (Refusal.UNITS, "Set an alarm for 7am", "Please set an alarm for 7 pm"),
    (Refusal.UNITS, "Is 7 in the morning fine?", "Is 7 in the evening fine?"),
    (Refusal.UNITS, "Fährt um 8 Uhr morgens ein Bus?", "Fährt um 8 Uhr abends ein Bus?"),
    (Refusal.UNITS, "What does $50 buy?", "What does €50 buy?"),
    (Refusal.UNITS, "Is 5 Mb a lot?", "Are 5 MB a lot to download?"),
    (Refusal.UNITS, "Wait 30 s", "Wait for 30 ms"),
    (Refusal.COMMAND, "Command: git push", "Command: git push --force"),
    (Refusal.COMMAND, "Run rm old.txt", "Run rm -r old.txt"),
    (Refusal.COMMAND, "Is it safe to run ls -l?", "Can I run ls -L?"),
    (Refusal.COMMAND, "Approve: deploy staging", "Approve: deploy production"),
    (Refusal.COMMAND, "$ kill 10", "$ kill -9 10"),
    (Refusal.COMMAND, "Should I allow ./run.sh test?", "Should I allow ./run.sh prod?"),
    (Refusal.NEGATION, "Is the reaction reversible?", "Is that reaction irreversible?"),
    (Refusal.NEGATION, "Is this mushroom harmful?", "Is this mushroom harmless?"),
    (Refusal.NEGATION, "Is he a smoker?", "Is he a non-smoker?"),
    (Refusal.NEGATION, "Where is sugar-free gum?", "Where is sugar gum?"),
    (Refusal.NUMBERS, "Explain phase one", "Explain phase two"),
    (Refusal.NUMBERS, "Is one pill enough?", "Are two pills enough?"),
    (Refusal.ANTONYM, "Should I take it before meals?", "Should I take it during meals?"),
    (Refusal.ANTONYM, "Do I need a visa to travel to Peru?", "Do I need a visa to travel from Peru?"),
    (Refusal.IDENTIFIER, "Is H2O acidic?", "Is H2O2 acidic?"),
    (Refusal.IDENTIFIER, "What does json.load do?", "What does json.loads do?"),
    (Refusal.CODE, "Is x ? y : z valid?", "Is x ? z : y valid?"),
    (Refusal.CODE, "Explain range(n)", "Explain range(n-1)"),
]

NO_VETO = [
    ("How can I learn Python?", "how do i learn python"),
    ("What are the best restaurants in delhi?", "Which are the best restaurants in Delhi?"),
    ("Is 16 GB enough?", "Are 16 gigabytes enough?"),
    ("What is 5 km in miles?", "How many miles are 5 kilometers?"),
    ("How do I squash commits with git?", "How can I use git to squash commits?"),
    ("Does time really exist?", "What is time, and does it exist?"),
    ("How do I run faster?", "How can I run more quickly?"),
    ("Is python 3.12 faster?", "Is Python 3.12 faster than before?"),
    ("What is the future of e-commerce?", "What is the future of ecommerce?"),
    ("What does $5 buy?", "What do 5 dollars buy?"),
    ("Is 9 am fine?", "Would 9 a.m. be fine?"),
    ("Am I not happy?", "Am I unhappy?"),
    ("How many m² has a field?", "How many square metres does a field have?"),
    ("¿Cuáles son las plantas que viven sin luz?", "¿Qué plantas viven sin luz?"),
]


@pytest.mark.parametrize(("reason", "a", "b"), VETOES)
def test_what_the_embedding_model_does_not_see_is_a_veto(reason: Refusal, a: str, b: str) -> None:
    assert (compare(a, b), compare(b, a)) == (reason, reason)


@pytest.mark.parametrize(("reason", "a", "b"), HARD)
def test_a_detail_that_decides_is_a_veto(reason: Refusal, a: str, b: str) -> None:
    assert (hard_difference(read(a), read(b)), hard_difference(read(b), read(a))) == (reason, reason)


@pytest.mark.parametrize(("a", "b"), NO_VETO)
def test_other_words_for_the_same_are_no_veto(a: str, b: str) -> None:
    for mine, other in ((a, b), (b, a)):
        assert not isinstance(compare(mine, other), Refusal)
        assert hard_difference(read(mine), read(other)) is None


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair["same"]], ids=lambda pair: pair["asked"])
def test_harmless_variations_count_as_the_same(pair: dict[str, str]) -> None:
    asked, stored = fold_forms(pair["asked"]), fold_forms(pair["stored"])
    assert compare(asked, stored) is SAME
    assert compare(stored, asked) is SAME


def test_no_pair_that_asks_for_other_things_counts_as_the_same() -> None:
    assert not [pair for pair in PAIRS if not pair["same"] and compare(pair["asked"], pair["stored"]) is SAME]


def test_commas_and_line_ends_are_left_to_the_verifier() -> None:
    for a, b in (("Well, what is it?", "Well what is it?"), ("Who wrote \"Emma\"?", "Who wrote Emma?"),
                 ("if a:\n  b", "if a:\nb"), ("supply-chain costs", "supply chain costs")):  # fmt: skip
        assert compare(a, b) is None


@given(st.text(max_size=60), st.text(max_size=60))
def test_the_comparison_is_the_same_in_both_orders(a: str, b: str) -> None:
    assert compare(a, b) == compare(b, a)


@given(st.text(max_size=80))
def test_a_text_is_the_same_as_itself_with_other_spaces_around(text: str) -> None:
    assert compare(text, f"  {text} ") is SAME


WORDS = "What what is it IT us US -d -D %m %M 5 . ? ! , 'x' it's its"
PIECES = st.lists(st.sampled_from(sorted(WORDS.split())), max_size=7)


@given(PIECES, PIECES)
def test_the_short_way_finds_what_the_long_one_finds(a: list[str], b: list[str]) -> None:
    one, two = " ".join(a), " ".join(b)
    assert compare_read(one, read(one), two, read(two)) == compare(one, two)


def test_every_form_of_unicode_is_folded_or_kept_for_a_reason() -> None:
    tags = {found.split()[0] for point in range(sys.maxunicode + 1) if (found := decomposition(chr(point)))}
    assert {tag for tag in tags if tag[0] == "<"} == FOLDED.keys() | KEPT.keys()
    assert not FOLDED.keys() & KEPT.keys()


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("ＡＢＣ ﬁle", "ABC file"),
        ("CO₂", "CO2"),
        ("10₂", "10₂"),
        ("x²", "x²"),
        ("ℝ", "ℝ"),
        ("1½ cups", "1 1/2 cups"),
        ("5 ㎡", "5 m²"),
        ("wait…", "wait..."),
        ("cafe\u0301", "café"),
        ("10\u202f000 \u00a0km", "10 000  km"),
        ("❤\ufe0f", "❤"),
        ("a\ufe0f", "a\ufe0f"),
    ],
)
def test_forms_are_folded_in_their_context(written: str, plain: str) -> None:
    assert fold_forms(written) == plain
    assert fold_forms(plain) == plain
