"""Compute the threshold of a route: the lowest score that may be served within the promised share of wrong hits.

The ledger keeps two figures per band of scores:

- How often a request's best neighbour falls into the band. This needs no labels, so a change of traffic or a growing
  cache shows at once.
- How often such a neighbour is wrong. This needs labels: misses give them for free; audits and feedback give them above
  the threshold.

Their product, summed above a threshold, is the expected share of wrong hits. The ledger picks the lowest threshold at
which that share is at most `AIM` of the promise. The wrong share of a band is a mean over all that it may be, so doubt
raises it.

The promise bounds the long run: over any 10,000 requests at most the promised share is wrong with 95 % confidence. At
1 %, 85 true wrong hits in the mean stay below 100 with that probability (Poisson).

The rule stands in place of conformal risk control (Angelopoulos et al. 2022), whose threshold is the lowest with
n/(n+1) R + 1/(n+1) <= a over n labelled lookups. That needs labels above the threshold, which only audits bring: 5 % of
the hits are some 50 labels in 5,000 requests.

Assumption: within a band, labelled lookups are like unlabelled ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.cache.threshold.client_labels import TOGETHER, ClientLabels
from gateway.cache.threshold.wrong_shares import FloatArray, WrongShareModel, WrongShares
from gateway.errors import SnapshotInvalid


@dataclass(slots=True)
class TrafficCounts:
    """The traffic of a route since the last report to the other gateways.

    All fields are sums: adding those of two gateways gives the counts of one process with both traffics.
    """

    requests: int = 0
    neighbours: dict[int, int] = field(default_factory=dict)  # by band of their score
    sized_lookups: float = 0.0  # as in `ThresholdLedger`
    log_size: float = 0.0
    hits: int = 0

    def __bool__(self) -> bool:
        return bool(self.requests or self.neighbours or self.hits)

    def as_row(self) -> tuple[Any, ...]:
        return self.requests, self.neighbours, self.sized_lookups, self.log_size, self.hits

    @classmethod
    def of_row(cls, row: tuple[Any, ...]) -> TrafficCounts:
        """Build the counts from `as_row`. Raise `ValueError` or `TypeError` for any other row."""
        requests, neighbours, sized_lookups, log_size, hits = row
        if not isinstance(neighbours, Mapping):
            raise TypeError(f"bands are a {type(neighbours).__name__}, expected a mapping")
        counts = {int(band): int(count) for band, count in neighbours.items()}
        traffic = cls(int(requests), counts, float(sized_lookups), float(log_size), int(hits))
        if min(traffic.requests, traffic.hits, *counts.values(), 0) < 0:
            raise ValueError("counts must not be negative")
        return traffic


BANDS, LOWEST, WIDTH = 50, 0.40, 0.02  # scores outside count in the lowest or the highest band

CENTRES: FloatArray = LOWEST + WIDTH * (np.arange(BANDS, dtype=np.float64) + 0.5)

# Share of the promise that the expected wrong hits may take. Over ten orders of two streams with raw labels, .56 to .74
# of promises of 0.5, 1 and 2 % are wrong. Two of the 60 orders are above their promise, by 1.5 % of it at most.
AIM = 0.86

LABEL_MEMORY = 10_000  # requests after which a label's weight is 1/e, because traffic changes

TRAFFIC_MEMORY = 2000  # the same for the frequency of a band

PRIOR_REQUESTS = 200.0

LEAST_SHARE, GREATEST_SHARE = 0.01, 0.97  # of the calibration, whose data are not this route's

# Exponent of wrong hits over the number of entries. Measured: they double when the cache is 3.5 times as large.
GROWTH = 0.55

MAX_GROWTH = 8.0  # beyond this factor only labels can tell

# A young cache has few entries to be wrong with. This factor holds up to some 140 entries. A promise of 1 % then allows
# scores that are wrong one time in five, and a lower factor would allow worse ones, to save a few requests.
MIN_GROWTH = 0.32

PRIOR_ENTRIES = 1100  # geometric mean of the entries that the neighbours of the calibration were the nearest of

MAX_COUNT = 1e9  # far beyond what fades; a greater one in a snapshot is damage

MAX_PENDING_OBSERVATIONS = 64  # observations between two updates of the arrays

MAX_AUDIT_WEIGHT, MIN_AUDIT_WEIGHT = 5.0, 0.3  # factors on the mean audit share


@dataclass(frozen=True, slots=True)
class ThresholdState:
    """The figures of the ledger at one moment."""

    threshold: float  # the lowest score that may be served
    shares: WrongShares
    rates: FloatArray  # (BANDS,) neighbours in each band per request, times the factor of the entries on wrong hits

    def audit_weights(self) -> list[float]:
        """Return for each band the factor on the mean audit share.

        Bands with the most uncertainty are audited most (Neyman allocation). All hits of a band have the same chance,
        so no estimate is biased.
        """
        doubts = np.sqrt(np.maximum(np.diag(self.shares.covariance), 0.0))
        served = slice(band_of(self.threshold), BANDS)
        mean = float((self.rates[served] * doubts[served]).sum() / max(self.rates[served].sum(), 1e-12))
        if mean <= 0:
            return [1.0] * BANDS
        weights: list[float] = np.clip(doubts / mean, MIN_AUDIT_WEIGHT, MAX_AUDIT_WEIGHT).tolist()
        return weights


class ThresholdLedger:
    """The counts of labels and of traffic of one route, by band.

    `prior` has (share wrong, neighbours per request) for each band, from the verifier's calibration.
    """

    def __init__(self, prior: Sequence[tuple[float, float]]) -> None:
        shares, rates = np.array(prior, np.float64).T
        self._model = WrongShareModel(CENTRES, np.clip(shares, LEAST_SHARE, GREATEST_SHARE))
        self._prior_neighbours = rates * PRIOR_REQUESTS
        self.restore(np.zeros(BANDS), np.zeros(BANDS), np.zeros(BANDS))

    def restore(
        self,
        labels: np.ndarray,
        wrong: np.ndarray,
        neighbours: np.ndarray,
        requests: float = 0.0,
        sized_lookups: float = 0.0,
        log_size: float = 0.0,
    ) -> None:
        """Replace all counts.

        `sized_lookups` counts the lookups with a known number of entries. `log_size` is the sum of that number's
        logarithm over them.
        """
        self._labels, self._wrong, self._neighbours = labels, wrong, neighbours
        self.clients = ClientLabels(BANDS)
        self._pull: FloatArray | None = None  # of the last posterior: where the next one begins
        self._pending_requests = 0  # requests not yet applied to the arrays
        # not yet applied either: (band, `_pending_requests` at that moment)
        self._observations: list[tuple[int, int]] = []
        self.requests, self.sized_lookups, self.log_size = requests, sized_lookups, log_size

    @property
    def labels(self) -> np.ndarray:
        self._catch_up()
        return self._labels

    @property
    def wrong(self) -> np.ndarray:
        self._catch_up()
        return self._wrong

    @property
    def neighbours(self) -> np.ndarray:
        self._catch_up()
        return self._neighbours

    def advance(self, requests: int) -> None:
        """Count requests since the last call, with or without a neighbour."""
        if requests <= 0:
            return
        self._pending_requests += requests
        fade = (1 - 1 / TRAFFIC_MEMORY) ** requests
        self.sized_lookups *= fade
        self.log_size *= fade
        self.requests = self.requests * fade + (1 - fade) * TRAFFIC_MEMORY

    def _catch_up(self) -> None:
        """Apply pending requests and observations to the arrays. The arrays are read only every ten lookups or so."""
        pending, decay = self._pending_requests, 1 - 1 / TRAFFIC_MEMORY
        if pending:
            fade = (1 - 1 / LABEL_MEMORY) ** pending
            self._labels *= fade
            self._wrong *= fade
            self._neighbours *= decay**pending
            self.clients.fade(fade)
        for band, then in self._observations:
            self._neighbours[band] += decay ** (pending - then)
        self._pending_requests = 0
        self._observations.clear()

    def observe(self, score: float, entries: int = 0) -> None:
        """Count a request whose best neighbour has this score, served or not.

        Its cache has `entries` entries, or 0 if their number is not known.
        """
        self._observations.append((band_of(score), self._pending_requests))
        if len(self._observations) >= MAX_PENDING_OBSERVATIONS:
            self._catch_up()
        if entries > 0:
            self.sized_lookups += 1
            self.log_size += math.log(entries)

    def add(self, traffic: TrafficCounts) -> None:
        """Add the traffic of another gateway."""
        self.advance(traffic.requests)
        neighbours = self.neighbours
        for band, count in traffic.neighbours.items():
            neighbours[min(BANDS - 1, max(0, band))] += count
        self.sized_lookups += traffic.sized_lookups
        self.log_size += traffic.log_size

    @property
    def typical_entries(self) -> float:
        """The geometric mean of the entries that the counted lookups searched; that of the calibration without any."""
        return math.exp(self.log_size / self.sized_lookups) if self.sized_lookups > 0 else PRIOR_ENTRIES

    def label(self, score: float, wrong: float, client: str = TOGETHER, weight: float = 1.0) -> None:
        """Record that a neighbour with this score was wrong (1) or right (0), or how likely it was wrong. `client` sent
        the request. `weight` is the evidence of the label, in [0, 1]."""
        band = band_of(score)
        self.labels[band] += weight
        self.wrong[band] += weight * wrong
        self.clients.add(client, band, wrong, weight)

    def state_for(self, max_wrong_hits: float, entries: float = 0.0) -> ThresholdState:
        """Return the state for a promise in wrong hits over all requests, in a scope of `entries`. 0: not known."""
        return self.state_of(self.wrong_shares(), max_wrong_hits, entries)

    def state_of(self, shares: WrongShares, max_wrong_hits: float, entries: float = 0.0) -> ThresholdState:
        """Return the state for `shares`, which `wrong_shares` has returned. See `state_for`."""
        rates = self._rates(entries)
        return ThresholdState(_lowest(shares, rates, AIM * max_wrong_hits), shares, rates)

    def threshold_for(self, client: str | None, state: ThresholdState, max_wrong_hits: float) -> float:
        """Return the threshold of one client, at least that of all. `client` comes from `ClientLabels.group`.

        `state` has the same promise.
        """
        counted = self.clients.view(client)
        if counted is None:
            return state.threshold
        shares = self._model.posterior(counted[0], counted[1]).shares()
        return max(state.threshold, _lowest(shares, state.rates, AIM * max_wrong_hits))

    def threshold(self, max_wrong_hits: float, entries: float = 0.0) -> float:
        """Return the threshold for a promise in a scope of `entries`. See `ThresholdState`."""
        return self.state_for(max_wrong_hits, entries).threshold

    def wrong_shares(self) -> WrongShares:
        """Return the share of wrong neighbours in each band, from calibration and labels."""
        posterior = self._model.posterior(self.labels, self.wrong, self._pull)
        self._pull = posterior.pull
        return posterior.shares()

    def wrong_among(self, served: Sequence[float]) -> tuple[float, float]:
        """Return mean and variance of the wrong answers among `served`, the served answers by band.

        The variance includes the uncertainty of the rates.
        """
        counts, shares = np.asarray(served, np.float64), self.wrong_shares()
        mean, variance = shares.among(counts)
        return mean, variance + float(counts @ (shares.mean * (1 - shares.mean)))

    def _rates(self, entries: float) -> np.ndarray:
        """Return the neighbours in each band per request. Those of the route and those of the calibration are from
        caches of other sizes, so each has a factor of its own. One factor for both would take the neighbours of the
        calibration for those of a cache as small as the route's was so far."""
        own = growth(entries, self.typical_entries) * self.neighbours
        prior = growth(entries, PRIOR_ENTRIES) * self._prior_neighbours
        rates: np.ndarray = (own + prior) / (self.requests + PRIOR_REQUESTS)
        return rates


