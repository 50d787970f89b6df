"""Fits a head on the outcomes of many models, so that it ranks prompts better than their length does for every pair.

The file has one line for each prompt: `{"prompt": ..., "scores": {model: 0..1}}`. A pair is a light and a large model
where the large one is better on average. One score serves all pairs, although their gaps lie on different prompts. So
the head maximises the smallest advantage over prompt length among all pairs, not the mean one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.stats import norm

from gateway.routing.prompt_features import FloatArray

# The advantage over length is divided by its standard error plus `ROOM`, so that pairs with small gaps do not decide.
ROOM = 0.02
# Chosen by leave-part-out: the temperature of the soft minimum over pairs, and the penalty on the weights.
TEMPERATURE, PENALTY = 0.3, 0.1
STEPS = 120
# The penalty on the mean square move of a score with the spelling of its prompt, in units of the scores' variance.
SPELLING = 40.0
# The sum must also keep its correlation with the grades of graded prompts, which are more like everyday questions.
AGREEMENT, AGREEMENT_ROOM = 0.82, 0.02
# The descent starts at length itself, at so many times the spread of the graded prompts' part.
_START_RIDGE, BLEND = 100.0, 3.0


@dataclass(frozen=True, slots=True)
class ManyOutcomes:
    """n prompts that m models answered."""

    prompts: Sequence[str]
    features: FloatArray  # (n, k), of the text alone
    vectors: FloatArray  # (n, d)
    models: Sequence[str]
    scores: FloatArray  # (n, m), in [0, 1]
    # Features and vectors of the same prompts in other spellings, which should not change a score.
    spellings: Sequence[tuple[FloatArray, FloatArray]]

    def at(self, chosen: npt.NDArray[np.bool_]) -> ManyOutcomes:
        prompts = [self.prompts[int(at)] for at in np.flatnonzero(chosen)]
        spellings = [(features[chosen], vectors[chosen]) for features, vectors in self.spellings]
        rest = (self.features[chosen], self.vectors[chosen], self.models, self.scores[chosen])
        return ManyOutcomes(prompts, *rest, spellings)

    @property
    def lengths(self) -> FloatArray:
        return np.array([len(prompt) for prompt in self.prompts], float)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The pairs (light, large), as columns of `scores`."""
        means, count = self.scores.mean(0), range(len(self.models))
        return [(light, large) for light in count for large in count if means[large] > means[light]]

    @property
    def gains(self) -> FloatArray:
        """Return (n, pairs): how much better the large model's answer is, in units of the pair's mean gap."""
        by_pair = np.stack([self.scores[:, large] - self.scores[:, light] for light, large in self.pairs], axis=1)
        return np.asarray(by_pair / by_pair.mean(0))


def ranks(values: FloatArray) -> FloatArray:
    """Return (n,), spread evenly over (-1/2, 1/2)."""
    return np.asarray((np.argsort(np.argsort(values, kind="stable")) + 0.5) / len(values) - 0.5)


@dataclass(frozen=True, slots=True)
class Part:
    """The inputs of the head for some prompts."""

    rows: FloatArray  # (n, k)
    offset: FloatArray  # (n,), the score that the head adds to


@dataclass(frozen=True, slots=True)
class Moves:
    """The mean square change of a score with the spelling of its prompt: a quadratic function of the head's weights.

    It makes the head deaf to such noise, as training on noisy copies does (Bishop 1995).
    """

    squares: FloatArray  # (k, k)
    products: FloatArray  # (k,), with the changes of the offset
    constant: float

    def __call__(self, weights: FloatArray) -> tuple[float, FloatArray]:
        """Return the mean square, and its gradient."""
        inner = self.squares @ weights
        return float(weights @ inner + 2 * self.products @ weights + self.constant), 2 * (inner + self.products)


def moves(asked: Part, spellings: Sequence[Part]) -> Moves:
    """Return the moves. `spellings`: the inputs of the same prompts in other spellings."""
    rows = np.vstack([each.rows - asked.rows for each in spellings])
    offset = np.concatenate([each.offset - asked.offset for each in spellings])
    return Moves(rows.T @ rows / len(rows), rows.T @ offset / len(rows), float(np.square(offset).mean()))


def gain_head(asked: Part, moved: Moves, seen: ManyOutcomes, graded: Part, grades: FloatArray) -> FloatArray:
    """Return weights (k,) such that `offset + rows @ weights` ranks well for every pair, and the graded prompts too.

    The area under a pair's curve is 1/2 + mean(gain * rank(score)). The normal distribution function of the
    standardised score replaces the rank, as it has a gradient.
    """
    rows, offset = asked.rows - asked.rows.mean(0), asked.offset - asked.offset.mean()
    length, gains, count = ranks(seen.lengths), seen.gains, len(rows)
    scales = gains.std(0) * np.sqrt(1 / 12 / count) + ROOM
    wanted = (gains * length[:, None]).mean(0)
    grade = (grades - grades.mean()) / grades.std() / len(grades)

    def loss(weights: FloatArray) -> tuple[float, FloatArray]:
        score, rated = offset + rows @ weights, graded.offset + graded.rows @ weights
        spread, rated_spread = score.std(), rated.std()
        level = score / spread
        agreement = float(grade @ rated) / rated_spread
        margins = ((gains * (norm.cdf(level) - 0.5)[:, None]).mean(0) - wanted) / scales
        margins = np.append(margins, (agreement - AGREEMENT) / AGREEMENT_ROOM)
        parts = np.exp(-(margins - margins.min()) / TEMPERATURE)
        value = margins.min() - TEMPERATURE * np.log(parts.sum())
        parts /= parts.sum()
        by_level = gains @ (parts[:-1] / scales) / count * norm.pdf(level)
        by_score = by_level / spread - score * (by_level @ score) / (spread**3 * count)
        centred = (rated - rated.mean()) / (rated_spread * len(rated))
        by_rated = parts[-1] / AGREEMENT_ROOM * (grade - agreement * centred) / rated_spread
        move, by_move = moved(weights)
        size = (PENALTY * float(weights @ weights) + SPELLING * move) / spread**2
        shrink = (PENALTY * 2 * weights + SPELLING * by_move) / spread**2
        shrink -= 2 * size / (spread * spread * count) * (rows.T @ score)
        return float(size - value), shrink - rows.T @ by_score - graded.rows.T @ by_rated

    inner = rows.T @ rows + _START_RIDGE * np.eye(rows.shape[1])
    begin = np.linalg.solve(inner, rows.T @ length)
    begin *= BLEND * float(offset.std() / (rows @ begin).std())
    found = minimize(loss, begin, jac=True, method="L-BFGS-B", options={"maxiter": STEPS})
    return np.asarray(found.x)
