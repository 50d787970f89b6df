"""Explain how a route judges two prompts: the judgement with everything that led to it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from gateway.outcomes import Bypass, Refusal
from gateway.ports import Acceptance, Judgement, Opinion

SCOPE_DIGITS = 12  # of a scope's name that texts show


@dataclass(frozen=True, slots=True)
class ExplainedPair:
    """A judgement and its inputs. `reason` is None if the stored answer may be served.

    Similarity, floor and probabilities are in [0, 1].
    """

    route: str
    promise: str  # the hit requirement of the route's policy
    verifier: str  # the verifier's basis
    similarity: float
    floor: float  # the similarity below which no neighbour is read
    features: dict[str, float]  # the features that differ between the two, by name
    opinion: float | None  # the verifier's first score, or None if similarity alone decides
    opinion_probability: float | None  # of the first score, by the verifier's own calibration
    read_closely: bool  # a second opinion could have reached the threshold
    second_opinion: float | None  # the score of the slower check, or None without a result
    few_entries: bool  # the weights of few entries gave that score, as the scope has few
    linked: bool  # a link names the stored answer for this question, so its score does not matter
    framed: bool  # two prompts of one template: only the differing parts were compared
    evidence_shift: float  # how far labels near the question move the score
    labels: int  # labelled lookups that the route has learned from
    score: float
    threshold: float
    scope: str | None  # hex, the scope of the threshold; None for a cache of the usual size
    entries: int  # stored answers in that scope, or 0 if not known
    other_scopes: int  # further scopes that have the stored question
    probability: float | None  # that the stored answer is right, by the route's own labels
    veto: str | None
    doubt: str | None
    served: bool
    reason: str | None  # a member of Refusal or Bypass
    why: str  # the decision in a sentence

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ExplainedPair:
        """Return the pair that `as_json` wrote, ignoring unknown keys.

        Raise ValueError where a key is missing or has another type.
        """
        names = [field.name for field in fields(cls)]
        missing = [name for name in names if name not in value]
        if missing:
            raise ValueError(f"{missing[0]!r} is missing")
        pair = cls(**{name: value[name] for name in names})
        try:
            pair.as_text()
        except (TypeError, AttributeError) as error:
            raise ValueError(str(error)) from None
        return pair

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def as_text(self) -> str:
        rows = {
            "route": f"{self.route}, {self.promise}, {self._learning_text()}",
            "verifier": self.verifier,
            "similarity": f"{self.similarity:.4f}, at least {self.floor:.2f} is needed",
            "features": ", ".join(f"{name} {value:.3g}" for name, value in self.features.items()) or "all neutral",
            "opinion": self._opinion_text(),
            "second opinion": self._second_opinion_text(),
            "template": "same template: the differing parts were compared" if self.framed else "none",
            "link": "the answers of the two were equal" if self.linked else "none",
            "evidence": f"{self.evidence_shift:+.4f}",
            "score": f"{self.score:.4f}",
            "threshold": f"{self.threshold:.4f}, {self._scope_text()}",
            "probability": "not known" if self.probability is None else f"{self.probability:.3f}",
            "veto": self.veto or "none",
            "doubt": self.doubt or "none",
            "decision": f"{'served' if self.served else 'not served'}: {self.why}",
        }
        width = max(map(len, rows))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())

    def _scope_text(self) -> str:
        if self.promise.startswith("min_similarity"):
            return "in every scope of the route"
        if self.scope is None:
            return "for a cache of the usual size, because no known scope has the stored question"
        answers = "1 stored answer" if self.entries == 1 else f"{self.entries} stored answers"
        others = f", the latest of {self.other_scopes + 1} with this question" if self.other_scopes else ""
        return f"in scope {self.scope[:SCOPE_DIGITS]} with {answers}{others}"

    def _learning_text(self) -> str:
        return "nothing learnt yet" if self.labels == 0 else f"learnt from {self.labels} labelled lookups"

    def _opinion_text(self) -> str:
        if self.opinion is None or self.opinion_probability is None:
            return "not used: similarity alone decides"
        return f"{self.opinion:.4f}, p={self.opinion_probability:.3f}"

    def _second_opinion_text(self) -> str:
        if self.second_opinion is not None:
            return f"{self.second_opinion:.4f}{', by the weights of few entries' if self.few_entries else ''}"
        return "no result" if self.read_closely else "not run: it could not change the decision"


@dataclass(frozen=True, slots=True)
class LookupDetails:
    """The inputs of a judgement."""

    route: str
    acceptance: Acceptance
    verifier: str  # the verifier's basis
    floor: float  # similarity, in [0, 1]
    features: Mapping[str, float]
    labels: int
    read_closely: bool = False
    second: Opinion | None = None
    framed: bool = False
    scope: str | None = None
    entries: int = 0
    other_scopes: int = 0
    partial: Bypass | None = None  # why the two are not compared


def build_explanation(first: Judgement, last: Judgement, details: LookupDetails) -> ExplainedPair:
    """Build the explanation of the judgements after the verifier's first opinion and at the end."""
    plain = details.acceptance.min_similarity is not None
    reason = _reason(last, details)
    return ExplainedPair(
        route=details.route,
        promise=promise_of(details.acceptance),
        verifier=details.verifier,
        similarity=last.similarity,
        floor=details.floor,
        features=dict(details.features),
        opinion=None if plain else first.opinion.score,
        opinion_probability=None if plain else first.opinion.probability,
        read_closely=details.read_closely,
        second_opinion=None if details.second is None else details.second.score,
        few_entries=details.second is not None and details.second.is_of_few,
        linked=last.linked,
        framed=details.framed,
        evidence_shift=0.0 if plain or last.verbatim or last.linked else last.score - last.opinion.score,
        labels=details.labels,
        score=last.score,
        threshold=last.threshold,
        scope=details.scope,
        entries=details.entries,
        other_scopes=details.other_scopes,
        probability=None if plain else last.probability,
        veto=last.opinion.veto,
        doubt=last.opinion.doubt,
        served=reason is None,
        reason=reason,
        why=_explain_decision(last, details, plain),
    )


