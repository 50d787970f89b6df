"""Fit a route's own complexity to its labels, and judge whether it helps. Pure.

A label has three values, the gain of the large model's answer over the light one's: 1 better, 0 equal, -1 worse. Two
models predict the gain of a prompt from its row:

    ridge       ridge regression: the difference of one linear model of each answer's quality (Hoerl and Kennard 1970)
    neighbours  the mean gain of the 50 nearest labelled prompts, by features and embedding (Cover and Hart 1967)

    u = share * (ridge + 2 * neighbours) + (1 - share) * logit(shipped), each in standard deviations
    P(the light answer is worse) = sigmoid(slope * u + bias)

The share is labels / (labels + 300), so few labels change little. `slope` and `bias` are fitted on predictions for
prompts that the models had not seen, so the result is a calibrated probability.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.routing.prompt_features import NAMES
from gateway.scores import PromptRow, ScoredPrompt

Floats = NDArray[np.float64]
Rows = NDArray[np.float32]

CAPACITY = 4_000  # labels of a route: 4 MB with embeddings of 384 numbers

RIDGE = 100.0  # penalty. On outcomes of nine models 30 and 300 differ by less than two points of APGR
NEIGHBOURS, NEAR_WEIGHT = 50, 2.0  # of the gain, and their weight beside the ridge
_SPREAD = math.sqrt(1 + NEAR_WEIGHT + NEAR_WEIGHT**2)  # of both together, correlated by one half
FEATURES, FEATURE_PART = len(NAMES) + 1, 0.7  # numbers of a row before its embedding, and their part in a distance

HALF_SHARE = 300  # labels with which the route's own models weigh half. It keeps 200 labels from costing a point

MAX_DEVIATIONS = 3.0  # of each part of `u`: labels come from clients, too
SLOPE_PRECISION, BIAS_PRECISION = 4.0, 0.5  # of the priors of the slope around 1 and of the bias around 0
STEPS, SMALL_STEP = 8, 1e-4  # of Newton's method

FOLDS = 5  # of the predictions for prompts that a model had not seen

# Standard errors of the gain for a share of 1. Predictions of the folds depend on each other, so 3 are worth some 2.
# The demand grows with the share to this power, as a fit of few labels moves little: .8 with 200 labels, 2 with 1,000.
MARGIN, DEMAND_POWER = 3.0, 1.5


class PromptLabels:
    """The last `capacity` labelled prompts of a route, in the order of arrival."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._rows: NDArray[np.float16] | None = None  # (capacity, k), allocated at the first label
        self._rest = np.zeros((capacity, 3), np.float32)  # shipped score, gain, weight
        self._next = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, prompt: ScoredPrompt, gain: float, weight: float) -> None:
        """Add a label. A row of another width than the first one is ignored."""
        if self._rows is None:
            self._rows = np.zeros((self._capacity, len(prompt.row)), np.float16)
        if self._rows.shape[1] != len(prompt.row):
            return
        self._rows[self._next] = prompt.row
        self._rest[self._next] = prompt.score, gain, weight
        self._next = (self._next + 1) % self._capacity
        self._count = min(self._count + 1, self._capacity)

    def arrays(self) -> LabelArrays:
        """Return a copy, oldest first."""
        order = (np.arange(self._count) + (self._next if self._count == self._capacity else 0)) % self._capacity
        rows = np.zeros((0, 0), np.float16) if self._rows is None else self._rows[order]
        return LabelArrays(rows, self._rest[order])

    def restore(self, labels: LabelArrays) -> None:
        """Load the result of `arrays`. Raise `ValueError` where it cannot be one."""
        rows, rest = labels.rows[-self._capacity :], labels.rest[-self._capacity :]
        if len(rows) != len(rest) or not (np.isfinite(rows).all() and np.isfinite(rest).all()):
            raise ValueError(f"{len(rows)} rows with {len(rest)} labels, expected as many finite ones")
        if ((rest[:, ::2] < 0) | (rest[:, ::2] > 1)).any() or (np.abs(rest[:, 1]) > 1).any():
            raise ValueError("scores and weights must be in [0, 1], and gains in [-1, 1]")
        if not len(rest):
            return
        self._rows = np.zeros((self._capacity, rows.shape[1]), np.float16)
        self._rows[: len(rows)], self._rest[: len(rest)] = rows, rest
        self._count, self._next = len(rest), len(rest) % self._capacity


@dataclass(frozen=True, slots=True)
class LabelArrays:
    rows: NDArray[np.float16]  # (n, k)
    rest: NDArray[np.float32]  # (n, 3): the shipped score, the gain, and the weight

    def __len__(self) -> int:
        return len(self.rest)

    def at(self, chosen: NDArray[np.bool_]) -> LabelArrays:
        return LabelArrays(self.rows[chosen], self.rest[chosen])

    @property
    def logits(self) -> Floats:
        return _logits(self.rest[:, 0].astype(np.float64))

    @property
    def gains(self) -> Floats:
        return self.rest[:, 1].astype(np.float64)

    @property
    def weights(self) -> Floats:
        return self.rest[:, 2].astype(np.float64)


