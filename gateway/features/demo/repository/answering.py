"""Composes an answer from documentation: ranks passages, chooses their best sentences, and names their sections.

Pure except for `Corpus.load` and `Corpus.save`. Both models use it; they differ in the encoder and in the `Style`.
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
    """Passages and their units (sentences, list items, code), each with a vector."""

    titles: list[str]  # one per passage
    units: list[str]
    passage_of: NDArray[np.int32]  # (units,): the passage of each unit
    passage_vectors: Vectors  # (passages, dimension)
    unit_vectors: Vectors  # (units, dimension)

    @classmethod
    def load(cls, directory: Path) -> Corpus:
        """Read `corpus.json` and `vectors.npz`. Raises `OSError` or `ValueError`."""
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
    """The limits and weights by which an answer is composed."""

    passages: int  # most passages that are considered
    units: int  # most units in an answer
    floor: float  # below this similarity of the best passage the answer is `UNKNOWN`
    redundancy: float = 0.4  # weight of similarity to units already chosen (MMR, Carbonell & Goldstein 1998)
    context: float = 0.5  # weight of the passage's similarity next to the unit's: headings name the topic
    spread: float = 0.7  # least similarity of a further passage, as a share of the best one's
    relevance: float = 0.45  # least score of a further unit, as a share of the best one's


def answer(question: Vectors, corpus: Corpus, style: Style) -> str:
    """Return the answer to a question by its vector, shape (dimension,). Below `style.floor` it is `UNKNOWN`."""
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
    """Return the similarity of each passage to the question, shape (passages,).

    It is the mean of the similarities of the whole passage and of its nearest unit. The vector of a long passage alone
    would hide a single unit that matches.
    """
    nearest = np.full(len(corpus.titles), -1.0, np.float32)
    np.maximum.at(nearest, corpus.passage_of, by_unit)
    similarity: NDArray[np.float32] = np.float32(0.5) * (corpus.passage_vectors @ question + nearest)
    return similarity


def _choose(vectors: Vectors, score: NDArray[np.float32], style: Style) -> list[int]:
    """Choose units by maximal marginal relevance: a high score, and little similarity to the units chosen so far."""
    enough = style.relevance * float(score.max())
    open_, chosen = [i for i in range(len(score)) if score[i] >= enough], list[int]()
    while open_ and len(chosen) < style.units:
        repeats = (vectors[open_] @ vectors[chosen].T).max(axis=1) if chosen else np.zeros(len(open_))
        chosen.append(open_.pop(int(np.argmax(score[open_] - style.redundancy * repeats))))
    return chosen


def _join(units: list[str]) -> str:
    """Join sentences on one line and code on separate lines. Add a full stop to a list item that has none."""
    text = ""
    for unit in units:
        if unit.startswith("```"):
            text += f"\n{unit}\n"
        else:
            text += ("" if not text or text.endswith("\n") else " ") + unit
            text += "" if unit.endswith((".", "!", "?", ":", "`")) else "."
    return text.strip()
