"""The learned verifier: similarity less what the trees doubt, held against a score measured for each promise.

`score = similarity - weight * (1 - p) ** power`, where `p` is the trees' probability that both questions ask the same.
The similarity stays outside of what is learned: fitted together on generated pairs it lost on real ones (AUC .826
against .867 alone). A score never exceeds its similarity, so a minimum score is also the floor for the index.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gateway.cache import lexical
from gateway.cache.acceptance import FLOOR, PRIOR
from gateway.cache.features import ALIGNMENT_NAMES, LONGEST, NAMES, NEUTRAL, WORD_NAMES, FloatArray, Text, features
from gateway.cache.forest import Forest, from_arrays
from gateway.messages import Refusal
from gateway.ports import Candidate, Opinion

WEIGHTS = Path(__file__).parent / "weights"


# Differences that a rule names are not left to the trees: one of these, and the doubt is full.
_NAMED = [NAMES.index(name) for name in ("numbers_swapped", "negation", "opposites", "reversed")]


class WeightsCorrupt(Exception):
    """The verifier's weights are not the ones that were trained; the message names the file and what is wrong."""


@dataclass(frozen=True, slots=True)
class Operating:
    """One forest and what its scores mean."""

    forest: Forest
    points: tuple[tuple[float, float], ...]  # (wrong hits over all requests, minimum score), both ascending / falling
    platt: tuple[float, float]  # probability that the answer is right = 1 / (1 + exp(-(a * score + b)))


@dataclass(frozen=True, slots=True)
class Weights:
    weight: float  # similarity that a sure refusal costs
    power: float  # above 1: half a doubt costs less than half of that
    words: Operating  # for pairs without token vectors
    tokens: Operating


def load_weights(directory: Path = WEIGHTS) -> Weights:
    """Reads `verifier.npz` and `verifier.json`. Raises `WeightsCorrupt`."""
    try:
        about, arrays = (directory / "verifier.json").read_bytes(), (directory / "verifier.npz").read_bytes()
    except OSError as error:
        raise WeightsCorrupt(f"the verifier's weights cannot be read: {error}") from None
    try:
        return weights_from(about, arrays)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsCorrupt(f"the verifier's weights in {directory.name}/ are not as trained: {error}") from None


def weights_from(about: bytes, arrays: bytes) -> Weights:
    """Checks and unpacks. Raises ValueError, KeyError, TypeError or AttributeError."""
    said = json.loads(about)
    found = hashlib.sha256(arrays).hexdigest()
    if found != said["sha256"]:
        raise ValueError(f"verifier.npz has sha256 {found[:12]}..., verifier.json says {str(said['sha256'])[:12]}...")
    with np.load(io.BytesIO(arrays), allow_pickle=False) as file:
        tables = {name: file[name] for name in file.files}
    if tuple(str(name) for name in tables["names"]) != NAMES:
        raise ValueError("verifier.npz was trained on other features than this version computes")
    words, tokens = (
        Operating(
            from_arrays(tables, name, width),
            tuple((float(budget), float(score)) for budget, score in said["operating_points"][name]),
            (float(said["forests"][name]["platt"][0]), float(said["forests"][name]["platt"][1])),
        )
        for name, width in (("words", len(WORD_NAMES)), ("tokens", len(NAMES)))
    )
    return Weights(float(said["weight"]), float(said["power"]), words, tokens)


class LearnedVerifier:
    """Implements `Verifier`."""

    basis = "learned-1"
    floor = FLOOR

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.prior = PRIOR

    async def opinions(self, question: str, candidates: Sequence[Candidate]) -> list[Opinion]:
        asked = Text(question)
        stored = [Text(candidate.question) for candidate in candidates]
        scores, aligned = self.scores(asked, stored, [candidate.similarity for candidate in candidates])
        return [
            Opinion(
                score,
                self.probability(score, has_tokens),
                veto=_payload(question, other.text),
                doubt=_doubt(question, other.text),
            )
            for other, score, has_tokens in zip(stored, scores, aligned, strict=True)
        ]

    async def second_opinion(self, question: str, candidate: Candidate, first: Opinion) -> Opinion | None:
        return None

    def scores(
        self, asked: Text, stored: Sequence[Text], similarities: Sequence[float]
    ) -> tuple[list[float], list[bool]]:
        """(k,) scores, at most the similarities; and for which of them token vectors were there on both sides."""
        if not stored:
            return [], []
        rows = features(asked, stored)
        aligned = rows[:, -len(ALIGNMENT_NAMES)] != NEUTRAL
        sure: FloatArray = np.empty(len(rows))
        for chosen, each, width in (
            (aligned, self._weights.tokens, len(NAMES)),
            (~aligned, self._weights.words, len(WORD_NAMES)),
        ):
            if chosen.any():
                sure[chosen] = each.forest.probability(rows[chosen][:, :width])
        sure[(rows[:, _NAMED] > 0).any(1)] = 0.0
        sure = _certain(asked.text, stored, sure)
        doubt = self._weights.weight * (1 - sure) ** self._weights.power
        return [float(s - d) for s, d in zip(similarities, doubt, strict=True)], [bool(a) for a in aligned]

    def probability(self, score: float, aligned: bool = False) -> float:
        """That the stored answer is right, on held-out generated pairs and intents of which half are: for display."""
        a, b = (self._weights.tokens if aligned else self._weights.words).platt
        return float(1.0 / (1.0 + np.exp(-(a * score + b))))


def _certain(asked: str, stored: Sequence[Text], sure: FloatArray) -> FloatArray:
    """Equal but for spaces: the same. Longer than what is read and not equal: never."""
    wanted = " ".join(asked.split())
    for at, other in enumerate(stored):
        if " ".join(other.text.split()) == wanted:
            sure[at] = 1.0
        elif max(len(asked), len(other.text)) > LONGEST:
            sure[at] = 0.0
    return sure


def _payload(asked: str, stored: str) -> Refusal | None:
    """A rule beside the trees: they were not shown instructions around varying content."""
    differ = lexical.other_payload(lexical.read(asked[:LONGEST]), lexical.read(stored[:LONGEST]))
    return Refusal.PAYLOAD if differ else None


def _doubt(asked: str, stored: str) -> Refusal | None:
    """What a rule names as different: the reason to show where the score does not suffice."""
    return lexical.difference(lexical.read(asked[:LONGEST]), lexical.read(stored[:LONGEST]))


def provenance(directory: Path = WEIGHTS) -> Mapping[str, object]:
    """What `verifier.json` says: sources and their licences, figures, versions."""
    said: Mapping[str, object] = json.loads((directory / "verifier.json").read_bytes())
    return said
