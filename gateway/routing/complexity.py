"""Score the complexity of a request: the probability that the light model's answer is worse. Pure.

The score is that of `prompt_prior`. Beside it stand the weights of an earlier training, as an arm. They were worse on
benchmarks that they had not seen. A route's own labels may show that they are better on its prompts. So their logit is
a part of the row that the route's own fit reads.

Two forms of text have weights of their own in the arm (made by `training.complexity`):

    exam (lettered options)   p = sigmoid(a * logit(P(light wrong) * P(large right | light wrong)) + b * open + c),
                              each P a logistic function of the text and its embedding; fitted on public outcomes
    open (everything else)    p = sigmoid(open), open linear in the text and its embedding; fitted on graded prompts

Without an embedding, or with one of another model, each form uses weights for the text alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gateway.adapters.system.weight_files import Tables, WeightFiles, WeightsCorrupt
from gateway.entries import Vector
from gateway.errors import StartupError
from gateway.routing.prompt_features import NAMES, OPTION_NAMES, Commonness, FloatArray, PromptReading
from gateway.routing.prompt_prior import PriorWeights, load_prior
from gateway.scores import PromptRow, ScoredPrompt

WEIGHTS = Path(__file__).parent / "weights"

TRAINED = WeightFiles("complexity", "the weights of complexity")

VARIANTS = ("text", "vector")

ARM_LOGIT = 0.5  # the factor of the arm's logit in a row; its deviation is then near 1, as that of the features

# Features are clipped to this many standard deviations from their mean, so that no single one dominates.
MAX_DEVIATIONS = 3.0

# The factor of the embedding, a unit vector, in the row of a route's own fit. With 4, 1,000 labels give a point less.
ROW_VECTOR = 2.0

# Set by hand, as no data has it: the largest increase of the logit for long answers, and the tokens for half of it.
OUTPUT, OUTPUT_HALF = 0.4, 1000


@dataclass(frozen=True, slots=True)
class Standard:
    """`Standard` scales features to mean 0 and deviation 1, clipped to +-`MAX_DEVIATIONS`."""

    mean: FloatArray
    deviation: FloatArray

    def __call__(self, values: FloatArray) -> FloatArray:
        """Return the scaled values. Shape (k,) or (n, k)."""
        inner = (values - self.mean) / self.deviation
        return np.asarray(np.minimum(np.maximum(inner, -MAX_DEVIATIONS), MAX_DEVIATIONS))


@dataclass(frozen=True, slots=True)
class Linear:
    features: FloatArray  # (k,)
    vector: FloatArray | None  # (d,), or None for the text alone
    bias: float

    def __call__(self, features: FloatArray, vector: Vector | None) -> float:
        value = self.bias + float(self.features @ features)
        return value if self.vector is None or vector is None else value + float(self.vector @ vector)


@dataclass(frozen=True, slots=True)
class Variant:
    """Weights for one kind of input: with the embedding, or without."""

    open: Linear
    wrong: Linear  # that the light model is wrong
    able: Linear  # that the large model is right where the light one is wrong
    stack: tuple[float, float, float]  # a, b, c

    def exam(self, features: FloatArray, vector: Vector | None, open_: float) -> float:
        """Return the logit of the exam form."""
        both = sigmoid(self.wrong(features, vector)) * sigmoid(self.able(features, vector))
        a, b, c = self.stack
        return a * math.log(both / (1.0 - both)) + b * open_ + c


@dataclass(frozen=True, slots=True)
class ComplexityWeights:
    digest: str  # hex SHA-256 of the arrays
    encoder: str  # the embedding model whose vectors the weights read
    dimension: int  # of these vectors
    rarity: Commonness
    open: Standard  # of the text's features
    exam: Standard  # of the text's and the options' features
    text: Variant
    vector: Variant

    def arm(self, reading: PromptReading, scaled: FloatArray, vector: Vector | None) -> float:
        """Return the arm's logit. `scaled` are the features by `open`."""
        variant = self.text if vector is None else self.vector
        logit = variant.open(scaled, vector)
        if reading.options is None:
            return logit
        return variant.exam(self.exam(np.concatenate([reading.features, reading.options])), vector, logit)


