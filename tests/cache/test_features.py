"""What the features of a question pair say, and that no text, however made, costs more than its length."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.cache.features import NAMES, features, vectors


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300), st.text(max_size=300))
def test_any_two_texts_have_finite_features(a: str, b: str) -> None:
    rows = features(a, [b, a])
    assert rows.shape == (2, len(NAMES))
    assert np.isfinite(rows).all()


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=80), st.text(max_size=80))
def test_words_say_the_same_whoever_was_asked_first(a: str, b: str) -> None:
    one_sided = ("inverted", "unmatched", "content", "opposites")
    symmetric = [at for at, name in enumerate(NAMES) if not name.startswith(one_sided)]
    assert features(a, [b])[0, symmetric] == pytest.approx(features(b, [a])[0, symmetric])


def test_features_are_those_that_the_trees_were_trained_on() -> None:
    """To the bit: whoever makes them faster makes the same ones; whoever means to change them trains anew."""
    digest = hashlib.sha256()
    for name in ("traps.jsonl", "traps_languages.jsonl"):
        for line in (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines():
            texts = [text for text in json.loads(line).values() if isinstance(text, str)]
            digest.update(features(texts[0], texts).astype("<f8").tobytes())
            digest.update(features(texts[1].upper(), texts[:2]).astype("<f8").tobytes())
    assert digest.hexdigest()[:16] == "50f22edb13208e44"


@pytest.mark.parametrize(
    "unit",
    [
        "from a to ", "a to b ", "not ", "1.1.", "A. ", "a'b", "\n", "a.b", "f(", "--a", "`a", '"', "x_", "-1",
        "a b than ", "\u4e0d", "a+", "\U0001f600", "{", "how ", "one ",
    ],
)  # fmt: skip
def test_a_hostile_text_of_100_kb_is_read_in_bounded_time(unit: str) -> None:
    text = unit * (100_000 // len(unit))
    started = time.process_time()
    features(text, [text[: len(text) - k] for k in range(4)])
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize(
    ("name", "a", "b"),
    [
        ("numbers_swapped", "Is 20 enough?", "Is 30 enough?"),
        ("numbers_swapped", "a table for two", "a table for four"),
        ("units_swapped", "in 5 km", "in 5 miles"),
        ("calendar_swapped", "open on Monday?", "open on Tuesday?"),
        ("quantifiers_swapped", "delete every file", "delete only one file"),
        ("comparatives_swapped", "the cheapest phone", "the fastest phone"),
        ("names_swapped", "how big is Oslo", "how big is Rome"),
        ("aspects_swapped", "how much is a visa", "why do I need a visa"),
        ("conditions_extra", "can I eat eggs", "can I eat eggs during pregnancy"),
        ("conditions_swapped", "shoes for children", "shoes for runners"),
        ("conditions_partly_extra", "flights in early summer", "flights in summer"),
        ("head_differ", "paint a wall", "clean a wall"),
        ("end_differ", "paint a wall", "paint a door"),
        ("longest_swapped", "the smallest planet", "the smallest continent"),
        ("quoted_differ", 'what does "foo" mean', 'what does "bar" mean'),
        ("code_differ", "run it with --force", "run it with --dry-run"),
        ("negation", "can I eat it", "can I not eat it"),
        ("opposites", "buy a house", "sell a house"),
        ("reversed", "from Oslo to Rome", "from Rome to Oslo"),
        ("inverted_same_words", "can dogs eat cats", "can cats eat dogs"),
        ("asks_differ", "why does it rain", "when does it rain"),
        ("tense", "who was president", "who is president"),
        ("person", "my password", "his password"),
        ("modal", "should I go", "may I go"),
        ("content_swapped", "clean the printer", "clean the camera"),
        ("content_extra", "is it safe", "is it safe when pregnant"),
    ],
)
def test_a_difference_shows_in_its_feature_and_not_between_equals(name: str, a: str, b: str) -> None:
    different, equal = vectors(a, [b, a])
    assert different[name] > 0
    assert equal[name] == 0


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("10 km", "10 kilometers"),
        ("a table for two", "a table for 2"),
        ("buying a car", "purchase an automobile"),
        ("a seperate bedroom", "a separate bedroom"),
        ("1,000 people", "1000 people"),
    ],
)
def test_other_spellings_of_one_thing_leave_no_content_unmatched(a: str, b: str) -> None:
    (pair,) = vectors(a, [b])
    assert pair["content_swapped"] == pair["numbers_swapped"] == pair["units_swapped"] == 0


def test_a_batch_says_what_single_pairs_say() -> None:
    asked = "how do I reset my password"
    stored = ["how do I reset my old password", "reset", "", "who resets the password now?"]
    together = features(asked, stored)
    for at, one in enumerate(stored):
        assert (together[at] == features(asked, [one])[0]).all()


def test_no_two_columns_have_one_name() -> None:
    assert len(set(NAMES)) == len(NAMES)
