"""What a lookup decided about the best stored answer, and why. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.cache.feedback import Relation, relation_of
from gateway.cache.threshold.route_control import Observation, RouteControl
from gateway.cache.threshold.wrong_hits import Label
from gateway.messages import Refusal
from gateway.ports import VERBATIM, Held, Judged, Opinion

# Of the neighbours that are near enough, so many are read from the store: the right one is nearly always the first.
MAX_CANDIDATES = 4


def relation_between(judged: Judged) -> Relation:
    """The question that was asked and the stored answer, as feedback names them."""
    return relation_of(judged.entry.scope, judged.question, judged.entry.fingerprint)


def observation_of(judged: Judged, label: Label) -> Observation:
    return Observation(judged.vector, judged.score, judged.opinion.probability, label)


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
