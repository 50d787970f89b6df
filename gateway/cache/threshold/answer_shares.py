"""Estimate how often the answer to another question is the same. Pure.

An endpoint that answers "yes" or "no" gives equal answers to unlike questions. Such an answer says little about the
questions. Let s be the share of the answers to other questions that are equal to this one. Let p be the probability
that two questions ask the same, before their answers are compared. If they do, their answers are equal. If they do not,
the answers are equal with probability s. By Bayes' rule an equal answer makes the probability p / (p + (1 - p) s). A
rare answer proves that the questions ask the same, and one that all questions get proves nothing. Cohen's kappa (1960)
corrects the agreement of two raters for chance in the same way.
"""

from __future__ import annotations

import math

from gateway.cache.answer_similarity import SAME_FROM
from gateway.messages import Vector

MEMORY = 1_000  # answers after which an answer's weight is 1/e
MAX_ANSWERS = 256  # different answers of a route; the rarest ones are forgotten
# Before other answers are known, the length of a text says how likely an equal one is by chance: a word or two is the
# name of a class, and each further pair of words halves the chance. It counts as much as `PRIOR_ANSWERS` answers.
PRIOR_ANSWERS, SHORTEST, LONGER = 4.0, 0.75, 0.5


class _Answer:
    __slots__ = ("count", "vector")

    def __init__(self) -> None:
        self.count = 0.0
        self.vector: Vector | None = None


class AnswerShares:
    """The answers of one route, and how often each was given. Most questions of a route ask something else than the
    others. So the frequency of an answer is the chance of an equal one."""

    def __init__(self) -> None:
        self._answers: dict[str, _Answer] = {}
        self._total = 0.0

    @property
    def largest(self) -> float:
        """The share of the most frequent answer, in [0, 1]; 0 without answers."""
        most = max((answer.count for answer in self._answers.values()), default=0.0)
        return most / (self._total + PRIOR_ANSWERS)

    def chance(self, text: str, vector: Vector | None = None) -> float:
        """Return the probability, in (0, 1), that another question gets an answer like `text`. `vector`: of the text;
        None: answers in other words are not counted.

        The answer that is compared is one of those that were observed, and does not count.
        """
        same = sum(answer.count for key, answer in self._answers.items() if _is_same(key, answer, text, vector))
        other = max(0.0, self._total - same)
        same = max(0.0, same - 1.0)
        return (same + PRIOR_ANSWERS * _prior_chance(text)) / (same + other + PRIOR_ANSWERS)

    def observe(self, text: str, vector: Vector | None = None) -> None:
        """Count an answer to a question that the cache could not answer."""
        fade = 1 - 1 / MEMORY
        self._total = self._total * fade + 1
        for answer in self._answers.values():
            answer.count *= fade
        if text not in self._answers:
            if len(self._answers) >= MAX_ANSWERS:
                self._answers.pop(min(self._answers, key=lambda key: self._answers[key].count))
            self._answers[text] = _Answer()
        answer = self._answers[text]
        answer.count += 1
        answer.vector = vector if answer.vector is None else answer.vector


def _prior_chance(text: str) -> float:
    pairs = max(0, len(text.split()) - 2) / 2
    return SHORTEST * math.pow(LONGER, pairs)


def _is_same(key: str, answer: _Answer, text: str, vector: Vector | None) -> bool:
    if key == text:
        return True
    return vector is not None and answer.vector is not None and float(vector @ answer.vector) >= SAME_FROM


def right_after_equal(probability: float, chance: float) -> float:
    """Return the probability that two questions ask the same, after their answers were found equal. `probability`:
    before that. `chance`: that of an equal answer to another question. All are in [0, 1]."""
    return probability / max(probability + (1 - probability) * chance, 1e-12)