def growth(entries: float, typical: float) -> float:
    """Return the factor on wrong hits in a cache of `entries`, compared with one of `typical` entries.

    The factor is 1 if `entries` is 0, which means not known.
    """
    return 1.0 if entries <= 0 else min(MAX_GROWTH, max(MIN_GROWTH, (entries / typical) ** GROWTH))


def _lowest(shares: WrongShares, rates: FloatArray, limit: float) -> float:
    """Return the lowest threshold whose expected wrong hits per request are at most `limit`."""
    expected = np.cumsum((rates * shares.mean)[::-1])[::-1]
    over = np.flatnonzero(expected > limit)
    return LOWEST + WIDTH * (int(over[-1]) + 1 if len(over) else 0)


def band_of(score: float) -> int:
    return min(BANDS - 1, max(0, int((score - LOWEST) / WIDTH + 1e-9)))


def band_counts(values: Sequence[float], bands: int) -> NDArray[np.float64]:
    """Read counts by band, shape (bands,), from a snapshot. Raise `SnapshotInvalid`."""
    array = np.array(values, np.float64)
    if array.shape != (bands,) or not ((array >= 0) & (array <= MAX_COUNT)).all():  # a NaN is neither
        raise SnapshotInvalid(f"counts have shape {array.shape}, expected {bands} counts from 0 to {MAX_COUNT:g}")
    return array