class ComplexityModel:
    """The scorer. `encoder` is the embedder's fingerprint, `name/...`. The row reads no vectors of another name."""

    def __init__(self, prior: PriorWeights, weights: ComplexityWeights, encoder: str) -> None:
        self._prior = prior
        self._weights = weights
        self.reads_vectors = encoder.partition("/")[0] == weights.encoder

    @property
    def basis(self) -> str:
        """The name of the weights and inputs. State learned from scores with another basis is of no use."""
        digests = f"{self._prior.digest[:12]} {self._weights.digest[:12]}"
        return f"complexity {digests} {'with' if self.reads_vectors else 'without'} vectors, three labels"

    def score(self, text: str, max_tokens: int | None) -> float:
        """Return the complexity in (0, 1), see `judge`."""
        return self.judge(text, max_tokens, None).score

    def judge(self, text: str, max_tokens: int | None, vector: Vector | None) -> ScoredPrompt:
        """Return the complexity in (0, 1), and the row that a route's own fit reads.

        `vector`, the embedding of `text`, is a part of the row alone. `max_tokens` is the client's limit. It takes
        0.1 ms for a short text, and 0.7 ms for 8 kB of words that no list has.
        """
        weights = self._weights
        if not self.reads_vectors or (vector is not None and vector.shape != (weights.dimension,)):
            vector = None
        reading = PromptReading(text, weights.rarity)
        logit = self._prior.logit(reading)
        if max_tokens is not None:
            logit += OUTPUT * max_tokens / (max_tokens + OUTPUT_HALF)
        return ScoredPrompt(sigmoid(logit), self._row(reading, vector))

    def _row(self, reading: PromptReading, vector: Vector | None) -> PromptRow:
        """Return the features, the arm's logit and the embedding.

        Zeros stand for a missing embedding, if there usually is one.
        """
        scaled = self._weights.open(reading.features)
        width = len(scaled) + 1
        row = np.zeros(width + (self._weights.dimension if self.reads_vectors else 0), np.float16)
        row[: width - 1] = scaled
        row[width - 1] = ARM_LOGIT * self._weights.arm(reading, scaled, vector)
        if vector is not None:
            row[width:] = vector * ROW_VECTOR
        return row


def sigmoid(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(-min(20.0, max(-20.0, logit))))


def load_weights(directory: Path = WEIGHTS) -> ComplexityWeights:
    """Read `complexity.npz` and `complexity.json`. Raise `WeightsCorrupt`."""
    return TRAINED.load(directory, weights_from)


def weights_from(about: bytes, arrays: bytes) -> ComplexityWeights:
    """Check and unpack the weights. Raise ValueError, KeyError, TypeError or AttributeError."""
    unpacked = TRAINED.unpack(about, arrays, NAMES + OPTION_NAMES)
    metadata, tables = unpacked.metadata, unpacked.tables
    dimension = int(metadata["dimension"])
    return ComplexityWeights(
        digest=unpacked.digest,
        encoder=str(metadata["encoder"]),
        dimension=dimension,
        rarity=Commonness(tables["words"].tobytes().decode("ascii").split("\n")),
        open=_standard(tables, "open", len(NAMES)),
        exam=_standard(tables, "exam", len(NAMES + OPTION_NAMES)),
        text=_variant(tables, metadata, "text", 0),
        vector=_variant(tables, metadata, "vector", dimension),
    )


def _standard(tables: Tables, form: str, width: int) -> Standard:
    mean, deviation = (_array(tables, f"{form}/{part}", width) for part in ("mean", "deviation"))
    if not (deviation > 0).all():
        raise ValueError(f"{form}/deviation must be above 0")
    return Standard(mean, deviation)


def _variant(tables: Tables, metadata: Mapping[str, Any], name: str, dimension: int) -> Variant:
    def linear(part: str, width: int) -> Linear:
        vector = _array(tables, f"{name}/{part}/vector", dimension) if dimension else None
        bias = _array(tables, f"{name}/{part}/bias", 1)
        return Linear(_array(tables, f"{name}/{part}/features", width), vector, float(bias[0]))

    a, b, c = (float(number) for number in metadata["stacks"][name])
    if not all(math.isfinite(number) for number in (a, b, c)):
        raise ValueError(f"stacks.{name} must be three finite numbers")
    width = len(NAMES + OPTION_NAMES)
    return Variant(linear("open", len(NAMES)), linear("wrong", width), linear("able", width), (a, b, c))


def _array(tables: Tables, name: str, width: int) -> FloatArray:
    values = np.asarray(tables[name], np.float64)
    if values.shape != (width,) or not np.isfinite(values).all():
        raise ValueError(f"{name} must be {width} finite numbers")
    return values


def build_complexity(embedder: str) -> ComplexityModel:
    """Build the scorer for an embedder's fingerprint. Raise `StartupError`."""
    try:
        return ComplexityModel(load_prior(WEIGHTS), load_weights(), embedder)
    except WeightsCorrupt as error:
        raise StartupError(str(error)) from None
