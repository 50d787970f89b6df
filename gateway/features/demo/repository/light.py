"""The model `light`: finds the best passage by static token vectors and answers with its two best sentences."""

from __future__ import annotations

from pathlib import Path

from .answering import Style
from .encoders import Encoder, StaticVectors
from .streaming import AnswerModel


class TritonPythonModel(AnswerModel):
    # In tests/features/demo/questions.yaml, questions with an answer have a similarity of at least 0.43, the others at
    # most 0.35.
    style = Style(passages=1, units=2, floor=0.39)

    def make_encoder(self, directory: Path) -> Encoder:
        return StaticVectors(directory / "static.npz", directory / "tokenizer.json")
