"""What a lookup decided about the best stored answer, and why. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.cache.feedback import Relation, relation_of
from gateway.cache.threshold.route_control import Observation, RouteControl
from gateway.cache.threshold.wrong_hits import Label
from gateway.messages import Entry, Refusal, Vector
from gateway.ports import Opinion

# Of the neighbours that are near enough, so many are read from the store: the right one is nearly always the first.
MAX_CANDIDATES = 4
# So near the threshold, a closer look is worth its milliseconds: of the lookups of the
# development stream 11 % were, of banking77, where most questions have a neighbour, 28 %.
GRAY = 0.05


VERBATIM = Opinion(1.0, 1.0)
"""Of a candidate whose question differs in spaces alone."""


@dataclass(slots=True)
class Held:
    """A candidate held against its route's threshold. `reason` None: it may be served."""

    similarity: float
    opinion: Opinion
    threshold: float
    score: float  # the opinion's, moved by what the route has learnt near this question
    probability: float  # that the stored answer is right, by the route's own labels
    reason: Refusal | None

    @property
    def verbatim(self) -> bool:
        """The very same words: there is nothing to be doubted, and nothing to be learnt."""
        return self.opinion is VERBATIM

    @property
    def gray(self) -> bool:
        """Neither clear: too near the threshold for the first opinion."""
        return self.opinion.veto is None and not self.verbatim and abs(self.score - self.threshold) < GRAY


@dataclass(slots=True)
class Judged(Held):
    """The same of a stored answer and a question."""

    entry: Entry
    question: str  # that was asked
    vector: Vector  # of it

    @property
    def relation(self) -> Relation:
        return relation_of(self.entry.scope, self.question, self.entry.fingerprint)

    def observed(self, label: Label) -> Observation:
        return Observation(self.vector, self.score, self.opinion.probability, label)


def hold(
    similarity: float, opinion: Opinion, threshold: float, control: RouteControl | None, shift: float = 0.0
) -> tuple[float, float, Refusal | None]:
    """Holds a candidate against its route's threshold -> score, probability and reason, as in `Held`. `control` None:
    with `min_similarity`, its similarity and nothing else. `shift`: the control's of this question."""
    veto = opinion.veto
    if control is None:
        return similarity, opinion.probability, veto or (None if similarity >= threshold else Refusal.SIMILARITY)
    if opinion is VERBATIM:
        return 1.0, 1.0, None
    score = opinion.score + shift
    reason = veto or (None if score >= threshold else opinion.doubt or Refusal.SIMILARITY)
    return score, 0.0 if veto else control.probability(score), reason


def best(judgements: Sequence[Held]) -> int:
    """Which one to serve or to learn from: what no veto speaks against first, then the highest score."""

    def worth(at: int) -> tuple[bool, bool, float, int]:
        each = judgements[at]
        return each.verbatim, each.opinion.veto is None, each.score, -at

    return 0 if len(judgements) == 1 else max(range(len(judgements)), key=worth)


def same_words(a: str, b: str) -> bool:
    """Equal but for spaces. Where there are lines, those within a line count: they may be the indentation of code."""
    if a == b:
        return True
    if "\n" in a.strip() or "\n" in b.strip():
        return [line.rstrip() for line in a.strip().split("\n")] == [line.rstrip() for line in b.strip().split("\n")]
    return a.split() == b.split()
