"""Answers are extracts: they name their sections, do not repeat themselves and admit what is not there."""

from __future__ import annotations

import numpy as np

from gateway.features.demo.repository.answering import UNKNOWN, Corpus, Style, answer
from gateway.features.demo.repository.encoders import Vectors

STYLE = Style(passages=2, units=2, floor=0.5, spread=0.1)


def unit(*values: float) -> Vectors:
    vector = np.array(values, np.float32)
    return vector / np.linalg.norm(vector)


CORPUS = Corpus(
    titles=["Cats", "Dogs"],
    units=["Cats purr.", "Cats do purr.", "Cats sleep", "Dogs bark."],
    passage_of=np.array([0, 0, 0, 1], np.int32),
    passage_vectors=np.stack([unit(1, 0, 0.1), unit(0, 1, 0.1)]),
    unit_vectors=np.stack([unit(1, 0, 0), unit(1, 0, -0.05), unit(0, 0, 1), unit(0, 1, 0)]),
)


def test_a_question_far_from_every_passage_is_answered_honestly() -> None:
    assert answer(unit(-1, -1, 0), CORPUS, STYLE) == UNKNOWN


def test_an_answer_names_the_section_and_says_nothing_twice() -> None:
    """The second sentence is nearly the first one over again; the third adds something."""
    assert answer(unit(1, 0, 0.8), CORPUS, STYLE) == "Cats purr. Cats sleep. (Cats)"


def test_an_answer_can_be_composed_of_several_passages() -> None:
    assert answer(unit(1, 1, 0), CORPUS, STYLE) == "Cats purr. (Cats)\n\nDogs bark. (Dogs)"


def test_an_empty_corpus_does_not_say() -> None:
    none = np.empty((0, 3), np.float32)
    assert answer(unit(1, 0, 0), Corpus([], [], np.empty(0, np.int32), none, none), STYLE) == UNKNOWN
