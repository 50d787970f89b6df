"""Judge the candidates of a lookup: compare each score with the route's threshold, and give the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gateway.cache.decoys import Decoys
from gateway.cache.exact_parts import differs_unseen
from gateway.cache.feedback import Counterexamples
from gateway.cache.load_level import MAX_SECOND_OPINIONS, EncoderLoad
from gateway.cache.spelling import spelling_veto
from gateway.cache.templates import VaryingParts, varying_parts
from gateway.cache.threshold.route_control import Observation, RouteControl
from gateway.cache.threshold.wrong_hits import Label
from gateway.entries import Embedding, Entry
from gateway.errors import EmbedderUnavailable
from gateway.outcomes import Refusal
from gateway.ports import (
    VERBATIM,
    Acceptance,
    Embedder,
    EvaluatedCandidate,
    Judgement,
    Opinion,
    StoredCandidate,
    Verifier,
)
from gateway.text_forms import fold_spaces

# Neighbours that are read from the store. The right one is nearly always the first.
MAX_CANDIDATES = 4


def observation_of(judged: Judgement, label: Label, chance: float = 0.0) -> Observation:
    return Observation(judged.vector, judged.score, judged.opinion.probability, label, judged.client, chance)


def evaluate(
    similarity: float, opinion: Opinion, threshold: float, control: RouteControl | None, shift: float = 0.0
) -> tuple[float, float, Refusal | None]:
    """Compare a candidate with its route's threshold; return score, probability and reason, as in `EvaluatedCandidate`.

    `control` is None on a route with `min_similarity`, since the similarity alone counts there. `shift` is the
    control's for this question.
    """
    veto = opinion.veto
    if control is None:
        return similarity, opinion.probability, veto or (None if similarity >= threshold else Refusal.SIMILARITY)
    if opinion is VERBATIM:
        return 1.0, 1.0, None
    score = opinion.score if opinion.is_same else opinion.score + shift
    reason = veto or (None if score >= threshold else opinion.doubt or Refusal.SIMILARITY)
    return score, 0.0 if veto else control.probability(score), reason


def best_index(judgements: Sequence[EvaluatedCandidate]) -> int:
    """Return the index of the best judgement: those without a veto first, then the highest score."""

    def worth(at: int) -> tuple[bool, bool, float, int]:
        judgement = judgements[at]
        return judgement.verbatim, judgement.opinion.veto is None, judgement.score, -at

    return 0 if len(judgements) == 1 else max(range(len(judgements)), key=worth)


def is_verbatim(a: str, b: str) -> bool:
    """Return whether two texts are equal but for spaces that carry no meaning."""
    return a == b or fold_spaces(a) == fold_spaces(b)


# Two prompts of one template are compared by the parts that differ.
async def varying_parts_opinion(
    parts: VaryingParts, whole: Opinion, embedder: Embedder, verifier: Verifier, owner: str
) -> Opinion:
    """Return the opinion on the differing parts where it is worse than `whole`, the opinion on both prompts.

    `owner` is that of `Embedder.embed`. Raise `EmbedderUnavailable`.
    """
    if not parts.query or not parts.stored:
        return replace(whole, veto=Refusal.TEMPLATE)
    query, stored = await embedder.embed(parts.query, owner), await embedder.embed(parts.stored, owner)
    similarity = min(1.0, max(0.0, float(query.vector @ stored.vector)))
    candidate = StoredCandidate(parts.stored, similarity)
    (first,) = verifier.opinions(parts.query, [candidate])
    inner = await verifier.second_opinion(parts.query, candidate, first) or replace(first, ceiling=None)
    if inner.veto is None and inner.score >= whole.score:
        return whole
    return replace(inner, doubt=Refusal.TEMPLATE)


# How likely a stored answer fits a question: each candidate's score against its route's threshold. The semantic cache,
# `nearhit explain` and `make quality` share this code.
NeighbourEntry = tuple[Entry, float]
"""A stored answer, and the similarity of its question in [0, 1]."""


@dataclass(slots=True)
class CandidateScores:
    """The scores of the candidates for one question, the most similar first. `judged` has the same order.

    `best_index` is the one to serve or to learn from. `entries` is the size of the searched cache. `shift` comes from
    the labels near the question. `owner` is that of `Embedder.embed`.
    """

    question: str
    owner: str
    embedding: Embedding
    neighbours: Sequence[NeighbourEntry]
    control: RouteControl
    entries: int
    threshold: float
    shift: float
    client: str = ""  # the one that asks
    judged: list[Judgement] = field(default_factory=list)
    best_index: int = 0
    parts: VaryingParts | None = None  # the differing parts of question and best candidate, if both follow one template
    unread: tuple[int, ...] = ()  # the candidates that a second opinion could get served, the best first
    second: Opinion | None = None  # the second opinion on the chosen one, or None without a result

    @property
    def chosen(self) -> Judgement:
        return self.judged[self.best_index]


def floor_of(acceptance: Acceptance, verifier: Verifier) -> float:
    """Return the similarity below which no neighbour is read."""
    plain = acceptance.min_similarity
    return verifier.floor if plain is None else plain


def _open_candidates(scores: CandidateScores) -> tuple[int, ...]:
    """Return the candidates whose second opinion could change the decision, the best first. Verbatim ones need none."""
    if scores.chosen.verbatim:
        return ()
    readable = [at for at, judged in enumerate(scores.judged) if _may_turn(judged.opinion, scores)]
    return tuple(sorted(readable, key=lambda at: (-scores.judged[at].score, at))[:MAX_SECOND_OPINIONS])


def _may_turn(opinion: Opinion, scores: CandidateScores) -> bool:
    """Return whether the second opinion may be on the other side of the threshold than the one that stands without
    it."""
    if opinion.veto is not None or opinion.ceiling is None:
        return False
    if opinion.estimate is None:
        return max(opinion.score, opinion.ceiling) + scores.shift >= scores.threshold
    return opinion.ceiling + scores.shift >= scores.threshold > opinion.least + scores.shift


def _parts(scores: CandidateScores) -> VaryingParts | None:
    """Return the differing parts of question and best candidate, where both follow one template and differ."""
    chosen = scores.chosen
    if chosen.verbatim or chosen.opinion.is_same or chosen.opinion.veto is not None:
        return None
    stored = [entry.question or "" for entry, _ in scores.neighbours]
    parts = varying_parts(scores.question, stored[scores.best_index], stored)
    return None if parts is None or parts.is_same else parts


class CandidateScorer:
    """`CandidateScorer` scores candidates by one policy. `counterexamples` are relations that clients called wrong."""

    def __init__(
        self,
        verifier: Verifier,
        embedder: Embedder,
        acceptance: Acceptance,
        counterexamples: Counterexamples,
        decoys: Decoys | None = None,
        load: EncoderLoad | None = None,
    ) -> None:
        """`load` bounds the candidates that get a second opinion. Without it there is no bound."""
        self._load = load
        self._verifier = verifier
        self._embedder = embedder
        self._acceptance = acceptance
        self._is_similarity_only = acceptance.min_similarity is not None
        self._counterexamples = counterexamples
        self._decoys = Decoys() if decoys is None else decoys

    def of(
        self,
        question: str,
        owner: str,
        embedding: Embedding,
        neighbours: Sequence[NeighbourEntry],
        control: RouteControl,
        entries: int,
        opinions: Sequence[Opinion] | None = None,
        client: str = "",
        *,
        is_part: bool = False,
    ) -> CandidateScores:
        """Score at least one neighbour. Without `opinions` on the neighbours, ask the verifier. `client` sent the
        request; with `""` the labels of all clients count (`gateway.cache.threshold.client_labels`). `is_part` is that
        of `RouteControl.threshold`."""
        threshold = control.threshold(self._acceptance, entries, client, is_part=is_part)
        shift = 0.0 if self._is_similarity_only else control.shift(embedding.vector, client)
        scores = CandidateScores(question, owner, embedding, neighbours, control, entries, threshold, shift, client)
        if opinions is None:
            opinions = self._opinions(question, neighbours, entries)
        for (entry, similarity), opinion in zip(neighbours, opinions, strict=True):
            scores.judged.append(self._evaluate(scores, entry, similarity, opinion))
        if len(neighbours) > 1:
            scores.best_index = best_index(scores.judged)
        if not self._is_similarity_only:
            self._decide_by_estimates(scores)
            scores.parts = None if scores.unread else _parts(scores)
            if self._load is not None and self.needs_second_opinion(scores):
                self._leave_out_pairs(scores, self._load)
        return scores

    def _decide_by_estimates(self, scores: CandidateScores) -> None:
        """Decide the candidates that the second opinion cannot turn. If one of them may be served, no other is read."""
        scores.unread = _open_candidates(scores)
        served = list[int]()
        for at, ((entry, similarity), judged) in enumerate(zip(scores.neighbours, scores.judged, strict=True)):
            estimate = judged.opinion.estimate
            if estimate is not None and not _may_turn(judged.opinion, scores):
                scores.judged[at] = self._evaluate(scores, entry, similarity, estimate)
                if scores.judged[at].reason is None:
                    served.append(at)
        if served:
            scores.best_index, scores.unread = max(served, key=lambda at: (scores.judged[at].score, -at)), ()
        elif not scores.unread:
            scores.best_index = best_index(scores.judged)

    def _leave_out_pairs(self, scores: CandidateScores, load: EncoderLoad) -> None:
        """Drop the second opinions for which the load leaves no room. Refuse the candidates if it leaves none at all:
        their first score alone was never meant to serve them."""
        wanted, room = scores.unread or (scores.best_index,), load.pairs
        load.count_pairs(len(wanted) - room)
        if room:
            scores.unread = scores.unread[:room]
            return
        for at in wanted:
            (entry, similarity), opinion = scores.neighbours[at], scores.judged[at].opinion
            scores.judged[at] = self._evaluate(scores, entry, similarity, replace(opinion, veto=Refusal.LOAD))
        scores.unread, scores.parts = (), None

    def needs_second_opinion(self, scores: CandidateScores) -> bool:
        """Return whether a closer look may change the decision: a candidate could be served, or the best one follows
        one template with the question."""
        return bool(scores.unread) or scores.parts is not None

    async def apply_second_opinion(self, scores: CandidateScores) -> None:
        """Check the candidates that could be served more closely, and choose the first that may be, or the best.

        The next one is read only if the one before is refused. Without the embedder, candidates of one template are
        refused.
        """
        second = dict[int, Opinion | None]()
        for at in scores.unread:
            (entry, similarity), first = scores.neighbours[at], scores.judged[at].opinion
            candidate = StoredCandidate(entry.question or "", similarity, scores.entries)
            second[at] = await self._verifier.second_opinion(scores.question, candidate, first)
            scores.judged[at] = self._evaluate(scores, entry, similarity, second[at] or replace(first, ceiling=None))
            if scores.judged[at].reason is None:
                break
        if second:
            scores.best_index = max(second, key=lambda at: (scores.judged[at].score, -at))
            scores.second = second[scores.best_index]
            scores.parts = _parts(scores)
        if scores.parts is not None:
            await self._compare_parts(scores, scores.parts)

    async def _compare_parts(self, scores: CandidateScores, parts: VaryingParts) -> None:
        whole = scores.chosen.opinion
        try:
            closer = await varying_parts_opinion(parts, whole, self._embedder, self._verifier, scores.owner)
        except EmbedderUnavailable:
            closer = replace(whole, veto=Refusal.TEMPLATE)
        scores.judged[scores.best_index] = self._evaluate(scores, *scores.neighbours[scores.best_index], closer)

    def _opinions(self, question: str, neighbours: Sequence[NeighbourEntry], entries: int) -> Sequence[Opinion]:
        if self._is_similarity_only:
            return [
                Opinion(similarity, similarity, veto=spelling_veto(question, entry.question or ""))
                for entry, similarity in neighbours
            ]
        candidates = [StoredCandidate(entry.question or "", similarity, entries) for entry, similarity in neighbours]
        return [
            VERBATIM if is_verbatim(question, candidate.question) else opinion
            for candidate, opinion in zip(candidates, self._verifier.opinions(question, candidates), strict=True)
        ]

    def _evaluate(self, scores: CandidateScores, entry: Entry, similarity: float, opinion: Opinion) -> Judgement:
        """Judge an opinion on a candidate by the route's threshold."""
        if self._counterexamples.is_refuted(entry.scope, scores.question, entry.fingerprint):
            opinion = Opinion(opinion.score, 0.0, veto=Refusal.COUNTEREXAMPLE)
        elif differs_unseen(scores.question, entry.question or ""):
            opinion = Opinion(opinion.score, 0.0, veto=Refusal.HIDDEN)
        elif (
            self._decoys.in_use
            and opinion is not VERBATIM
            and self._decoys.repel(entry.fingerprint, scores.embedding.vector, similarity)
        ):
            opinion = Opinion(opinion.score, 0.0, veto=opinion.veto or Refusal.DECOY)
        threshold, control = scores.threshold, None if self._is_similarity_only else scores.control
        score, probability, reason = evaluate(similarity, opinion, threshold, control, scores.shift)
        return Judgement(
            similarity,
            opinion,
            threshold,
            score,
            probability,
            reason,
            entry,
            scores.question,
            scores.embedding.vector,
            client=scores.client,
        )
