"""What a model that writes says to questions that it has not learnt from, beside what the large one said."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from gateway.adapters.onnx.encoder import OnnxEncoder
from gateway.adapters.onnx.generator import Generator, Piece
from gateway.adapters.onnx.model_dir import ModelFolder
from gateway.cache.answer_similarity import comparable, compare, joined, passages, same_text
from gateway.cache.threshold.wrong_hits import Label
from gateway.errors import Unfit
from gateway.generation.asked import Asked, Sampling, asked_of
from gateway.messages import Vector
from gateway.routing.cascade_policy import token_confidence
from gateway.tools.distillation.data import Row
from gateway.tools.distillation.report import Share, share_of, threshold

MAX_TOKENS = 512  # of an answer
Judged = Callable[[Row, str], Label]
"""Whether that answer says what the row's says."""


@dataclass(frozen=True, slots=True)
class Answered:
    """`confidence`: as the cascade's check `logprobs` has it; `nats`, `tokens`: what the row's own answer costs."""

    row: Row
    text: str
    confidence: float
    says: Label
    nats: float
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Figures:
    """`perplexity`: of the large model's answers, a token; `same`: equal but for white space and case; `right`,
    `wrong`: of those that words and embeddings, or a judge, could tell."""

    over: int  # rows
    too_long: int
    perplexity: float
    same: Share
    right: Share
    wrong: Share
    answered: Share
    right_answered: Share
    p50_ms: float

    @property
    def undecided(self) -> int:
        return self.over - self.right.count - self.wrong.count


class Student:
    """Through what `adapter: onnx` serves a folder with. Raises `ModelMissing` or `ModelCorrupt`."""

    def __init__(self, folder: Path) -> None:
        self._model = Generator(ModelFolder(folder), 1, MAX_TOKENS)

    def answered(self, rows: Sequence[Row], judged: Judged, told: Callable[[int], object]) -> list[Answered]:
        """Without the rows that have no room in the model's context."""
        found = []
        for row in rows:
            if (one := self._one(row, judged)) is not None:
                found.append(one)
            told(1)
        return found

    def _one(self, row: Row, judged: Judged) -> Answered | None:
        asked = asked_of({"messages": [{"role": "user", "content": row.text}], "logprobs": True}, None, Sampling())
        started = time.thread_time()
        try:
            pieces = self._pieces(asked)
            took = time.thread_time() - started
            thinks = self._model.likelihoods(asked, row.label, onnxruntime.RunOptions())
        except Unfit:
            return None
        text = "".join(piece.text for piece in pieces)
        sure = token_confidence([token.logprob for piece in pieces for token in piece.tokens])
        return Answered(row, text, sure or 0.0, judged(row, text), -math.fsum(thinks), len(thinks), took)

    def _pieces(self, asked: Asked) -> list[Piece]:
        return [piece for piece in self._model.pieces(asked, onnxruntime.RunOptions()) if piece is not None]


def by_embeddings(models: Path) -> Judged:
    """As the gateway compares a fresh answer with a stored one. `models`: the folder of the embedding model."""
    encoder = OnnxEncoder(models, threads=1)
    seen: dict[str, Vector] = {}

    def vector(text: str) -> Vector | None:
        if text not in seen:
            made = encoder.encode(passages(text))
            if any(each.partial for each in made):
                return None
            seen[text] = joined([each.vector for each in made])
        return seen[text]

    def judged(row: Row, text: str) -> Label:
        if same_text(row.label, text) or not comparable(row.label, text):
            return compare(row.label, text, None)
        first, second = vector(row.label), vector(text)
        return compare(row.label, text, None if first is None or second is None else float(first @ second))

    return judged


def figures_of(found: Sequence[Answered], asked: int, accept_above: float) -> Figures:
    """`asked`: rows, those without room among them."""
    right = np.array([each.says is Label.RIGHT for each in found], bool)
    sure = np.array([each.confidence > accept_above for each in found], bool)
    tokens = sum(each.tokens for each in found)
    return Figures(
        over=len(found),
        too_long=asked - len(found),
        perplexity=round(math.exp(min(50.0, math.fsum(each.nats for each in found) / max(1, tokens))), 3),
        same=share_of([same_text(each.row.label, each.text) for each in found]),
        right=share_of(right),
        wrong=share_of([each.says is Label.WRONG for each in found]),
        answered=share_of(sure),
        right_answered=share_of(right[sure]),
        p50_ms=round(1e3 * statistics.median([each.seconds for each in found]), 2) if found else 0.0,
    )


def accepted_above(found: Sequence[Answered], wanted: float) -> float:
    """The lowest confidence above which the share `wanted` of the answers says what the large model said."""
    if not wanted:
        return 0.0
    confidence = np.array([each.confidence for each in found], np.float32)
    return threshold(confidence, np.array([each.says is Label.RIGHT for each in found], bool), wanted)


def as_markdown(report: dict[str, Any], figures: Figures, policy: str) -> str:
    samples = "\n".join(f"| {_cell(one['question'])} | {_cell(one['large'])} | {_cell(one['light'])} |"
                        for one in report["samples"])  # fmt: skip
    return f"""# {report["name"]}, version {report["version"]}

A model that writes, {report["weights"] / 1e6:.2f} million weights. {report["rows"]} answers to learn from, of which
{report["left_out"]} were left out: no room in {report["context"]} tokens. {report["checked"]} held-out questions were
asked, {figures.too_long} without room; the threshold is of one half of them, the figures are of {figures.over} others.

| | |
|---|---|
| says what the large model said, told by {report["told_by"]} | {figures.right} |
| says something else | {figures.wrong} |
| cannot be told | {figures.undecided} |
| the very same text | {figures.same} |
| perplexity of the large model's answers, a token | {figures.perplexity:.2f} |
| is sure (confidence above {report["accept_above"]:.3f}) | {figures.answered} |
| says what the large one said, where it is sure | {figures.right_answered} |
| the very same text, of {report["by_heart"]["of"]} that it has learnt | {report["by_heart"]["share"]:.1%} |
| CPU time of an answer, p50 | {figures.p50_ms:.1f} ms |
| {report["precision"]}; as fp32 | {report["bytes"] / 1e6:.1f} MB; {report["fp32_bytes"] / 1e6:.1f} MB |

Of the weights {report["zeros"]:.1%} are zero. Some held-out questions:

| question | large | light |
|---|---|---|
{samples}

```yaml
{policy.rstrip()}
```
"""


def _cell(text: str) -> str:
    short = " ".join(text.split())
    return (short if len(short) <= 120 else short[:119] + "…").replace("|", "\\|")
