"""Whether the answer to a stored question answers this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.messages import Refusal


@dataclass(slots=True)
class Candidate:
    """A neighbour with the question its answer was made for."""

    question: str
    similarity: float  # in [0, 1]


@dataclass(slots=True)
class Opinion:
    """What a verifier thinks of serving a candidate's answer."""

    score: float  # rises with the chance of being right, at most 1: what a route's threshold is held against
    probability: float  # that the answer is right, in [0, 1], as calibrated on the verifier's own material
    veto: Refusal | None = None  # not to be served whatever the score
    doubt: Refusal | None = None  # what spoke against it most: the reason if it is refused


PriorBands = Sequence[tuple[float, float]]
"""By band of scores (`gateway.cache.control.ledger`): the share of neighbours that were wrong, and neighbours met a
request, on the material that a verifier was calibrated on."""


class Verifier(Protocol):
    """Judges whether the answer to a stored question answers this one. Whether it is served, the route decides."""

    @property
    def basis(self) -> str:
        """Names it and its weights: scores of different bases are never compared."""

    @property
    def prior(self) -> PriorBands: ...

    @property
    def floor(self) -> float:
        """The similarity in [0, 1] below which no neighbour is worth reading."""

    def opinions(self, question: str, candidates: Sequence[Candidate]) -> list[Opinion]:
        """One a candidate, in order."""

    async def second_opinion(self, question: str, candidate: Candidate, first: Opinion) -> Opinion | None:
        """A closer and dearer look, for candidates near the threshold. None: it has none to give."""

    def close(self) -> None:
        """Lets go of threads and models."""

    def features(self, question: str, candidate: Candidate) -> Mapping[str, float]:
        """What it sees that sets the two apart, by name, to be shown; what is as between equals is left out."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What a route's policy demands of a semantic hit; exactly one of the two is set."""

    min_similarity: float | None = None  # a plain threshold in [0, 1]
    max_wrong_hits: float | None = None  # wrong semantic hits over all requests of the route, in [0, 1]
