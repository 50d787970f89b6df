"""Makes the gateway's decision about a semantic hit, without its stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from gateway.cache.decoys import Decoys
from gateway.cache.feedback import Counterexamples
from gateway.cache.judgement import CandidateScorer, NeighbourEntry
from gateway.cache.threshold.route_control import Observation, RouteControl
from gateway.entries import Embedding, Vector
from gateway.ports import Acceptance, Embedder, Judgement, TextEncoder, Verifier


@dataclass(frozen=True, slots=True)
class StoredQuestion:
    """The fields of an `Entry` that a judgement needs."""

    fingerprint: str
    question: str
    scope: str = ""


class CachingEmbedder:
    """An `Embedder` without waiting; keeps what it has embedded."""

    def __init__(self, encoder: TextEncoder) -> None:
        self.fingerprint, self.dimension = encoder.fingerprint, encoder.dimension
        self._encoder = encoder
        self._known: dict[str, Embedding] = {}

    async def embed(self, text: str, owner: str = "") -> Embedding:
        return self.embed_nowait(text, owner)

    def embed_nowait(self, text: str, owner: str = "") -> Embedding:
        if text not in self._known:
            self._known[text] = self._encoder.encode([text])[0]
        return self._known[text]


class Decision:
    """The decision of one route with one promise. `entries`: the size of the cache that the neighbours are from."""

    def __init__(
        self,
        verifier: Verifier,
        embedder: Embedder,
        control: RouteControl,
        max_wrong_hits: float,
        decoys: Decoys | None = None,
    ) -> None:
        acceptance = Acceptance(max_wrong_hits=max_wrong_hits)
        self._scorer = CandidateScorer(verifier, embedder, acceptance, Counterexamples(), decoys)
        self._control = control
        self.entries = 0

    async def judge(self, question: str, vector: Vector, near: Sequence[tuple[StoredQuestion, float]]) -> Judgement:
        """Judge a question. `near`: stored questions, the most similar first, with their similarity in [0, 1]."""
        embedding = Embedding(vector, 0, False)
        scores = self._scorer.of(
            question, "", embedding, cast(Sequence[NeighbourEntry], near), self._control, self.entries
        )
        if self._scorer.needs_second_opinion(scores):
            await self._scorer.apply_second_opinion(scores)
        return scores.chosen


class FixedThreshold(RouteControl):
    """A threshold that nothing moves. It gathers evidence as a real one does."""

    def __init__(self, verifier: Verifier, threshold: float, *, learn: bool = True) -> None:
        super().__init__(verifier.prior, verifier.basis, learn=learn)
        self._fixed = threshold

    def threshold(self, acceptance: Acceptance, entries: int = 0, client: str = "", *, is_part: bool = False) -> float:
        return self._fixed

    def advance(self, requests: int) -> None:
        return  # what fades with time moves the threshold alone


class FrozenEvidence(FixedThreshold):
    """A fixed threshold with the evidence that it was given. It learns nothing more."""

    def learn(self, observation: Observation) -> bool:
        return False