@dataclass(frozen=True, slots=True)
class GainModels:
    """The two models of the gain. Predictions are those of `ridge` and `neighbours`, shape (n, 2)."""

    ridge: Rows  # (k + 1,), the bias last
    places: Rows  # (n, k): the labelled prompts, each of length 1
    moves: Rows  # (n,): the weight of a label times its distance from the mean gain

    def __call__(self, rows: NDArray[np.float16]) -> Floats:
        wide = rows.astype(np.float32)
        linear = wide @ self.ridge[:-1] + self.ridge[-1]
        near = _places(wide) @ self.places.T
        count = min(NEIGHBOURS, len(self.places))
        nearest = np.argpartition(near, -count, axis=1)[:, -count:]
        return np.stack([linear, self.moves[nearest].mean(1)], axis=1).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Blend:
    """The numbers that turn predictions into a probability."""

    share: float  # of the route's own models, in [0, 1)
    means: tuple[float, float, float]  # of ridge, neighbours, and the shipped logit
    deviations: tuple[float, float, float]
    slope: float
    bias: float

    def inner(self, predicted: Floats, logits: Floats) -> Floats:
        """Return `u` of prompts, by predictions (n, 2) and shipped logits (n,)."""
        parts = (np.column_stack([predicted, logits]) - self.means) / self.deviations
        ridge, neighbours, shipped = np.clip(parts, -MAX_DEVIATIONS, MAX_DEVIATIONS).T
        own = (ridge + NEAR_WEIGHT * neighbours) / _SPREAD
        return np.asarray(self.share * own + (1.0 - self.share) * shipped)

    def numbers(self) -> tuple[float, ...]:
        return (self.share, *self.means, *self.deviations, self.slope, self.bias)


@dataclass(frozen=True, slots=True)
class RouteFit:
    """A route's own score."""

    models: GainModels
    blend: Blend

    def score(self, prompt: ScoredPrompt) -> float:
        """Return the probability that the light answer is worse. The shipped score, if the row does not fit."""
        if len(prompt.row) + 1 != len(self.models.ridge):
            return prompt.score
        return float(self.scores(prompt.row[np.newaxis], np.array([prompt.score]))[0])

    def scores(self, rows: NDArray[np.float16], shipped: Floats) -> Floats:
        """Return (n,) probabilities of prompts by their rows and shipped scores."""
        inner = self.blend.inner(self.models(rows), _logits(shipped))
        return _sigmoid(self.blend.slope * inner + self.blend.bias)


def fit_models(labels: LabelArrays) -> GainModels:
    """Fit both models. It takes 0.1 s on one core for 4,000 labels of 461 numbers."""
    rows, weights = labels.rows.astype(np.float32), labels.weights.astype(np.float32)
    total = max(1e-9, float(weights.sum()))
    mean, centre = float(weights @ labels.gains) / total, (weights @ rows) / np.float32(total)
    inner = (rows - centre) * np.sqrt(weights)[:, np.newaxis]
    rest = ((labels.gains - mean) * np.sqrt(labels.weights)).astype(np.float32)
    normal = (inner.T @ inner).astype(np.float64) + RIDGE * np.eye(rows.shape[1])
    slopes = np.linalg.solve(normal, (inner.T @ rest).astype(np.float64))
    ridge = np.append(slopes, mean - centre @ slopes).astype(np.float32)
    return _gain_models(labels, ridge)


@dataclass(frozen=True, slots=True)
class JudgedFit:
    """A blend, and how much better it orders prompts than the shipped score does."""

    blend: Blend
    gain: float  # in standard errors
    passes: bool


def judge_fit(labels: LabelArrays) -> JudgedFit:
    """Return the blend for these labels, judged by predictions for prompts that the models had not seen.

    The gain is the t statistic of the models' prediction, in a regression of the labels on it and the shipped score.
    The blend must also order the prompts better: the area between both curves of the gain against the large model's
    share must be above 0.
    """
    predicted, fold = np.zeros((len(labels), 2)), np.arange(len(labels)) % FOLDS
    for number in range(FOLDS):
        unseen = fold == number
        predicted[unseen] = fit_models(labels.at(~unseen))(labels.rows[unseen])
    logits, gains, weights = labels.logits, labels.gains, labels.weights
    share = len(labels) / (len(labels) + HALF_SHARE)
    parts = np.column_stack([predicted, logits])
    means, deviations = parts.mean(0), parts.std(0) + 1e-9
    bare = Blend(share, _three(means), _three(deviations), 1.0, 0.0)
    inner = bare.inner(predicted, logits)
    slope, bias = _calibrated(inner, (gains > 0).astype(float), weights)
    own = ((predicted - means[:2]) / deviations[:2]) @ (1.0, NEAR_WEIGHT)
    known = (logits - means[2]) / deviations[2]
    gain, area = _partial_t(gains, known, own, weights), _area(inner, gains, weights) - _area(logits, gains, weights)
    if area <= 0:
        gain = min(0.0, gain)
    blend = Blend(share, bare.means, bare.deviations, slope, bias)
    return JudgedFit(blend, gain, gain >= MARGIN * share**DEMAND_POWER)


