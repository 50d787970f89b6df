"""Estimates what another choice among models would have cost and kept on recorded traffic. Pure.

The traffic says which requests a backend answered, with their complexity, tokens and dollars. The comparisons of audits
and shadows say how often a lighter model's answer was as good as the best one's. They stand for the requests of their
band of complexity, whatever share of it was compared. Nothing is known of a band without any, so its requests count as
lost at the lower end and as kept at the upper one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gateway.cache.threshold.wrong_hits import Label, wilson_interval
from gateway.config.policy.model import Route
from gateway.config.policy.parameters import untuned
from gateway.prices import UNPRICED, Price, Tariff
from gateway.routing.tier_controller import BANDS, band_of
from gateway.steps.traffic_log.format import FAILED, RecordedComparison, RecordedRequest
from gateway.steps.traffic_log.reader import TrafficLog

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

SHARES = tuple(share / 10 for share in range(11))  # of the requests that the light model gets, along a curve
EVERYTHING = 1.0  # the threshold that no complexity exceeds
NOTHING_LIGHT = -1.0  # the threshold that every complexity exceeds
LEAST_COVERED = 0.95  # of a model's requests: with less at complexities that were compared, there is no figure
Z = 1.96  # 95 %


class Estimate(NamedTuple):
    """A figure with its 95 % interval. None: nothing is known."""

    value: float | None
    low: float | None
    high: float | None


ALL_KEPT = Estimate(1.0, 1.0, 1.0)
UNKNOWN_SHARE = Estimate(None, 0.0, 1.0)
NOTHING = Estimate(None, None, None)


@dataclass(slots=True)
class Evidence:
    """The comparisons behind an estimate, by what they found."""

    as_good: int = 0
    worse: int = 0
    undecided: int = 0
    failed: int = 0

    @property
    def compared(self) -> int:
        return self.as_good + self.worse + self.undecided + self.failed

    def add(self, label: str) -> None:
        self.as_good += label == Label.RIGHT
        self.worse += label == Label.WRONG
        self.undecided += label == Label.UNDECIDED
        self.failed += label == FAILED


@dataclass(frozen=True, slots=True)
class Alternative:
    """A choice among two models: `light` up to the `threshold` of complexity, and the best model above it."""

    light: str
    threshold: float | None  # None: as the traffic was answered
    requests: int
    light_requests: int
    cost: Estimate  # US dollars; a value of None: a model has no price
    kept: Estimate  # the share of all requests with the best model's answer, or one as good
    light_kept: Estimate  # the same share of the light model's requests
    evidence: Evidence
    covered: float  # the share of the light model's requests at a complexity where something was compared


@dataclass(frozen=True, slots=True)
class _Calls:
    """The recorded calls of a route, with the least complex one first."""

    rows: tuple[RecordedRequest, ...]
    backends: NDArray[np.str_]
    scores: Floats
    bands: NDArray[np.int_]
    dollars: Floats


@dataclass(slots=True)
class Alternatives:
    """The alternatives of one route. `prices` are those of the backends."""

    route: Route
    traffic: TrafficLog
    prices: Mapping[str, Tariff]
    left_out: int = field(default=0, init=False)  # calls without tokens, or without a complexity
    _calls: _Calls = field(init=False)
    _comparisons: list[RecordedComparison] = field(init=False)
    _price: Callable[[str, str], Price] = field(init=False)
    _priced: dict[str, Floats] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._price = cache(lambda backend, model: self.prices.get(untuned(backend), UNPRICED).price(model))
        self._comparisons = [row for row in self.traffic.comparisons if row.route == self.route.name]
        self._calls = self._read([row for row in self.traffic.requests if row.route == self.route.name])

    @property
    def has_tiers(self) -> bool:
        return len(self.route.target.tiers) > 1

    @property
    def best(self) -> frozenset[str]:
        """The backends whose answers are the standard: those of the last tier."""
        tier = self.route.target.tiers[-1]
        return frozenset((tier.backend, *tier.members))

    @property
    def present(self) -> str | None:
        """The lightest model of the policy, or None if it has one model."""
        return self.route.target.tiers[0].backend if self.has_tiers else None

    def lights(self) -> tuple[str, ...]:
        """Return the models that may take the place of the light one: it, and those that shadows have tried."""
        tried = [row.candidate for row in self._comparisons if row.source == "shadow"]
        present = [self.present] if self.present is not None else []
        return tuple(dict.fromkeys([*present, *(name for name in tried if name not in self.best | self._lighter)]))

    def recorded(self) -> Alternative:
        """Return the figures of the traffic as it was answered."""
        light = self._answered_by(self._lighter)
        kept, evidence, covered = self._quality(light, self._lighter, EVERYTHING)
        total = float(self._calls.dollars.sum())
        priced = all(self._price(row.backend or "", row.request.model).is_stated for row in self._calls.rows)
        cost = Estimate(total, total, total) if priced else NOTHING
        return self._alternative(self.present or next(iter(self.best)), None, light, cost, kept, evidence, covered)

    def at(self, light: str, threshold: float) -> Alternative:
        """Return the figures of a light model up to a complexity, and of the best one above it."""
        names = self._lighter if light == self.present else frozenset((light,))
        goes = self._calls.scores <= threshold
        kept, evidence, covered = self._quality(goes, names, threshold)
        cost = self._cost(goes, names, light)
        return self._alternative(light, threshold, goes, cost, kept, evidence, covered)

    def curve(self, light: str) -> list[Alternative]:
        """Return the figures of a light model at thresholds that give it more and more requests. A route with one model
        knows no complexity: all or none."""
        scores = self._calls.scores
        if not len(scores):
            return []
        if not self.has_tiers:
            return [self.at(light, EVERYTHING)]
        ends = [float(scores[max(0, math.ceil(share * len(scores)) - 1)]) if share else -1.0 for share in SHARES]
        return [self.at(light, end) for end in dict.fromkeys([*(end for end in ends if end < ends[-1]), EVERYTHING])]

    def singles(self) -> list[Alternative]:
        """Return the figures of each model alone: the light ones, and the best one."""
        lights = self.lights()
        best = [self.at(lights[0], NOTHING_LIGHT)] if lights and self.has_tiers else []
        return [*(self.at(light, EVERYTHING) for light in lights), *best]

    @property
    def _lighter(self) -> frozenset[str]:
        """The backends of all tiers but the best."""
        tiers = self.route.target.tiers[:-1]
        return frozenset(name for tier in tiers for name in (tier.backend, *tier.members)) - self.best

    def _read(self, rows: Sequence[RecordedRequest]) -> _Calls:
        """Return the calls whose backend, tokens and complexity are known."""
        answered = [row for row in rows if row.answer is not None and row.verdict in ("miss", "bypass")]
        known = [
            row
            for row in answered
            if row.answer is not None
            and row.answer.input_tokens + row.answer.output_tokens > 0
            and row.backend in self.best | self._lighter
            and (row.complexity is not None or not self.has_tiers)
        ]
        self.left_out = len(answered) - len(known)
        known.sort(key=lambda row: row.complexity or 0.0)
        scores = np.array([row.complexity or 0.0 for row in known])
        dollars = np.array([0.0 if row.answer is None else row.answer.dollars for row in known])
        backends = np.array([row.backend for row in known], str)
        return _Calls(tuple(known), backends, scores, np.array([band_of(score) for score in scores], int), dollars)

    def _alternative(
        self,
        light: str,
        threshold: float | None,
        goes: Flags,
        cost: Estimate,
        light_kept: Estimate,
        evidence: Evidence,
        covered: float,
    ) -> Alternative:
        requests, taken = len(goes), int(goes.sum())
        share = taken / requests if requests else 0.0
        kept = ALL_KEPT if not taken else Estimate(*(_mix(share, end) for end in light_kept))
        return Alternative(light, threshold, requests, taken, cost, kept, light_kept, evidence, covered)

    # Cost

    def _cost(self, goes: Flags, names: Set[str], light: str) -> Estimate:
        """Return the cost of all calls: those that stay where they were have their recorded cost."""
        calls, best = self._calls, self.route.target.tiers[-1].backend
        stays = np.where(goes, self._answered_by(names), self._answered_by(self.best))
        total, variance, is_known = float(calls.dollars[stays].sum()), 0.0, True
        for group, backend, moves in ((names, light, goes & ~stays), (self.best, best, ~goes & ~stays)):
            for origin in np.unique(calls.backends[moves]).tolist():
                dollars = self._dollars(backend)[moves & (calls.backends == origin)]
                if np.isnan(dollars).any():
                    return NOTHING
                cost = float(dollars.sum())
                if cost:
                    ratio, error = self._length(group, backend, origin)
                    total += ratio * cost
                    is_known &= error is not None
                    variance += ((error or 0.0) * cost) ** 2
        if not is_known:
            return Estimate(total, None, None)
        spread = Z * math.sqrt(variance)
        return Estimate(total, max(0.0, total - spread), total + spread)

    def _answered_by(self, names: Set[str]) -> Flags:
        return np.isin(self._calls.backends, [*names])

    def _dollars(self, backend: str) -> Floats:
        """Return what a backend would charge for the tokens of each recorded answer. NaN: it has no price for it."""
        known = self._priced.get(backend)
        if known is None:
            known = self._priced[backend] = np.array([self._charge(backend, row) for row in self._calls.rows])
        return known

    def _charge(self, backend: str, row: RecordedRequest) -> float:
        price, answer = self._price(backend, row.request.model), row.answer
        return price.of(answer.input_tokens, answer.output_tokens) if price.is_stated and answer else math.nan

    def _length(self, group: Set[str], backend: str, origin: str) -> tuple[float, float | None]:
        """Return how the cost of a backend's own tokens relates to that of the tokens of `origin`, with the standard
        error. Models write answers of different length. It is a ratio estimate (Cochran 1977, section 6.4). An error of
        None: too few were compared, and 1 is a guess."""
        pairs = []
        for row in self._comparisons:
            if row.candidate in group and row.reference == origin:
                own, other = row.candidate_tokens, row.reference_tokens
            elif row.reference in group and row.candidate == origin:
                own, other = row.reference_tokens, row.candidate_tokens
            else:
                continue
            if own[1] and other[1]:
                price = self._price(backend, row.model)
                pairs.append((price.of(*own), price.of(*other)))
        base = sum(other for _, other in pairs)
        if len(pairs) < 2 or not base:
            return 1.0, None
        ratio = sum(own for own, _ in pairs) / base
        residuals = sum((own - ratio * other) ** 2 for own, other in pairs)
        return ratio, math.sqrt(len(pairs) / (len(pairs) - 1) * residuals) / base

    # Quality

    def _quality(self, goes: Flags, names: Set[str], threshold: float) -> tuple[Estimate, Evidence, float]:
        """Return the share of light answers that are as good as the best model's, with its evidence."""
        requests = np.bincount(self._calls.bands[goes], minlength=BANDS)
        total = int(requests.sum())
        evidence = Evidence()
        if not total:
            return UNKNOWN_SHARE, evidence, 0.0
        direct = self._bands(names, self.best, threshold)
        for band in direct.values():
            for name in ("as_good", "worse", "undecided", "failed"):
                setattr(evidence, name, getattr(evidence, name) + getattr(band, name))
        seen = {band: int(requests[band]) for band in direct if requests[band]}
        shares = [(sum(seen.values()), _share(seen, direct))]
        # A shadow of requests that the present light model has answered: both comparisons bound the third.
        first, second = self._bands(names, self._lighter, threshold), self._bands(self._lighter, self.best, threshold)
        chained = {band: int(requests[band]) for band in first if requests[band] and band in second.keys() - seen}
        if chained:
            shares.append((sum(chained.values()), _chain(_share(chained, first), _share(chained, second))))
        covered = sum(number for number, _ in shares)
        low = sum(number * (each.low or 0.0) for number, each in shares) / total
        high = sum(number * (1.0 if each.high is None else each.high) for number, each in shares) / total
        value = shares[0][1].value if shares[0][0] >= LEAST_COVERED * total else None
        return Estimate(value, low, min(1.0, high + (total - covered) / total)), evidence, covered / total

    def _bands(self, candidates: Set[str], references: Set[str], threshold: float) -> dict[int, Evidence]:
        """Return the comparisons of these candidates with these references, by the band of their complexity."""
        found: dict[int, Evidence] = {}
        for row in self._comparisons:
            score = 0.0 if row.complexity is None or not self.has_tiers else row.complexity
            if row.candidate in candidates and row.reference in references and score <= threshold:
                found.setdefault(band_of(score), Evidence()).add(row.label)
        return found


