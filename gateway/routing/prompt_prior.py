"""The shipped complexity: length, the structure of the task, and what holds on benchmarks that were left out. Pure.

It reads the text alone, so equal prompts have an equal score, whatever caches a route has. Two forms of text have
weights of their own (made by `training.prompt_prior`; docs/decisions/0010 gives the reasons):

    exam (lettered options)   logit = a * length + weights . (structure, options) + bias
    open (everything else)    logit = slope * (task + b * length + weights . structure) + bias

`task` is the guess by hand how much the kind of a task needs the large model. It is bounded, so that among tasks of one
kind length decides. The weights that were learnt from outcomes add little, as length did better than them alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gateway.adapters.system.weight_files import Tables, WeightFiles
from gateway.routing.prompt_features import KINDS, NAMES, OPENERS, OPTION_NAMES, SIGNS, FloatArray, PromptReading

TRAINED = WeightFiles("prior", "the weights of the shipped complexity")

# Punctuation is left out: it says too little to let it change the choice of a model.
COUNTED = tuple(
    name
    for name in (*KINDS, *SIGNS, "numbers", "different_numbers", "large_numbers", "single_letters")
    if name not in ("ends", "commas", "quotes", "questions", "brackets")
)
MANY = 3  # words or signs of a kind: more of them say nothing new
FLAGS = ("fence", *(f"opens_{word}" for word in OPENERS))
RATES = ("function_words", "long_words")
MAX_RATE = 2.0  # standard deviations of a rate from its mean
# A text with few function words is in a language that the word lists do not read, or it is a list. Nothing is known of
# its task, so its length stands for it: from `UNREAD_FROM`, a logarithm, over a range of `UNREAD_RANGE`.
READ_SHARE = 0.2
UNREAD_FROM, UNREAD_RANGE = 3.5, 1.5
_FUNCTION_AT = NAMES.index("function_words")
_COUNTED_AT, _FLAGS_AT, _RATES_AT = ([NAMES.index(name) for name in names] for names in (COUNTED, FLAGS, RATES))

STRUCTURE_NAMES = (
    *(f"some_{name}" for name in COUNTED), *(f"many_{name}" for name in COUNTED), *FLAGS, *RATES, "unread_length",
)  # fmt: skip

MAX_DEVIATIONS = 3.0  # of the features of the options
LEAST_TASK = -3.0  # of the task, a logit


@dataclass(frozen=True, slots=True)
class Scale:
    """`Scale` has the mean and the standard deviation of features."""

    mean: FloatArray
    deviation: FloatArray

    def __call__(self, values: FloatArray, most: float) -> FloatArray:
        """Return the values in deviations from the mean, clipped to +-`most`. Shape (k,) or (n, k)."""
        return np.asarray(np.minimum(np.maximum((values - self.mean) / self.deviation, -most), most))


@dataclass(frozen=True, slots=True)
class OpenWeights:
    task: FloatArray  # (k,), of the structure
    task_bias: float
    most_task: float  # the upper bound of the task, a logit
    length: float
    learnt: FloatArray  # (k,), of the structure
    slope: float
    bias: float

    def __call__(self, structure: FloatArray, length: FloatArray | float) -> FloatArray:
        """Return the logits. `structure` has shape (k,) or (n, k)."""
        task = np.minimum(np.maximum(structure @ self.task + self.task_bias, LEAST_TASK), self.most_task)
        return np.asarray(self.slope * (task + self.length * length + structure @ self.learnt) + self.bias)


@dataclass(frozen=True, slots=True)
class ExamWeights:
    length: float
    learnt: FloatArray  # (k + o,), of the structure and of the options
    bias: float

    def __call__(self, features: FloatArray, length: FloatArray | float) -> FloatArray:
        """Return the logits. `features` has shape (k + o,) or (n, k + o)."""
        return np.asarray(self.length * length + features @ self.learnt + self.bias)


@dataclass(frozen=True, slots=True)
class PriorWeights:
    digest: str  # hex SHA-256 of the arrays
    rates: Scale
    options: Scale
    open: OpenWeights
    exam: ExamWeights

    def logit(self, reading: PromptReading) -> float:
        """Return the logit of the complexity."""
        structure = structure_of(reading.features, np.float64(reading.length), self.rates)
        if reading.options is None:
            return float(self.open(structure, reading.length))
        options = self.options(reading.options, MAX_DEVIATIONS)
        return float(self.exam(np.concatenate([structure, options]), reading.length))


def structure_of(features: FloatArray, lengths: FloatArray | np.float64, rates: Scale) -> FloatArray:
    """Return the structure of texts by their `NAMES` and lengths, each feature in [-1, 1]. Shape (..., k).

    Counts end at `MANY`, so that the structure says nothing of the length of a text that it can read.
    """
    unread = np.maximum(1.0 - features[..., _FUNCTION_AT] / READ_SHARE, 0.0)
    unread_length = np.minimum(np.maximum((lengths - UNREAD_FROM) / UNREAD_RANGE, 0.0), 1.0)
    counts = np.expm1(features[..., _COUNTED_AT])
    parts = (
        np.minimum(counts, 1.0),
        np.minimum(counts, MANY) / MANY,
        features[..., _FLAGS_AT],
        rates(features[..., _RATES_AT], MAX_RATE) / MAX_RATE,
        (unread * unread_length)[..., np.newaxis],
    )
    return np.concatenate(parts, axis=-1)


def load_prior(directory: Path) -> PriorWeights:
    """Read `prior.npz` and `prior.json`. Raise `WeightsCorrupt`."""
    return TRAINED.load(directory, prior_from)


def prior_from(about: bytes, arrays: bytes) -> PriorWeights:
    """Check and unpack the weights. Raise ValueError, KeyError, TypeError or AttributeError."""
    unpacked = TRAINED.unpack(about, arrays, STRUCTURE_NAMES + OPTION_NAMES)
    tables, numbers = unpacked.tables, unpacked.metadata["numbers"]
    width = len(STRUCTURE_NAMES)

    def number(name: str) -> float:
        value = float(numbers[name])
        if not math.isfinite(value):
            raise ValueError(f"numbers.{name} must be a finite number")
        return value

    return PriorWeights(
        digest=unpacked.digest,
        rates=_scale(tables, "rates", len(RATES)),
        options=_scale(tables, "options", len(OPTION_NAMES)),
        open=OpenWeights(
            task=_array(tables, "open/task", width),
            task_bias=number("task_bias"),
            most_task=number("most_task"),
            length=number("open_length"),
            learnt=_array(tables, "open/learnt", width),
            slope=number("open_slope"),
            bias=number("open_bias"),
        ),
        exam=ExamWeights(
            length=number("exam_length"),
            learnt=_array(tables, "exam/learnt", width + len(OPTION_NAMES)),
            bias=number("exam_bias"),
        ),
    )


def arrays_of(weights: PriorWeights) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays that `prior_from` reads."""
    return {
        "names": np.array(STRUCTURE_NAMES + OPTION_NAMES),
        "rates/mean": weights.rates.mean,
        "rates/deviation": weights.rates.deviation,
        "options/mean": weights.options.mean,
        "options/deviation": weights.options.deviation,
        "open/task": weights.open.task,
        "open/learnt": weights.open.learnt,
        "exam/learnt": weights.exam.learnt,
    }


def numbers_of(weights: PriorWeights) -> dict[str, float]:
    """Return the numbers that `prior_from` reads."""
    return {
        "task_bias": weights.open.task_bias,
        "most_task": weights.open.most_task,
        "open_length": weights.open.length,
        "open_slope": weights.open.slope,
        "open_bias": weights.open.bias,
        "exam_length": weights.exam.length,
        "exam_bias": weights.exam.bias,
    }


def _scale(tables: Tables, name: str, width: int) -> Scale:
    mean, deviation = (_array(tables, f"{name}/{part}", width) for part in ("mean", "deviation"))
    if not (deviation > 0).all():
        raise ValueError(f"{name}/deviation must be above 0")
    return Scale(mean, deviation)


def _array(tables: Tables, name: str, width: int) -> FloatArray:
    values = np.asarray(tables[name], np.float64)
    if values.shape != (width,) or not np.isfinite(values).all():
        raise ValueError(f"{name} must be {width} finite numbers")
    return values
