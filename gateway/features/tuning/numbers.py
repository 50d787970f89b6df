"""Fits the few numbers of the score on labelled pairs, with a ridge towards the shipped ones. Pure.

A ridge towards known numbers keeps them where the labels say little, so a thousand labels suffice:

    minimise  sum of log losses + RIDGE / 2 * sum((w - shipped)^2 * variance of the input)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

import numpy as np
from numpy.typing import NDArray

from gateway.cache.threshold.ledger import BANDS, CENTRES, band_of
from gateway.cache.verifiers import MAX_LOGIT, Combination, FirstCombination, SecondCombination, score_of
from gateway.ports import PriorBands

FloatArray = NDArray[np.float64]
RIDGE = 30.0  # labels that the shipped numbers are worth
CURVE_RIDGE = 30.0
# Traffic hardly has pairs with exchanged words, and the labels of such pairs are wrong most often. So the numbers that
# tell words apart stay. At the threshold of 1 %, 25,000 labels then serve 24 of 40 exchanged pairs that ask something
# else; with only the numbers of near questions held, they serve 32.
HELD = frozenset({"doubt", "near_doubt", "near_refusal", "wording", "wording_doubt"})
STEPS = 30  # Newton steps; some 8 suffice
LEAST = 1e-9
MAX_SLOPE, MAX_OFFSET = 100.0, 100.0  # bounds of `verifiers.calibration_of`


@dataclass(frozen=True, slots=True)
class ScoreInputs:
    """The inputs of the score of some pairs."""

    similarity: FloatArray  # (n,)
    doubt: FloatArray  # (n,) of the trees, in [0, 1]
    logit: FloatArray  # (n,) of the cross-encoder
    words_shared: FloatArray  # (n,) share of the words of both questions that both have
    servable: NDArray[np.bool_]  # (n,) above the floor and without a veto

    def rows(self) -> list[tuple[float, float, float, float]]:
        """Return the arguments of `SecondCombination.log_odds` for each pair."""
        columns = (self.similarity, self.doubt, self.logit, self.words_shared)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def only(self, chosen: NDArray[np.bool_]) -> ScoreInputs:
        """Return the inputs of the pairs that a mask chooses."""
        return ScoreInputs(*(getattr(self, field.name)[chosen] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of the score and their calibration."""

    first: FirstCombination
    second: SecondCombination
    curve: tuple[float, float]
    prior: PriorBands

    def scores(self, inputs: ScoreInputs) -> FloatArray:
        """Return (n,) scores as the verifier computes them; -inf for pairs that are never served."""
        values = np.array([score_of(self.second.log_odds(*row)) for row in inputs.rows()], np.float64)
        return np.where(inputs.servable, values, -np.inf)


def fit(
    shipped: Numbers,
    inputs: ScoreInputs,
    same: NDArray[np.bool_],
    earlier: FloatArray,
    anchors: tuple[ScoreInputs, NDArray[np.bool_]] | None = None,
) -> Numbers:
    """Fit the numbers on labelled pairs.

    `earlier` has the (n,) scores of the shipped verifier, for the bands of the prior. The labelled pairs of `anchors`
    count for the score, too, but not for its calibration.
    """
    use = inputs.servable
    labels, rows = same[use].astype(np.float64), inputs.only(use).rows()
    samples, targets = rows, labels
    if anchors is not None:
        anchor_inputs, anchor_labels = anchors
        samples = [*rows, *anchor_inputs.only(anchor_inputs.servable).rows()]
        targets = np.concatenate([labels, anchor_labels[anchor_inputs.servable].astype(np.float64)])
    first = _refit(shipped.first, [row[:2] for row in samples], targets)
    second = _refit(shipped.second, samples, targets)
    # A lookup reads a neighbour if the highest logit could get it served. So a higher logit must not lower the score.
    high, low = (columns_of(SecondCombination, [(1.0, 0.0, logit, 1.0)])[0] for logit in (MAX_LOGIT, -MAX_LOGIT))
    second = SecondCombination(
        *(
            max(0.0, number) if up > down else number
            for number, up, down in zip(astuple(second), high, low, strict=True)
        )
    )
    numbers = Numbers(first, second, shipped.curve, shipped.prior)
    return calibrate(shipped, numbers, earlier[use], numbers.scores(inputs)[use], labels)


