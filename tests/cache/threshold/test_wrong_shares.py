"""The wrong share of each band: the calibration without labels, and what labels make of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.cache.threshold.ledger import BANDS, CENTRES, MAX_COUNT
from gateway.cache.threshold.wrong_shares import FloatArray, Posterior, WrongShareModel

ODDS = 4.0 - 7.0 * CENTRES  # from 75 % wrong at the bottom to 0.3 % at the top
CALIBRATION = 1 / (1 + np.exp(-ODDS))
MODEL = WrongShareModel(CENTRES, CALIBRATION)
NOTHING = np.zeros(BANDS)
# Labels of one band: how many, and which part of them is wrong.
COUNTS = st.tuples(st.integers(0, BANDS - 1), st.floats(0, 1e4), st.floats(0, 1))


def labelled(bands: dict[int, tuple[float, float]], model: WrongShareModel = MODEL) -> Posterior:
    """`bands`: labels by band, and those of them that are wrong."""
    labels, wrong = NOTHING.copy(), NOTHING.copy()
    for band, (count, wrong_ones) in bands.items():
        labels[band], wrong[band] = count, wrong_ones
    return model.posterior(labels, wrong)


def mean_of(posterior: Posterior) -> FloatArray:
    return posterior.shares().mean


def counts_of(rows: list[tuple[int, float, float]]) -> dict[int, tuple[float, float]]:
    return {band: (count, count * part) for band, count, part in rows}


def test_without_labels_the_estimate_is_the_calibration() -> None:
    posterior = labelled({})
    assert posterior.odds == pytest.approx(np.log(CALIBRATION / (1 - CALIBRATION)))
    mean = mean_of(posterior)
    middle = slice(10, 35)  # farther out a route's slope is so uncertain that the mean is nearer to one half
    assert mean[middle] == pytest.approx(CALIBRATION[middle], abs=0.07)
    assert (np.abs(mean - 0.5) <= np.abs(CALIBRATION - 0.5) + 1e-12).all()
    assert (np.diff(mean[middle]) < 0).all()


@pytest.mark.parametrize("wrong", [0.0, 60.0])
def test_labels_move_near_bands_more_than_far_ones(wrong: float) -> None:
    model = WrongShareModel(CENTRES, np.full(BANDS, 0.3))
    moved = np.abs(labelled({25: (60.0, wrong)}, model).odds - labelled({}, model).odds)
    assert moved.argmax() == 25
    assert moved[25] > moved[27] > moved[30] > 0


def test_many_labels_outweigh_the_calibration() -> None:
    bands = dict.fromkeys(range(BANDS), (500.0, 200.0))
    assert mean_of(labelled(bands)) == pytest.approx(0.4, abs=0.03)
    assert np.abs(mean_of(labelled({20: (5000.0, 4500.0)}))[20] - 0.9) < 0.01


def test_wrong_labels_below_raise_the_bands_above_by_level() -> None:
    """Misses bring labels below the threshold; the bands above have none of their own."""
    above = slice(20, 32)

    def with_odds(shift: float) -> FloatArray:
        shares = 1 / (1 + np.exp(-(ODDS + shift)))
        return mean_of(labelled({band: (40.0, 40.0 * float(shares[band])) for band in range(8, 20)}))[above]

    assert with_odds(0.0) == pytest.approx(CALIBRATION[above], abs=0.05)
    assert (with_odds(1.0) > 1.3 * with_odds(0.0)).all()
    assert (with_odds(-1.0) < with_odds(0.0) / 1.3).all()


def test_labels_take_doubt_away_where_they_are() -> None:
    before, after = labelled({}), labelled({25: (200.0, 60.0)})
    doubt = np.diag(after.covariance) / np.diag(before.covariance)
    assert doubt[25] == doubt.min()
    assert doubt[25] < 0.05
    assert (doubt <= 1 + 1e-9).all()


@given(st.lists(COUNTS, max_size=12))
@settings(deadline=None, max_examples=40)
def test_the_covariance_is_symmetric_and_of_no_negative_variance(rows: list[tuple[int, float, float]]) -> None:
    posterior = labelled(counts_of(rows))
    for covariance in (posterior.covariance, posterior.shares().covariance):
        assert covariance == pytest.approx(covariance.T, abs=1e-9)
        assert np.linalg.eigvalsh((covariance + covariance.T) / 2).min() >= -1e-9
    counts = np.abs(np.random.default_rng(len(rows)).normal(size=BANDS))
    assert posterior.shares().among(counts)[1] >= 0


@given(st.lists(COUNTS, max_size=20), st.lists(COUNTS, max_size=20))
@settings(deadline=None, max_examples=40)
def test_the_result_does_not_depend_on_where_it_begins(
    rows: list[tuple[int, float, float]], before: list[tuple[int, float, float]]
) -> None:
    """A route begins at its last result, and after a restart at the calibration."""
    earlier, cold = labelled(counts_of(before)), labelled(counts_of(rows))
    labels, wrong = NOTHING.copy(), NOTHING.copy()
    for band, (count, wrong_ones) in counts_of(rows).items():
        labels[band], wrong[band] = count, wrong_ones
    warm = MODEL.posterior(labels, wrong, earlier.pull)
    assert mean_of(warm) == pytest.approx(mean_of(cold), abs=1e-3)
    assert mean_of(MODEL.posterior(labels, wrong, cold.pull)) == pytest.approx(mean_of(cold), abs=1e-3)


@given(st.lists(COUNTS, max_size=20))
@settings(deadline=None, max_examples=40)
def test_the_result_is_the_maximum_of_the_density(rows: list[tuple[int, float, float]]) -> None:
    """There the pull of the labels is the slope of their likelihood: wrong labels beyond those that are expected."""
    bands = counts_of(rows)
    posterior = labelled(bands)
    shares = 1 / (1 + np.exp(-posterior.odds))
    slope = NOTHING.copy()
    for band, (count, wrong) in bands.items():
        slope[band] = wrong - count * shares[band]
    assert posterior.pull == pytest.approx(
        slope, abs=2e-3 * (1 + max((count for count, _ in bands.values()), default=0))
    )


@given(
    st.lists(st.sampled_from([0.0, 1e-12, 1.0, 1e6, MAX_COUNT]), min_size=BANDS, max_size=BANDS),
    st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=BANDS, max_size=BANDS),
)
@settings(deadline=None, max_examples=40)
def test_whatever_the_counts_a_share_is_a_share(labels: list[float], parts: list[float]) -> None:
    counts = np.array(labels)
    shares = MODEL.posterior(counts, counts * np.array(parts)).shares()
    assert ((shares.mean >= 0) & (shares.mean <= 1)).all()
    assert np.isfinite(shares.covariance).all()
