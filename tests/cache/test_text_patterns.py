"""What is not looked for is not there: a pattern finds the same with its clues as without."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.cache import lexical
from gateway.cache.features import reading
from gateway.cache.lexical import PatternIndex, clues_of, plain

pytestmark = pytest.mark.slow  # starts nothing, takes seconds

SOUGHT: list[PatternIndex] = [
    each for module in (lexical, reading) for each in vars(module).values() if isinstance(each, PatternIndex)
]
# What some pattern looks for, what nearly is that, and what stands between.
PIECES = [
    *("not", "no", "never", "without", "except", "nicht", "kein", "keinem", "nie", "ohne", "sin", "nunca", "jamas"),
    *("ninguna", "isn't", "n't", "'t", "kein't", "knot", "n\u2019t", "\u4e0d", "\u212aein", "\u017fin", "\u0130", "t"),
    *("from", "de", "von", "to", "into", "a", "nach", "zu", "vs", "versus", "over", "than", "before", "after", "minus"),
    *("more", "less", "better", "between", "both", "and", "or", "und", "oder", "y", "entre", "Oslo", "word", "x"),
    *("7", "3.5", "1,000", "-4", "15%", "f(x)", "(x)", "foo_bar", "__x", "--all", "-a", "->", "=>", "==", "!=", "<="),
    *("{", "]", ";", "=", ":", "?", ".", "'", "_", "-", '"', "`", '"x"', "`x`"),
]
texts = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=12).flatmap(
    lambda pieces: st.sampled_from([" ".join(pieces), "".join(pieces), " ".join(pieces).upper(), "\n".join(pieces)])
)


def test_every_pattern_is_held() -> None:
    assert len(SOUGHT) == 9


@pytest.mark.parametrize("at", range(len(SOUGHT)))
@settings(max_examples=300, deadline=None)
@given(texts)
@example("Kein Weg von A nach B, oder?")
def test_a_pattern_finds_the_same_with_clues(at: int, text: str) -> None:
    sought, words = SOUGHT[at], frozenset(lexical.read(text).words)
    assert sought.matches(text, clues_of(text, plain(text), words)) == sought.pattern.findall(text)


def test_other_letters_that_stand_for_these_leave_no_clues() -> None:
    assert clues_of("\u212aein Zucker", "\u212aein zucker", frozenset()) is None