def _share(requests: Mapping[int, int], bands: Mapping[int, Evidence]) -> Estimate:
    """Return the share of answers that are as good, of the requests of some bands. A comparison counts as many requests
    as its band has for each (poststratification). The interval is Wilson's for the effective number of comparisons
    (Kish 1965). A comparison that decided nothing, or failed, counts against the answer at one end and for it at the
    other."""
    weights = {band: number / bands[band].compared for band, number in requests.items()}
    total = sum(requests.values())
    if not total:
        return UNKNOWN_SHARE
    good = sum(weight * bands[band].as_good for band, weight in weights.items())
    worse = sum(weight * bands[band].worse for band, weight in weights.items())
    trials = total**2 / sum(weight**2 * bands[band].compared for band, weight in weights.items())
    low, high = wilson_interval(good / total, trials)[0], wilson_interval(min(1.0, (total - worse) / total), trials)[1]
    return Estimate(good / (good + worse) if good + worse else None, low, high)


def _chain(first: Estimate, second: Estimate) -> Estimate:
    """Return the bounds of a share of equal answers, of a and c, from those of a and b, and of b and c (Fréchet)."""
    a, b = (first.low or 0.0, 1.0 if first.high is None else first.high)
    c, d = (second.low or 0.0, 1.0 if second.high is None else second.high)
    return Estimate(None, max(0.0, a + c - 1.0), 1.0 - max(0.0, a - d, c - b))


