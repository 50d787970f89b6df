"""An extractive answer from documentation: rank passages, choose their best sentences, name their sections.

Pure but for `Corpus.load`; both models use it and differ in the encoder and in how much they look at.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .encoders import Vectors

UNKNOWN = "The documentation does not say."


@dataclass(frozen=True, slots=True)
class Corpus:
    """Passages and the units (sentences, list items, code) they consist of, with a vector each."""

    titles: list[str]  # of the passages
    units: list[str]
    passage_of: NDArray[np.int32]  # (units,): the passage a unit belongs to
    passage_vectors: Vectors  # (passages, dimension)
    unit_vectors: Vectors  # (units, dimension)

    @classmethod
    def load(cls, directory: Path) -> Corpus:
        """Reads `corpus.json` and `vectors.npz`. Raises `OSError` or `ValueError`."""
        texts = json.loads((directory / "corpus.json").read_bytes())
        with np.load(directory / "vectors.npz", allow_pickle=False) as file:
            return cls(
                texts["titles"], texts["units"], file["passage_of"], file["passage_vectors"], file["unit_vectors"]
            )

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "corpus.json").write_text(json.dumps({"titles": self.titles, "units": self.units}))
        np.savez(
            directory / "vectors.npz",
            passage_of=self.passage_of,
            passage_vectors=self.passage_vectors,
            unit_vectors=self.unit_vectors,
        )


@dataclass(frozen=True, slots=True)
class Style:
    """How much of the documentation goes into an answer."""

    passages: int  # passages looked at
    units: int  # units in the answer, at most
    floor: float  # similarity of the best passage below which the documentation does not say
    redundancy: float = 0.4  # weight of similarity to what is already in the answer (MMR, Carbonell & Goldstein 1998)
    context: float = 0.5  # weight of the passage's similarity beside the unit's own: headings say what it is about
    spread: float = 0.7  # a further passage counts while it is this close to the best one's similarity
    relevance: float = 0.45  # a further unit counts while its score is this share of the best one's


def answer(question: Vectors, corpus: Corpus, style: Style) -> str:
    """The answer to the question whose vector, shape (dimension,), is given; `UNKNOWN` below the floor."""
    by_unit = corpus.unit_vectors @ question
    similarity = nearness(question, corpus, by_unit)
    best = float(similarity.max(initial=-1.0))
    if best < style.floor:
        return UNKNOWN
    ranked = [int(p) for p in np.argsort(-similarity)[: style.passages] if similarity[p] >= style.spread * best]
    candidates = np.flatnonzero(np.isin(corpus.passage_of, ranked))
    score = by_unit[candidates] + style.context * similarity[corpus.passage_of[candidates]]
    chosen = candidates[_choose(corpus.unit_vectors[candidates], score, style)]
    sections: dict[str, list[str]] = {corpus.titles[passage]: [] for passage in ranked}
    for unit in sorted(chosen):
        sections[corpus.titles[corpus.passage_of[unit]]].append(corpus.units[unit])
    return "\n\n".join(f"{_join(units)} ({title})" for title, units in sections.items() if units)


def nearness(question: Vectors, corpus: Corpus, by_unit: NDArray[np.float32]) -> NDArray[np.float32]:
    """How near each passage is, shape (passages,): half as a whole, half by its nearest unit, which a long passage
    would drown out."""
    nearest = np.full(len(corpus.titles), -1.0, np.float32)
    np.maximum.at(nearest, corpus.passage_of, by_unit)
    similarity: NDArray[np.float32] = np.float32(0.5) * (corpus.passage_vectors @ question + nearest)
    return similarity


def _choose(vectors: Vectors, score: NDArray[np.float32], style: Style) -> list[int]:
    """Maximal marginal relevance: again and again what scores best and repeats least."""
    enough = style.relevance * float(score.max())
    open_, chosen = [i for i in range(len(score)) if score[i] >= enough], list[int]()
    while open_ and len(chosen) < style.units:
        repeats = (vectors[open_] @ vectors[chosen].T).max(axis=1) if chosen else np.zeros(len(open_))
        chosen.append(open_.pop(int(np.argmax(score[open_] - style.redundancy * repeats))))
    return chosen


def _join(units: list[str]) -> str:
    """Sentences on one line, code on its own lines, and a full stop where a list item has none."""
    text = ""
    for unit in units:
        if unit.startswith("```"):
            text += f"\n{unit}\n"
        else:
            text += ("" if not text or text.endswith("\n") else " ") + unit
            text += "" if unit.endswith((".", "!", "?", ":", "`")) else "."
    return text.strip()