def promise_of(acceptance: Acceptance) -> str:
    if acceptance.max_wrong_hits is not None:
        return f"max_wrong_hits {acceptance.max_wrong_hits:.2%}"
    return f"min_similarity {acceptance.min_similarity}"


def _reason(judged: Judgement, details: LookupDetails) -> str | None:
    if details.partial is not None:
        return details.partial
    return Refusal.SIMILARITY if judged.similarity < details.floor and not judged.linked else judged.reason


def _explain_decision(judged: Judgement, details: LookupDetails, plain: bool) -> str:
    if details.partial is Bypass.UNREADABLE:
        return "unreadable: one of the two has words that the embedding model cannot read"
    if details.partial is Bypass.PERSONAL_DATA:
        return f"{details.partial}: the prompts have different personal data, or data that keep them out of the caches"
    if details.partial is not None:
        return f"{details.partial}: the prompts differ outside the question itself, or the embedding model cuts it"
    if judged.linked:
        return "link: a fresh answer to the question equalled the stored one, whatever the score"
    if judged.similarity < details.floor and not plain:
        return f"similarity: {judged.similarity:.4f} is below {details.floor:.2f}, the minimum for a neighbour"
    measured = f"the {'similarity' if plain else 'score'} {judged.score:.4f}"
    if judged.verbatim:
        return "the same words"
    if judged.reason is None:
        return f"{measured} reaches the threshold {judged.threshold:.4f}"
    if judged.opinion.veto is Refusal.DECOY:
        return "decoy: the stored answer was wrong for a question that is more like this one, whatever the score"
    if judged.opinion.veto is not None:
        return f"{judged.opinion.veto}: a veto, whatever the score"
    return f"{judged.reason}: {measured} is below the threshold {judged.threshold:.4f}"