def _refit(shipped: Combination, rows: Sequence[Sequence[float]], labels: FloatArray) -> Combination:
    """Fit a combination again, but for the numbers in `HELD`. `rows` are the arguments of its `log_odds`."""
    kind, numbers = type(shipped), np.array(astuple(shipped), np.float64)
    columns = columns_of(kind, rows)
    free = np.array([field.name not in HELD for field in fields(kind)])
    offset = columns[:, ~free] @ numbers[~free]
    numbers[free] = ridge(columns[:, free][:, 1:], labels, numbers[free].tolist(), offset=offset)
    return kind(*numbers.tolist())


def columns_of(kind: type[Combination], rows: Sequence[Sequence[float]]) -> FloatArray:
    """Return (n, k): how much each of the k numbers counts in a row. Log-odds are linear in the numbers, bias first."""
    size = len(fields(kind))
    units = [kind(*unit) for unit in np.eye(size).tolist()]
    return np.array([[unit.log_odds(*row) for unit in units] for row in rows], np.float64).reshape(-1, size)


def calibrate(
    shipped: Numbers, fitted: Numbers, earlier: FloatArray, scores: FloatArray, labels: FloatArray
) -> Numbers:
    """Return the numbers with a curve and a prior of their own.

    The shipped prior says how often a request's best neighbour falls into each band of the shipped score. Each pair
    gets the weight that gives the pairs that distribution. Their new scores then are the new distribution. A band
    without a pair keeps its share.
    """
    rates = np.array([rate for _, rate in shipped.prior])
    bands = np.array([band_of(score) for score in earlier.tolist()], np.intp)
    counts = np.bincount(bands, minlength=BANDS)
    weights = rates[bands] / counts[bands]
    slope_offset = ridge(
        scores[:, None],
        labels,
        (shipped.curve[1], shipped.curve[0]),
        weights * len(weights) / weights.sum(),
        CURVE_RIDGE,
    )
    offset, slope = (float(each) for each in slope_offset)
    slope, offset = min(max(slope, 0.0), MAX_SLOPE), min(max(offset, -MAX_OFFSET), MAX_OFFSET)
    after = np.array([band_of(score) for score in scores.tolist()], np.intp)
    met = np.bincount(after, weights, BANDS) + np.where(counts == 0, rates, 0.0)
    prior = [(float(share), float(rate)) for share, rate in zip(_wrong_shares(slope, offset), met, strict=True)]
    return Numbers(fitted.first, fitted.second, (slope, offset), prior)


def _wrong_shares(slope: float, offset: float) -> list[float]:
    """Return (BANDS,) wrong shares at the centres of the bands."""
    shares: list[float] = (1.0 / (1.0 + np.exp(np.clip(slope * CENTRES + offset, -30.0, 30.0)))).tolist()
    return shares


def ridge(
    rows: FloatArray,
    labels: FloatArray,
    shipped: Sequence[float],
    weights: FloatArray | None = None,
    strength: float = RIDGE,
    offset: FloatArray | None = None,
) -> list[float]:
    """Return bias and weights of a logistic regression, by Newton's method.

    `rows` has the shape (n, k), and `shipped` (1 + k,). `offset` is added to the (n,) log-odds of the rows.
    """
    columns = np.column_stack([np.ones(len(rows)), rows])
    importance = np.ones(len(rows)) if weights is None else weights
    besides = np.zeros(len(rows)) if offset is None else offset
    towards = np.array(shipped, np.float64)
    # A number counts by how far its input moves the result. So the bias is free: the level follows the labels.
    penalty = np.diag(strength * columns.var(0))
    solution = towards.copy()
    for _ in range(STEPS):
        chance = 1.0 / (1.0 + np.exp(-np.clip(columns @ solution + besides, -30.0, 30.0)))
        slope = columns.T @ (importance * (chance - labels)) + penalty @ (solution - towards)
        curvature = (columns * (importance * chance * (1.0 - chance))[:, None]).T @ columns + penalty
        step = np.linalg.solve(curvature + LEAST * np.eye(len(solution)), slope)
        solution = solution - step
        if float(np.abs(step).max()) < 1e-6:
            break
    numbers: list[float] = solution.tolist()
    return numbers
