"""The learned verifier: similarity less what the trees doubt.

    margin = similarity - weight * (1 - p) ** power     p: the trees' probability that both questions ask the same
    score = 1 - scale * (1 - margin)

The similarity stays outside of what is learned: fitted together on generated pairs it lost on real ones (AUC .826
against .867 alone). `scale` sets how far scores lie apart beside what a route's own evidence moves them by. Which score
is enough, each route learns for itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from gateway.cache import lexical
from gateway.cache.acceptance import FLOOR
from gateway.cache.calibration import ABOUT_FILE, WEIGHTS, Calibration, calibration_of
from gateway.cache.features import LONGEST, NAMES, Reading, features, kept, read, word_features
from gateway.cache.forest import Forest, from_arrays
from gateway.messages import Refusal
from gateway.ports import Candidate, Opinion
from gateway.weight_files import Trained

__all__ = ["WEIGHTS", "LearnedVerifier", "Weights", "load_weights", "provenance", "weights_from"]

TRAINED = Trained("verifier", "the verifier's weights")

# Differences that a rule names are not left to the trees: one of these, and the doubt is full.
_NAMED = attrgetter("numbers_swapped", "negation", "opposites", "reversed")


@dataclass(frozen=True, slots=True)
class Weights:
    digest: str  # hex SHA-256 of the arrays
    weight: float  # similarity that a sure refusal costs
    power: float  # above 1: half a doubt costs less than half of that
    scale: float
    words: Forest
    calibration: Calibration


def load_weights(directory: Path = WEIGHTS) -> Weights:
    """Reads `verifier.npz` and `verifier.json`. Raises `WeightsCorrupt`."""
    return TRAINED.load(directory, weights_from)


def weights_from(about: bytes, arrays: bytes) -> Weights:
    """Checks and unpacks. Raises ValueError, KeyError, TypeError or AttributeError."""
    unpacked = TRAINED.unpacked(about, arrays, NAMES)
    said, tables = unpacked.said, unpacked.tables
    return Weights(
        digest=unpacked.digest,
        weight=float(said["weight"]),
        power=float(said["power"]),
        scale=float(said["scale"]),
        words=from_arrays(tables, "words", len(NAMES)),
        calibration=calibration_of(said, "learned"),
    )


class LearnedVerifier:
    """Implements `Verifier`."""

    floor = FLOOR

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.basis = f"learned-{weights.digest[:8]}"
        self.prior = weights.calibration.prior

    def opinions(self, question: str, candidates: Sequence[Candidate]) -> list[Opinion]:
        mine, stored = read(question), [candidate.question for candidate in candidates]
        readings = [kept(other) for other in stored]
        margins = self._margins(mine, question, readings, stored, [candidate.similarity for candidate in candidates])
        return [
            self.opinion(margin, lexical.difference(mine.checks, other.checks))
            for other, margin in zip(readings, margins, strict=True)
        ]

    def opinion(self, margin: float, doubt: Refusal | None = None) -> Opinion:
        """What a similarity less its doubt is worth, whoever doubts. `doubt`: what rules say beside the trees, which
        were not shown instructions around varying content: another payload is a veto, any other difference the reason
        to show where the score does not suffice."""
        score = min(1.0, 1.0 - self._weights.scale * (1.0 - margin))
        veto = doubt if doubt is Refusal.PAYLOAD else None
        return Opinion(score, self._weights.calibration.probability(score), veto, doubt)

    def margin(self, opinion: Opinion) -> float:
        """The opposite of `opinion`."""
        return 1.0 - (1.0 - opinion.score) / self._weights.scale

    async def second_opinion(self, question: str, candidate: Candidate, first: Opinion) -> Opinion | None:
        return None

    def close(self) -> None:
        pass

    def features(self, question: str, candidate: Candidate) -> Mapping[str, float]:
        """Those that are not of the question beside itself."""
        found, equal = features(question, [candidate.question, question])
        return {name: float(value) for name, value, at in zip(NAMES, found, equal, strict=True) if value != at}

    def margins(self, asked: str, stored: Sequence[str], similarities: Sequence[float]) -> list[float]:
        """(k,), at most the similarities."""
        return self._margins(read(asked), asked, [kept(other) for other in stored], stored, similarities)

    def _margins(
        self,
        mine: Reading,
        asked: str,
        readings: Sequence[Reading],
        stored: Sequence[str],
        similarities: Sequence[float],
    ) -> list[float]:
        rows = [word_features(mine, other) for other in readings]
        wanted, doubts = asked.split(), [1.0] * len(stored)
        open_ = list[int]()  # to the trees: no rule says it
        for at, (other, row) in enumerate(zip(stored, rows, strict=True)):
            if other.split() == wanted:  # equal but for spaces: the same
                doubts[at] = 0.0
            elif max(len(asked), len(other)) <= LONGEST and not any(_NAMED(row)):
                open_.append(at)  # longer than what is read and not equal: never
        if open_:
            for at, sure in zip(open_, self._weights.words.probability([rows[at] for at in open_]), strict=True):
                doubts[at] = 1.0 - sure
        weight, power = self._weights.weight, self._weights.power
        # A square is the product: what the library raises to a power of 2 differs in the last bit now and then.
        raised = [doubt * doubt if power == 2.0 else doubt**power for doubt in doubts]
        return [float(similarity) - weight * each for similarity, each in zip(similarities, raised, strict=True)]


def provenance(directory: Path = WEIGHTS) -> Mapping[str, object]:
    """What `verifier.json` says: sources and their licences, figures, versions."""
    said: Mapping[str, object] = json.loads((directory / ABOUT_FILE).read_bytes())
    return said
