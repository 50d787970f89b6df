"""Estimate how much the answers of a route say about its questions. Pure.

An endpoint that answers "yes" or "no" gives equal answers to unlike questions. Such an answer says little about the
questions. Let c be the chance that another question gets an equal answer. Let p be the probability that two questions
ask the same, before their answers are compared. If they do, their answers are equal. If they do not, the answers are
equal with probability c. By Bayes' rule an equal answer makes the probability p / (p + (1 - p) c). A rare answer proves
that the questions ask the same, and one that all questions get proves nothing. Cohen's kappa (1960) corrects the
agreement of two raters for chance in the same way.

The chance is an upper bound of the share of the answers in the scope that say the same. The share in the route is its
prior. The chance is at least the share of unlike neighbours in the scope with equal answers. The nearest stored
question is near in topic, so its answer is equal more often than that of any other question. Messages about a stolen
and about a lost card are both "fraud".

Some answers say nothing at all, equal or not (`RouteAnswers.says_nothing`):

- those that are known to be frequent. An apology comes at any time, and an outage answers everything alike;
- all answers of a scope in which the answers of unlike neighbours are equal half of the time.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from gateway.bounded_cache import BoundedCache
from gateway.cache.answer_similarity import SAME_FROM
from gateway.entries import Vector

MEMORY = 1_000  # answers after which an answer's weight is 1/e
RECENT = 32  # last answers of a route, so that an outage shows after a few of them
MAX_ANSWERS = 256  # different answers of a route or scope; the rarest ones are forgotten
MAX_SCOPES = 64  # scopes of a route; the least recently used ones are forgotten

# Before other answers are known, an equal one is taken for usual, whatever its length: the body of an outage is long.
# The prior counts as much as so many answers.
PRIOR_CHANCE, PRIOR_ANSWERS = 0.75, 2.0

# Standard errors above a share: 95 % on one side. So one body for all questions has the chance 1, however many answers
# are known. A new answer has 22 % after 15 others, and 3 % after 100.
BOUND = 1.64

FREQUENT = 0.1  # share from which an answer says nothing about the question that gets it

# Share of unlike neighbours with equal answers from which no answer of the scope says anything about its question.
MOST_EQUAL = 0.5

LEAST_ANSWERS = 8  # fewer answers count as so many, so that no share is great by luck

LEAST_SHOWN = 20  # the same for the share that is shown: an alarm should not come from a few requests

# The verifier's probability of being right below which a neighbour counts as unlike the question. Some of these ask the
# same, and their answers are equal for that. By chance they are at most so many times as often as those of any two
# questions.
UNLIKE_BELOW, NEAR_TOPIC = 0.1, 4.0


@dataclass(frozen=True, slots=True)
class AnswerText:
    """A text to compare: without differences in white space and case, and its embedding if it is known."""

    text: str
    vector: Vector | None = None

    def says_as(self, other: AnswerText) -> bool:
        if self.text == other.text:
            return True
        a, b = self.vector, other.vector
        return a is not None and b is not None and float(a @ b) >= SAME_FROM


class _Answer:
    __slots__ = ("count", "vector")

    def __init__(self) -> None:
        self.count = 0.0
        self.vector: Vector | None = None


class AnswerShares:
    """The answers of a route or of a scope, and how often each was given. Most questions ask something else than the
    others. So the frequency of an answer is the chance of an equal one."""

    def __init__(self) -> None:
        self._answers: dict[str, _Answer] = {}
        self._total = 0.0
        self._unlike = self._unlike_equal = 0.0  # pairs of unlike neighbours, and those with equal answers

    @property
    def largest(self) -> float:
        """The share of the most frequent answer, in [0, 1); 0 where no answer was given twice."""
        most = max((answer.count for answer in self._answers.values()), default=0.0)
        return max(0.0, most - 1) / max(self._total - 1, LEAST_SHOWN)

    @property
    def equal_of_unlike(self) -> float:
        """The share of unlike neighbours whose answers are equal by chance, in [0, 1]."""
        total = max(self._total, LEAST_ANSWERS)
        of_any = sum(answer.count * max(0.0, answer.count - 1) for answer in self._answers.values()) / (total * total)
        return min(_share(self._unlike_equal, self._unlike), NEAR_TOPIC * of_any)

    def share(self, answer: AnswerText) -> float:
        """Return the share of the other answers that say the same, in [0, 1]; 0 without answers. The answer itself is
        one of those that were observed, and does not count."""
        return _share(self._count_of(answer) - 1, self._total - 1)

    @property
    def frequent(self) -> float:
        """The share of the answers that are frequent ones, in [0, 1]."""
        least = FREQUENT * max(self._total - 1, LEAST_ANSWERS) + 1
        counts = sum(answer.count for answer in self._answers.values() if answer.count >= least)
        return counts / max(self._total, LEAST_ANSWERS)

    def chance(self, answer: AnswerText, prior: float = PRIOR_CHANCE) -> float:
        """Return the greatest probability, in (0, 1], that another question may get an answer like this one. `prior` is
        the probability without any answers."""
        same = self._count_of(answer)
        share = _upper_bound(max(0.0, same - 1), self._total - same, prior)
        return max(share, self.equal_of_unlike)

    def observe(self, answer: AnswerText) -> None:
        """Count an answer to a question that the cache could not answer."""
        fade = 1 - 1 / MEMORY
        self._total = self._total * fade + 1
        for other in self._answers.values():
            other.count *= fade
        if answer.text not in self._answers:
            if len(self._answers) >= MAX_ANSWERS:
                self._answers.pop(min(self._answers, key=lambda key: self._answers[key].count))
            self._answers[answer.text] = _Answer()
        record = self._answers[answer.text]
        record.count += 1
        record.vector = answer.vector if record.vector is None else record.vector

    def observe_unlike(self, equal: bool) -> None:
        """Count a pair of questions that ask something else, with `equal` answers or not."""
        fade = 1 - 1 / MEMORY
        self._unlike = self._unlike * fade + 1
        self._unlike_equal = self._unlike_equal * fade + equal

    def _count_of(self, answer: AnswerText) -> float:
        record = self._answers.get(answer.text)
        same = 0.0 if record is None else record.count
        others = [(each.vector, each.count) for each in self._answers.values() if each is not record]
        near = [(vector, count) for vector, count in others if vector is not None]
        if answer.vector is None or not near:
            return same
        alike = np.stack([vector for vector, _ in near]) @ answer.vector >= SAME_FROM
        return same + float(np.array([count for _, count in near])[alike].sum())


class RouteAnswers:
    """The answers of one route: all, those of each scope, and the last ones."""

    def __init__(self) -> None:
        self._all = AnswerShares()
        self._scopes: BoundedCache[str, AnswerShares] = BoundedCache(MAX_SCOPES)
        self._recent: deque[AnswerText] = deque(maxlen=RECENT)

    @property
    def largest(self) -> float:
        """The share of the most frequent answer, in [0, 1); 0 where no answer was given twice."""
        return self._all.largest

    def chance(self, scope: str, answer: AnswerText) -> float:
        """Return the greatest probability, in (0, 1], that another question of the scope may get an answer like this
        one."""
        in_route, shares = self._all.chance(answer), self._scopes.get(scope)
        return in_route if shares is None else shares.chance(answer, in_route)

    def is_frequent(self, scope: str, answer: AnswerText) -> bool:
        """Return whether many questions are known to get an answer like this one: in the scope, in the route, or just
        now."""
        recent = sum(answer.says_as(other) for other in self._recent)
        shares = [_share(recent - 1, len(self._recent) - 1), self._all.share(answer)]
        of_scope = self._scopes.get(scope)
        if of_scope is not None:
            shares.append(of_scope.share(answer))
        return max(shares) >= FREQUENT

    def says_nothing(self, scope: str, stored: AnswerText, fresh: AnswerText) -> bool:
        """Return whether these two answers say nothing about their questions, equal or not."""
        shares = self._scopes.get(scope) or self._all
        return shares.equal_of_unlike >= MOST_EQUAL or any(self.is_frequent(scope, each) for each in (stored, fresh))

    def evidence_chance(self, scope: str, answer: AnswerText) -> float:
        """Return the chance of an answer like this one to another question, in (0, 1], for what an equal one teaches.

        Pairs with a frequent answer are left out. Two unequal answers are so more often than one answer that both
        questions got. Therefore the share of the frequent ones counts as chance, too.
        """
        shares = self._scopes.get(scope) or self._all
        return 1 - (1 - self.chance(scope, answer)) * (1 - shares.frequent)

    def observe(self, scope: str, answer: AnswerText) -> None:
        """Count an answer to a question that the cache could not answer."""
        self._all.observe(answer)
        self._of(scope).observe(answer)
        self._recent.append(answer)

    def observe_unlike(self, scope: str, equal: bool) -> None:
        """Count a pair of questions of a scope that ask something else, with `equal` answers or not."""
        self._of(scope).observe_unlike(equal)

    def _of(self, scope: str) -> AnswerShares:
        shares = self._scopes.get(scope)
        if shares is None:
            shares = AnswerShares()
            self._scopes.put(scope, shares)
        return shares


def _share(same: float, total: float) -> float:
    return max(0.0, same) / max(total, LEAST_ANSWERS)


def _upper_bound(same: float, other: float, prior: float) -> float:
    """Return the upper bound of a share. `prior` is the share without any answers."""
    count = same + max(0.0, other) + PRIOR_ANSWERS
    mean = min(1.0, (same + PRIOR_ANSWERS * prior) / count)
    return min(1.0, mean + BOUND * math.sqrt(mean * (1 - mean) / count))


def right_after_equal(probability: float, chance: float) -> float:
    """Return the probability that two questions ask the same, after their answers were found equal. `probability` is
    the one before that. `chance` is the probability of an equal answer to another question. All are in [0, 1]."""
    return probability / max(probability + (1 - probability) * chance, 1e-12)


def label_weight(probability: float, chance: float, *, equal: bool) -> float:
    """Return how much the comparison of two answers says about their questions, in [0, 1]. They ask the same with
    `probability`, before the comparison. Another question gets an equal answer with the probability `chance`. `equal`
    tells whether the answers are equal.

    An unequal answer proves that the questions ask something else. A share (1 - p) (1 - c) of all pairs has one. The
    other p + (1 - p) c count (1 - c) p / (p + (1 - p) c) each, so (1 - c) p together. So the share of wrong ones among
    what is counted is 1 - p, whatever c is.
    """
    return (1 - chance) * right_after_equal(probability, chance) if equal else 1.0