def _partial_t(gains: Floats, known: Floats, own: Floats, weights: Floats) -> float:
    """Return the t statistic of `own` beside `known`, with errors that hold for any variance (White 1980)."""
    design = np.column_stack([np.ones(len(gains)), known, own])
    normal = (design.T * weights) @ design
    if np.linalg.matrix_rank(normal) < len(normal):  # labels or prompts that are all alike
        return 0.0
    inverse = np.linalg.inv(normal)
    found = inverse @ (design.T @ (weights * gains))
    rest = weights * (gains - design @ found)
    variance = float((inverse @ ((design.T * np.square(rest)) @ design) @ inverse)[2, 2])
    return float(found[2]) / math.sqrt(variance) if variance > 1e-18 else 0.0


def _area(scores: Floats, gains: Floats, weights: Floats) -> float:
    """Return the mean gain times the rank of a score, which is the area under the curve of the recovered gain."""
    ranks = np.argsort(np.argsort(scores, kind="stable"), kind="stable") / len(scores)
    return float(weights @ ((ranks - 0.5) * gains))


def _calibrated(inner: Floats, worse: Floats, weights: Floats) -> tuple[float, float]:
    """Return slope and bias of P(worse) over `inner`: Platt's scaling by Newton's method, with priors."""
    design, prior = np.column_stack([inner, np.ones(len(inner))]), np.array([1.0, 0.0])
    precision, found = np.diag([SLOPE_PRECISION, BIAS_PRECISION]), prior.copy()
    for _ in range(STEPS):
        sure = _sigmoid(design @ found)
        slope = design.T @ (weights * (worse - sure)) - precision @ (found - prior)
        curvature = (design.T * (weights * sure * (1 - sure))) @ design + precision
        step = np.linalg.solve(curvature, slope)
        # A step is at most 1, because the method overshoots far away.
        found = found + step / max(1.0, float(np.abs(step).max()))
        if float(np.abs(step).max()) < SMALL_STEP:
            break
    return max(1e-3, float(found[0])), float(found[1])


def fit_from(labels: LabelArrays, ridge: Rows, numbers: Sequence[float]) -> RouteFit:
    """Return the fit to these labels, with its saved numbers. Raise `ValueError` where they cannot be of one."""
    values = [float(number) for number in numbers]
    if len(values) != 9 or not np.isfinite(values).all() or not 0 <= values[0] <= 1 or min(values[4:7]) <= 0:
        raise ValueError("expected nine finite numbers of a fit")
    if not len(labels) or ridge.shape != (labels.rows.shape[1] + 1,) or not np.isfinite(ridge).all():
        raise ValueError("expected the labels of a fit, and a finite weight for each number of their rows")
    blend = Blend(values[0], _three(values[1:4]), _three(values[4:7]), values[7], values[8])
    return RouteFit(_gain_models(labels, ridge), blend)


def _gain_models(labels: LabelArrays, ridge: Rows) -> GainModels:
    mean = float(labels.weights @ labels.gains) / max(1e-9, float(labels.weights.sum()))
    moves = (labels.weights * (labels.gains - mean)).astype(np.float32)
    return GainModels(ridge, _places(labels.rows.astype(np.float32)), moves)


def row_from(data: bytes) -> PromptRow:
    """Return the row that `row.astype("<f2").tobytes()` gave. Raise `ValueError`."""
    row = np.frombuffer(data, "<f2")
    if not np.isfinite(row).all():
        raise ValueError("a prompt's row must be finite numbers")
    return row


def _places(rows: Rows) -> Rows:
    """Return the rows as places whose products are similarities: features and embedding have fixed parts."""
    features, vectors = _unit(rows[:, :FEATURES]) * np.float32(FEATURE_PART), _unit(rows[:, FEATURES:])
    return _unit(np.hstack([vectors, features]))


def _unit(rows: Rows) -> Rows:
    return np.asarray(rows / (np.linalg.norm(rows, axis=1, keepdims=True) + np.float32(1e-9)))


def _logits(scores: Floats) -> Floats:
    clipped = np.clip(scores, 1e-6, 1 - 1e-6)
    return np.asarray(np.log(clipped / (1 - clipped)))


def _sigmoid(values: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.clip(values, -20, 20))))


def _three(values: Floats | list[float]) -> tuple[float, float, float]:
    first, second, third = (float(value) for value in values)
    return first, second, third
