"""The model `large`: ranks passages by all-MiniLM and answers with the best sentences of several."""

from __future__ import annotations

from pathlib import Path

from .answering import Style
from .encoders import Encoder, MiniLm
from .streaming import AnswerModel


class TritonPythonModel(AnswerModel):
    # In tests/features/demo/questions.yaml, questions with an answer have a similarity of at least 0.40, the others at
    # most 0.19.
    style = Style(passages=3, units=5, floor=0.28)

    def make_encoder(self, directory: Path) -> Encoder:
        return MiniLm(directory / "model.onnx", directory / "tokenizer.json")
