"""The gateway's own decision about a semantic hit, without its stores: `SemanticLookup`, handed what it would read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

from gateway.cache.control.route_control import Observation, RouteControl
from gateway.cache.feedback import Counterexamples
from gateway.cache.freshness import Freshness
from gateway.cache.judged import Judged
from gateway.cache.served import ServedHits
from gateway.messages import Call, Embedding, Entry, Neighbour, Request, Vector
from gateway.observing.telemetry import Telemetry
from gateway.policy.model import Semantic
from gateway.ports import Acceptance, Embedder, TextEncoder, VectorIndex, Verifier
from gateway.stages.feedback import Memory
from gateway.stages.semantic_lookup import SemanticLookup


@dataclass(frozen=True, slots=True)
class Stored:
    """What a judgement needs of an `Entry`."""

    fingerprint: str
    question: str


class Encoded:
    """An `Embedder` without waiting; keeps what it has embedded."""

    def __init__(self, encoder: TextEncoder) -> None:
        self.fingerprint, self.dimension = encoder.fingerprint, encoder.dimension
        self._encoder = encoder
        self._known: dict[str, Embedding] = {}

    async def embed(self, text: str) -> Embedding:
        return self.at_hand(text)

    def at_hand(self, text: str) -> Embedding:
        if text not in self._known:
            self._known[text] = self._encoder.encode([text])[0]
        return self._known[text]


class Decision(SemanticLookup):
    """Of one route with one promise. The stage's own methods decide; this only hands them what they read."""

    def __init__(self, verifier: Verifier, embedder: Embedder, control: RouteControl, max_wrong_hits: float) -> None:
        self._verifier, self._embedder = verifier, embedder
        self._control = control
        self._telemetry = Telemetry()
        self._rule = Semantic(math.inf, Acceptance(max_wrong_hits=max_wrong_hits))
        self._memory = Memory(ServedHits(), Counterexamples())
        self.entries = 0  # that the neighbours are the nearest of
        self._index = cast(VectorIndex, SimpleNamespace(count=lambda _: self.entries))
        self._request = cast(Request, SimpleNamespace(scope="", route=""))

    async def judge(self, question: str, vector: Vector, near: Sequence[tuple[Stored, float]]) -> Judged:
        """`near`: stored questions with their similarity, most similar first; at least one."""
        call = cast(Call, SimpleNamespace(question=question))
        found = [
            (cast(Entry, stored), Neighbour(stored.fingerprint, similarity), cast(Freshness, None))
            for stored, similarity in near
        ]
        judgements, best = await self._judged(self._request, call, Embedding(vector, 0, False), found, self._control)
        return judgements[best]


class Fixed(RouteControl):
    """A threshold that nobody moves; evidence is gathered as ever."""

    def __init__(self, verifier: Verifier, threshold: float, *, learn: bool = True) -> None:
        super().__init__(verifier.prior, verifier.basis, learn=learn)
        self._fixed = threshold

    def threshold(self, acceptance: Acceptance, entries: int = 0) -> float:
        return self._fixed

    def advance(self, requests: int) -> None:
        return  # what fades with time moves the threshold alone


class Frozen(Fixed):
    """What was learnt before counts, and nothing is added to it."""

    def learn(self, observation: Observation) -> None:
        return