def _mix(share: float, light: float | None) -> float | None:
    """Return the share of all requests that are kept, where the light model gets a share of them."""
    return None if light is None else 1.0 - share * (1.0 - light)


def cheapest_as_good(recorded: Alternative, others: Iterable[Alternative]) -> Alternative | None:
    """Return the cheapest alternative that keeps as much as the traffic did, or None if nothing is cheaper. The lower
    ends of what is kept are compared, so that little evidence makes no alternative good."""
    if recorded.cost.value is None:
        return None
    fit = [
        each
        for each in others
        if each.cost.value is not None
        and each.cost.value < recorded.cost.value
        and each.kept.low is not None
        and recorded.kept.low is not None
        and each.kept.low >= recorded.kept.low
    ]
    return min(fit, key=lambda each: each.cost.value or 0.0, default=None)


def single_as_good(recorded: Alternative, singles: Iterable[Alternative]) -> Alternative | None:
    """Return the one model that is known to keep as much as the traffic did, at no higher cost: that which keeps most.
    Return None if there is none, or if one model answered the traffic."""
    cost, low = recorded.cost.value, recorded.kept.low
    if cost is None or low is None or recorded.light_requests in (0, recorded.requests):
        return None
    fit = [
        each
        for each in singles
        if each.cost.value is not None
        and each.cost.value <= cost
        and each.kept.low is not None
        and each.kept.low >= low
    ]
    return max(fit, key=lambda each: (each.kept.low or 0.0, -(each.cost.value or 0.0)), default=None)
