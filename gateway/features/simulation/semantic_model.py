"""Models the semantic lookup of a replayed request, with the candidates and the judgement of the gateway. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gateway.cache.freshness import freshness_of
from gateway.cache.judgement import MAX_CANDIDATES, best_index, evaluate
from gateway.cache.threshold.route_control import RouteControl
from gateway.config.policy.schema import SemanticRule
from gateway.entries import CacheDirectives, Lifetime
from gateway.features.simulation.cache_model import CacheModel, Key, StoredAnswer
from gateway.features.simulation.dataset import Node, TrafficDay
from gateway.outcomes import Refusal
from gateway.ports import VERBATIM, EvaluatedCandidate, Opinion
from gateway.steps.traffic_log.format import RecordedRequest

NO_VECTOR = np.zeros(1, np.float32)  # the traffic has the shift of the score instead of the vector
Ask = Callable[[str, str, float], Opinion | None]
"""Asks the verifier about a question, a stored question and their similarity. None means that it cannot decide."""


class LookupResult(NamedTuple):
    """The result of a lookup. If `stored` is None, nothing may be served."""

    stored: StoredAnswer | None
    similarity: float | None
    score: float | None  # None: the hit is certain, or its route has a fixed similarity threshold
    refusal: str | None
    unjudged: bool


NOTHING = LookupResult(None, None, None, None, False)


@dataclass(frozen=True, slots=True)
class SemanticModel:
    """The semantic lookups of one replay. If `ask` is None, candidates without a recorded opinion stay unjudged."""

    day: TrafficDay
    cache: CacheModel
    ask: Ask | None

    def of(
        self,
        row: RecordedRequest,
        node: Node,
        scope: Key,
        rule: SemanticRule,
        lifetime: Lifetime,
        control: RouteControl,
        directives: CacheDirectives,
    ) -> LookupResult:
        within = self.cache.scopes.get(scope)
        if not within:
            return NOTHING
        plain = rule.acceptance.min_similarity
        floor = self.day.heading.floor if plain is None else plain
        candidates, expired, unjudged = [], False, False
        met = 0
        for other, similarity in self.day.candidates[node]:
            stored = within.get(other)
            if stored is None or stored.ready > row.at:
                continue
            if stored.expires <= row.at:  # the store has expired it
                del within[other]
                continue
            met += 1
            if met > MAX_CANDIDATES:
                break
            if similarity < floor:
                break
            if not freshness_of(stored, lifetime, directives, row.at).fresh:
                expired = True
                continue
            opinion = self._opinion(node, other, similarity, plain=plain is not None)
            if opinion is None:
                unjudged = True
            else:
                candidates.append((stored, similarity, opinion))
        if not candidates:
            reason = Refusal.EXPIRED if expired else Refusal.SIMILARITY if met and not unjudged else None
            return LookupResult(None, None, None, reason, unjudged)
        entries = len(within)
        threshold, by = control.threshold(rule.acceptance, entries), control if plain is None else None
        judgements = [
            EvaluatedCandidate(similarity, opinion, threshold, *evaluate(similarity, opinion, threshold, by, row.shift))
            for _, similarity, opinion in candidates
        ]
        at = best_index(judgements)
        return self._chosen(
            candidates[at][0], judgements[at], control, entries, plain=plain is not None, unjudged=unjudged
        )

    @staticmethod
    def _chosen(
        stored: StoredAnswer,
        chosen: EvaluatedCandidate,
        control: RouteControl,
        entries: int,
        *,
        plain: bool,
        unjudged: bool,
    ) -> LookupResult:
        doubtful = not plain and not chosen.verbatim
        if doubtful and chosen.opinion.veto is None:
            control.record_neighbour(chosen.score, entries)
        if chosen.reason is not None:
            return LookupResult(None, chosen.similarity, chosen.score, str(chosen.reason), unjudged)
        control.hit()
        return LookupResult(stored, chosen.similarity, chosen.score if doubtful else None, None, False)

    def _opinion(self, node: Node, other: Node, similarity: float, *, plain: bool) -> Opinion | None:
        if plain:
            return Opinion(similarity, similarity)
        if node == other:
            return VERBATIM
        known = self.day.opinions.get((node, other))
        if known is None and self.ask is not None:
            question, stored = self.day.texts.get(node), self.day.texts.get(other)
            if question is not None and stored is not None:
                known = self.ask(question, stored, similarity)
                if known is not None:
                    self.day.opinions[node, other] = known
        return known
