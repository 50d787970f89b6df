"""Fixed instructions around varying content: alike everywhere but where it matters."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cache.lexical import difference, quoted_in, read, transforms
from gateway.outcomes import Refusal


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ("Translate to French: good morning", "Translate to French: good night"),
        ("Please summarise this: the cat sat on the mat", "Please summarise this: the dog sat on the mat"),
        ("Could you please rewrite: we are happy to help", "Could you please rewrite: we are unable to help"),
        ("Classify the sentiment: I loved it", "Classify the sentiment: I loathed it"),
        ("\u00dcbersetze ins Englische: der Hund", "\u00dcbersetze ins Englische: die Katze"),
        ("Traduce al ingl\u00e9s: el perro", "Traduce al ingl\u00e9s: el gato"),
        ('What does "ubiquitous" mean?', 'What does "pernicious" mean?'),
        ("Why does `list.sort` return None?", "Why does `list.append` return None?"),
        ("What is wrong here?\n```\nx = 1\n```", "What is wrong here?\n```\nx = 2.5\n```"),
    ],
)
def test_another_payload_is_another_question(stored: str, asked: str) -> None:
    assert difference(read(asked), read(stored)) is Refusal.PAYLOAD


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ("Translate to French: good morning", "translate to French:  Good morning!"),
        ('What does "ubiquitous" mean?', "What does ubiquitous mean?"),
        ("How do I translate a page in the browser?", "How can I translate a page in a browser?"),
        ("What is a summary judgment?", "what's a summary judgment"),
    ],
)
def test_the_same_payload_in_other_dress_is_the_same_question(stored: str, asked: str) -> None:
    assert difference(read(asked), read(stored)) is None


def test_only_what_begins_a_request_makes_it_a_transformation() -> None:
    assert transforms("Hi, please translate this")
    assert not transforms("What does it mean to translate something?")


@given(st.text(max_size=300))
def test_any_text_is_read(text: str) -> None:
    lexical = read(text)
    assert difference(lexical, lexical) is None


@pytest.mark.parametrize(
    "text", ['"' * 50_000, "`" * 50_000, "please " * 15_000, "```" + "a" * 100_000, "\u201c" * 40_000]
)
def test_hostile_texts_take_linear_time(text: str) -> None:
    """Not a measurement: quadratic time would be minutes."""
    started = time.process_time()
    quoted_in(text)
    transforms(text)
    assert time.process_time() - started < 2.0
