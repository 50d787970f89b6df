"""What a lookup decided about the best stored answer, and why. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.cache.control.route_control import Observation, RouteControl
from gateway.cache.control.wrong_hits import Label
from gateway.cache.feedback import Relation
from gateway.messages import Entry, Refusal, Vector
from gateway.messages.values import value
from gateway.ports import Acceptance, Opinion

# Of the neighbours that are near enough, so many are read from the store: the right one is nearly always the first.
MAX_CANDIDATES = 4
# So near the threshold, a closer look is worth its milliseconds: of the lookups of the
# development stream 11 % were, of banking77, where most questions have a neighbour, 28 %.
GRAY = 0.05


VERBATIM = Opinion(1.0, 1.0)
"""Of a candidate whose question differs in spaces alone."""


@value(frozen=True, slots=True)
class Held:
    """A candidate held against its route's threshold. `reason` None: it may be served."""

    similarity: float
    opinion: Opinion
    score: float  # the opinion's, moved by what the route has learnt near this question
    threshold: float
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


@value(frozen=True, slots=True)
class Judged(Held):
    """The same of a stored answer and a question."""

    entry: Entry
    relation: Relation
    vector: Vector  # of the question that was asked

    def observed(self, label: Label) -> Observation:
        return Observation(self.vector, self.score, self.opinion.probability, label)


def judged(
    entry: Entry,
    relation: Relation,
    vector: Vector,
    similarity: float,
    opinion: Opinion,
    control: RouteControl,
    acceptance: Acceptance,
    *,
    shift: float,
    entries: int = 0,
) -> Judged:
    """See `held`."""
    each = held(similarity, opinion, control, acceptance, shift=shift, entries=entries)
    return Judged(
        each.similarity, opinion, each.score, each.threshold, each.probability, each.reason, entry, relation, vector
    )


def near_enough(entry: Entry, relation: Relation, vector: Vector, similarity: float, threshold: float) -> Judged:
    """What `judged` makes of an entry whose similarity reaches a plain threshold."""
    opinion = Opinion(similarity, similarity)
    each = held_plainly(similarity, opinion, threshold)
    return Judged(similarity, opinion, each.score, threshold, each.probability, each.reason, entry, relation, vector)


def held(
    similarity: float,
    opinion: Opinion,
    control: RouteControl,
    acceptance: Acceptance,
    *,
    shift: float,
    entries: int = 0,
) -> Held:
    """Holds one candidate, the best of so many entries (0: unknown), against the route's threshold; with
    `min_similarity` its similarity, and nothing else. `shift`: the control's of this question, looked up once for all
    candidates."""
    threshold = control.threshold(acceptance, entries)
    if acceptance.min_similarity is not None:
        return held_plainly(similarity, opinion, threshold)
    if opinion is VERBATIM:
        return Held(similarity, opinion, 1.0, threshold, 1.0, None)
    score = opinion.score + shift
    reason = opinion.veto
    if reason is None and score < threshold:
        reason = opinion.doubt or Refusal.SIMILARITY
    probability = 0.0 if opinion.veto else control.probability(score)
    return Held(similarity, opinion, score, threshold, probability, reason)


def held_plainly(similarity: float, opinion: Opinion, threshold: float) -> Held:
    """Against a plain threshold."""
    refused = opinion.veto or (None if similarity >= threshold else Refusal.SIMILARITY)
    return Held(similarity, opinion, similarity, threshold, opinion.probability, refused)


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
