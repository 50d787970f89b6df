"""Predict the response time of an upstream from its past responses. Pure: callers pass the time.

The prediction has three steps:

1. `Trend` gives the expected time, as a sum of parts that grow with the input, the output and the load.
2. `Levels` tells by what factor recent responses of this kind were slower or faster.
3. `RatioSketch` tells how far responses lie from that. Its quantile is the bound, so it covers whatever the first two
   steps miss.

The quantile of the total is learnt directly, because the sum of the parts' quantiles would be far too large. For the
reasons see docs/decisions/0012.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from gateway.bounded_cache import BoundedCache
from gateway.latency_forecast import Prediction

# The distribution of actual over expected latency, in which newer observations weigh more. Pure.
#
# It is a histogram of ratios with logarithmic buckets (the idea of DDSketch, Masson et al. 2019). A bucket's width is a
# fixed ratio, so every quantile has a bounded relative error. The weight of an observation halves with time.

RATIO = 1.05  # bucket bounds grow by 5 %, which bounds the error of a quantile

_LOG_RATIO = math.log(RATIO)

REACH = 94  # buckets on either side of 1: ratios from 1/98 to 98; the outermost buckets take everything beyond

_BUCKETS = 2 * REACH

# The prior is lognormal around 1 with this spread, and weighs as much as two observations. Responses of one model to
# requests of one size spread by 0.2 to 0.6 (the standard deviation of the logarithm).
PRIOR_SPREAD, PRIOR_WEIGHT = 0.5, 2.0

_RESCALE_AT = 64.0  # half-lives until weights are rescaled; 2**64 is far from the limit of a float


def _prior() -> list[float]:
    """Return the prior weight of each bucket; they sum to `PRIOR_WEIGHT`."""

    def below(k: int) -> float:
        return 0.5 * (1.0 + math.erf((k - REACH) * _LOG_RATIO / (PRIOR_SPREAD * math.sqrt(2.0))))

    shares = [below(k + 1) - below(k) for k in range(_BUCKETS)]
    return [PRIOR_WEIGHT * share / sum(shares) for share in shares]


_PRIOR = _prior()


class RatioSketch:
    """`RatioSketch` estimates quantiles of actual over expected latency, in 188 buckets."""

    __slots__ = ("_cumulated", "_half_life_s", "_origin", "_total", "_weights")

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._weights = list(_PRIOR)
        self._total = PRIOR_WEIGHT
        self._origin: float | None = None  # the time at which an observation weighs 1
        self._cumulated: list[float] | None = None  # cumulated weights; None after a change

    def add(self, ratio: float, now: float, weight: float = 1.0) -> None:
        """Add a response that took `ratio` times the expected time."""
        scale = weight * self._scale(now)
        self._weights[_bucket(ratio)] += scale
        self._total += scale
        self._cumulated = None

    def add_censored(self, ratio: float, now: float) -> None:
        """Add a response that was abandoned after `ratio` times the expected time, so that its real ratio is larger.

        Its weight is spread over the buckets beyond in proportion to theirs (redistribution to the right, Efron 1967).
        The weight is its information: the share of responses that would have arrived by then.
        """
        at = _bucket(ratio)
        scale = self._scale(now)
        beyond = sum(self._weights[at:])
        information = 1.0 - beyond / self._total
        if information <= 0.0:
            return
        if beyond <= 1e-9 * self._total:  # beyond everything seen so far
            self._weights[at] += information * scale
        else:
            factor = 1.0 + information * scale / beyond
            self._weights[at:] = [weight * factor for weight in self._weights[at:]]
        self._total += information * scale
        self._cumulated = None

    def quantile(self, q: float) -> float:
        """Return the ratio below which the share `q` in [0, 1] of the weight lies, interpolated within its bucket."""
        cumulated = self._cumulated
        if cumulated is None:
            cumulated = self._cumulated = list(accumulate(self._weights))
        target = q * cumulated[-1]
        at = min(bisect_left(cumulated, target), _BUCKETS - 1)
        weight = self._weights[at]
        inside = 1.0 if weight <= 0.0 else (target - cumulated[at] + weight) / weight
        return math.exp((at - REACH + min(1.0, max(0.0, inside))) * _LOG_RATIO)

    def beyond(self, ratio: float) -> float:
        """Return the mean of the ratios beyond this one; `ratio` itself if there are none."""
        at = _bucket(ratio)
        tail = self._weights[at:]
        weight = sum(tail)
        if weight <= 1e-9 * self._total:
            return ratio
        middles = (math.exp((k - REACH + 0.5) * _LOG_RATIO) for k in range(at, _BUCKETS))
        return max(ratio, sum(w * middle for w, middle in zip(tail, middles, strict=True)) / weight)

    def _scale(self, now: float) -> float:
        """Return the weight of an observation made now, relative to one at the origin.

        Newer observations get larger weights, so that old ones need no update. All weights are rescaled before they
        grow too large. The prior replaces faded weight, so that the first response after a long silence does not count
        alone.
        """
        if self._origin is None:
            self._origin = now
        exponent = max(0.0, (now - self._origin) / self._half_life_s)
        if exponent > _RESCALE_AT:
            factor = 2.0 ** -min(exponent, 1000.0)
            self._weights = [weight * factor for weight in self._weights]
            self._origin, exponent = now, 0.0
            self._total = sum(self._weights)
        scale = float(2.0**exponent)
        missing = PRIOR_WEIGHT * scale - self._total
        if missing > 0.0:
            share = missing / PRIOR_WEIGHT
            self._weights = [weight + share * prior for weight, prior in zip(self._weights, _PRIOR, strict=True)]
            self._total = sum(self._weights)
            self._cumulated = None
        return scale


def _bucket(ratio: float) -> int:
    if ratio <= 0.0:
        return 0
    return min(_BUCKETS - 1, max(0, math.floor(math.log(min(ratio, 1e9)) / _LOG_RATIO) + REACH))


# The mean response time as a sum of parts that grow with the request and the load. It adapts over time. Pure.
#
# It is a least-squares fit of the relative error over decayed sums, with non-negative coefficients. Coordinate descent
# finds them, with one sweep for each observation from the previous solution. Recursive least squares with forgetting
# blows up if inputs do not vary for hours; decayed sums cannot. Non-negative coefficients mean that no part can make a
# response faster.

RIDGE = 1e-3  # relative to each coefficient's own weight; separates parts that always occur together

HUBER = 4.0  # a response that took more than this many times the expected time counts as this many times

_RESCALE_REGRESSION_AT = 64.0  # half-lives


class Trend:
    """`Trend` fits `size` coefficients, each at least 0."""

    __slots__ = ("_half_life_s", "_matrix", "_origin", "_target", "coefficients")

    def __init__(self, size: int, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._matrix = [[0.0] * size for _ in range(size)]
        self._target = [0.0] * size
        self._origin: float | None = None
        self.coefficients = [0.0] * size

    def of(self, parts: Sequence[float]) -> float:
        """Return the expected seconds for these parts; 0 while nothing is known."""
        return float(sum(map(mul, self.coefficients, parts)))

    def observe(self, parts: Sequence[float], seconds: float, now: float, weight: float = 1.0) -> None:
        """Learn that a response with these parts (each at least 0) took `seconds`."""
        expected = self.of(parts)
        if expected > 0.0:
            seconds = min(seconds, HUBER * expected)
        unit = max(expected, seconds / HUBER, 1e-6)  # weights errors in proportion to the time
        scale = weight * self._scale(now) / (unit * unit)
        for i, part in enumerate(parts):
            if part:
                row, by = self._matrix[i], scale * part
                self._matrix[i] = [a + by * b for a, b in zip(row, parts, strict=True)]
                self._target[i] += by * seconds
        self._sweep()

    def _sweep(self) -> None:
        coefficients = self.coefficients
        for i, row in enumerate(self._matrix):
            own = row[i]
            if own > 0.0:
                rest = sum(map(mul, row, coefficients)) - own * coefficients[i]
                coefficients[i] = max(0.0, (self._target[i] - rest) / (own * (1.0 + RIDGE)))

    def _scale(self, now: float) -> float:
        if self._origin is None:
            self._origin = now
        exponent = max(0.0, (now - self._origin) / self._half_life_s)
        if exponent > _RESCALE_REGRESSION_AT:
            factor = 2.0 ** -min(exponent, 1000.0)
            self._matrix = [[a * factor for a in row] for row in self._matrix]
            self._target = [a * factor for a in self._target]
            self._origin, exponent = now, 0.0
        return float(2.0**exponent)


HALF_LIFE_S = 60.0  # of the knowledge of an upstream, and of its recent speed

SHAPE_HALF_LIFE_S = 600.0  # of the dependence on the parts and of the spread, which change slowly

# Below this weight the upstream counts as unknown. A slow upstream that gets no calls becomes unknown after some
# half-lives, is tried once more, and can so be found to have recovered.
MIN_WEIGHT = 0.5

CONFIDENCE = 0.95

ASSUMED_OUTPUT_TOKENS = 256.0

OUTPUT_SIZES = (64, 256, 1024)  # max_tokens up to which answers count as of one size

LOADS = (2, 4, 8, 16, 32, 64, 128)  # above each of them another call may wait longer

KINDS = 256  # pairs of route and size; the least recently used ones are forgotten

MIN_EXPECTED_S = 1e-6


class CallFeatures(NamedTuple):
    """`CallFeatures` are the facts about a call that are known before it is sent."""

    stream: bool = False
    input_tokens: float = 0.0
    max_tokens: int | None = None
    route: str = ""

    @property
    def kind(self) -> tuple[str, int]:
        return self.route, _size(self.max_tokens)


class Levels:
    """`Levels` keeps, for each kind, the factor by which recent responses are slower than expected.

    It is a mean of logarithms over some ten responses and a minute. With few responses it is drawn towards 1.
    """

    __slots__ = ("_kinds",)
    MAX_WEIGHT, SHRINKAGE = 10.0, 1.0  # responses

    def __init__(self) -> None:
        # Sum, weight, time.
        self._kinds: BoundedCache[tuple[str, int], tuple[float, float, float]] = BoundedCache(KINDS)

    def of(self, kind: tuple[str, int], now: float) -> float:
        total, weight = self._decayed(kind, now)
        return math.exp(total / (weight + self.SHRINKAGE))

    def add(self, kind: tuple[str, int], ratio: float, now: float, weight: float = 1.0) -> None:
        total, seen = self._decayed(kind, now)
        total, seen = total + weight * math.log(max(ratio, 1e-6)), seen + weight
        if seen > self.MAX_WEIGHT:
            total, seen = total * self.MAX_WEIGHT / seen, self.MAX_WEIGHT
        self._kinds.put(kind, (total, seen, now))

    def _decayed(self, kind: tuple[str, int], now: float) -> tuple[float, float]:
        entry = self._kinds.peek(kind)
        if entry is None:
            return 0.0, 0.0
        total, weight, when = entry
        decay = float(2.0 ** (-max(0.0, now - when) / HALF_LIFE_S))
        return total * decay, weight * decay


class LatencyTrack:
    """`LatencyTrack` compares one quantity (total time, TTFT or TPOT) with its expectation."""

    __slots__ = ("levels", "ratios")

    def __init__(self) -> None:
        self.levels = Levels()
        self.ratios = RatioSketch(SHAPE_HALF_LIFE_S)

    def bound(self, expected: float, kind: tuple[str, int], now: float, confidence: float) -> float:
        return expected * self.levels.of(kind, now) * self.ratios.quantile(confidence)

    def observe(self, expected: float, seconds: float, kind: tuple[str, int], now: float) -> None:
        expected = max(expected, MIN_EXPECTED_S)
        self.ratios.add(seconds / (expected * self.levels.of(kind, now)), now)
        self.levels.add(kind, seconds / expected, now)

    def observe_censored(self, expected: float, seconds: float, kind: tuple[str, int], now: float) -> float:
        """Learn that a response had taken `seconds` when it was abandoned.

        Return an estimate of its full time: the mean of the times beyond (Buckley and James 1979).
        """
        level = self.levels.of(kind, now)
        centre = max(expected * level, MIN_EXPECTED_S)
        ratio = seconds / centre
        beyond = self.ratios.beyond(ratio)
        self.ratios.add_censored(ratio, now)
        if ratio > 1.0:  # a smaller ratio says almost nothing
            self.levels.add(kind, beyond * level, now, weight=0.5)
        return beyond * centre


class LatencyBook:
    """`LatencyBook` learns the latencies of one upstream.

    Streams and complete responses share their common parts. A stream measures TTFT and TPOT separately, a complete
    response measures their sum.
    """

    def __init__(self) -> None:
        self._trend = Trend(_SIZE, SHAPE_HALF_LIFE_S)
        self._total, self._ttft, self._tpot = LatencyTrack(), LatencyTrack(), LatencyTrack()
        self._output: dict[int, tuple[float, float]] = {}  # size -> sum of tokens, weight
        self._weight, self._last_seen = 0.0, 0.0  # responses, and the time of the last one

    def predict(
        self, features: CallFeatures, *, load: int, now: float, confidence: float = CONFIDENCE
    ) -> Prediction | None:
        """Predict the latency of a call; None while nothing recent is known.

        `load` is the number of unfinished calls. `confidence` is in (0, 1).
        """
        if self.weight(now) < MIN_WEIGHT:
            return None
        kind, first, output = features.kind, _ttft_parts(features, load), self._expected_output(features)
        expected = self._trend.of([*first, output, output * load])
        total = self._total.bound(expected, kind, now, confidence)
        if not features.stream:
            return Prediction(total, 0.0, total)
        ttft = self._ttft.bound(self._trend.of(first), kind, now, confidence)
        tpot = self._tpot.bound(self._trend.of([*_NO_TTFT_PARTS, 1.0, load]), kind, now, confidence)
        return Prediction(min(ttft, total), tpot, total)

    def observe(
        self, features: CallFeatures, *, load: int, ttft_s: float, total_s: float, output_tokens: int, now: float
    ) -> None:
        """Learn from a complete response. `load` is the number of unfinished calls when it was sent.

        For a response in one piece `ttft_s` equals `total_s`, and `output_tokens` is 0 if it does not report them.
        """
        self._count_answer(now)
        if output_tokens > 0:
            self._record_output(features, output_tokens)
        kind, first, output = features.kind, _ttft_parts(features, load), self._expected_output(features)
        whole = [*first, output, output * load]
        expected = self._trend.of(whole)
        if features.stream:
            self._observe_stream(features, first, load, ttft_s, (total_s - ttft_s) / max(1, output_tokens), now)
        else:
            if expected <= 0.0:
                self._split_first(first, output, total_s, now)
            self._trend.observe(whole, total_s, now)
        self._total.observe(expected or self._trend.of(whole), total_s, kind, now)

    def observe_censored(
        self, features: CallFeatures, *, load: int, seconds: float, now: float, ttft_s: float | None = None
    ) -> None:
        """Learn from a call that was abandoned after `seconds`. The full response would have taken longer.

        `ttft_s` is the time to its first token, if that had arrived. For an unknown upstream, the call counts as
        complete.
        """
        kind, first, output = features.kind, _ttft_parts(features, load), self._expected_output(features)
        if self.weight(now) < MIN_WEIGHT:
            self.observe(features, load=load, ttft_s=ttft_s or seconds, total_s=seconds, output_tokens=0, now=now)
            return
        whole = [*first, output, output * load]
        if features.stream and ttft_s is not None:
            expected = self._trend.of(first)
            self._trend.observe([*first, 0.0, 0.0], ttft_s, now)
            self._ttft.observe(expected, ttft_s, kind, now)
        elif features.stream:
            self._ttft.observe_censored(self._trend.of(first), seconds, kind, now)
        expected = self._trend.of(whole)
        estimate = self._total.observe_censored(expected, seconds, kind, now)
        if seconds > expected:
            self._count_answer(now)
            self._trend.observe(whole, estimate, now, weight=0.5)

    def weight(self, now: float) -> float:
        """Return the number of known responses, weighted by age."""
        return self._weight * float(2.0 ** (-max(0.0, now - self._last_seen) / HALF_LIFE_S))

    def _count_answer(self, now: float) -> None:
        self._weight, self._last_seen = min(self.weight(now), 1e6) + 1.0, now

    def _observe_stream(
        self, features: CallFeatures, first: list[float], load: int, ttft_s: float, tpot_s: float, now: float
    ) -> None:
        parts, token = [*first, 0.0, 0.0], [*_NO_TTFT_PARTS, 1.0, float(load)]
        for track, of, seconds in ((self._ttft, parts, ttft_s), (self._tpot, token, max(tpot_s, 0.0))):
            expected = self._trend.of(of)
            self._trend.observe(of, seconds, now)
            track.observe(expected or self._trend.of(of), seconds, features.kind, now)

    def _split_first(self, first: list[float], output: float, total_s: float, now: float) -> None:
        """Split the first response in half between first token and generation, until others tell the real shares."""
        self._trend.observe([*first, 0.0, 0.0], 0.5 * total_s, now, weight=0.5)
        self._trend.observe([*_NO_TTFT_PARTS, output, 0.0], 0.5 * total_s, now, weight=0.5)

    def _record_output(self, features: CallFeatures, tokens: int) -> None:
        total, weight = self._output.get(_size(features.max_tokens), (0.0, 0.0))
        self._output[_size(features.max_tokens)] = 0.99 * total + tokens, 0.99 * weight + 1.0

    def _expected_output(self, features: CallFeatures) -> float:
        """Return the expected output tokens."""
        total, weight = self._output.get(_size(features.max_tokens), (0.0, 0.0))
        if weight == 0.0:  # none of this size yet: use all sizes
            total = sum(tokens for tokens, _ in self._output.values())
            weight = sum(seen for _, seen in self._output.values())
        tokens = total / weight if weight else ASSUMED_OUTPUT_TOKENS
        return tokens if features.max_tokens is None else min(tokens, float(features.max_tokens))


def _ttft_parts(features: CallFeatures, load: int) -> list[float]:
    """Return the parts of the time to first token: a constant, the input, and each call ahead."""
    ahead = [float(load - knot) if load > knot else 0.0 for knot in LOADS]
    return [1.0, features.input_tokens / 1000.0, float(load), *ahead]


_FIRST = 3 + len(LOADS)

_NO_TTFT_PARTS = [0.0] * _FIRST

_SIZE = _FIRST + 2  # plus each output token, and the delay that each call ahead adds to it


def _size(max_tokens: int | None) -> int:
    return len(OUTPUT_SIZES) if max_tokens is None else bisect_left(OUTPUT_SIZES, max_tokens)


# Learn from responses only when a prediction is requested. Pure: callers pass the time.
#
# A `LatencyBook` takes 16 to 24 us on a quiet machine to learn from a response. Predictions are needed only for latency
# budgets, hedges and displays. So responses are queued, up to `MAX_PENDING`, until a prediction is requested. For
# `HALF_LIFE_S` after a prediction each response is processed at once. Without predictions, a full queue takes one
# response in `SAMPLE_EVERY`, because queueing costs time too.

# Some ten responses are enough to know a kind, some fifty to know the spread. Processing all of these takes 2 ms.
MAX_PENDING = 128

SAMPLE_EVERY = 8


class LazyLatencyBook:
    """`LazyLatencyBook` is a `LatencyBook` that processes observations late."""

    def __init__(self) -> None:
        self._book = LatencyBook()
        self._pending: deque[tuple[CallFeatures, int, float, float, int, float]] = deque(maxlen=MAX_PENDING)
        self._last_predicted_at = float("-inf")  # time of the last `predict`
        self._skipped = 0  # responses since the last one that was queued

    def predict(
        self, features: CallFeatures, *, load: int, now: float, confidence: float = CONFIDENCE
    ) -> Prediction | None:
        """Predict as `LatencyBook.predict` does, after processing the queue."""
        self._last_predicted_at = now
        self._flush()
        return self._book.predict(features, load=load, now=now, confidence=confidence)

    def should_observe(self, now: float) -> bool:
        """Return whether to observe the response that has just arrived."""
        if now - self._last_predicted_at <= HALF_LIFE_S or len(self._pending) < MAX_PENDING:
            return True
        self._skipped = (self._skipped + 1) % SAMPLE_EVERY
        return self._skipped == 0

    def observe(
        self, features: CallFeatures, *, load: int, ttft_s: float, total_s: float, output_tokens: int, now: float
    ) -> None:
        """Queue the observation, or process it as `LatencyBook.observe` does."""
        self._pending.append((features, load, ttft_s, total_s, output_tokens, now))
        if now - self._last_predicted_at <= HALF_LIFE_S:
            self._flush()

    def observe_censored(
        self, features: CallFeatures, *, load: int, seconds: float, now: float, ttft_s: float | None = None
    ) -> None:
        """Process the observation at once, as `LatencyBook.observe_censored` does. It is rare and depends on the
        earlier ones.
        """
        self._flush()
        self._book.observe_censored(features, load=load, seconds=seconds, now=now, ttft_s=ttft_s)

    def _flush(self) -> None:
        while self._pending:
            features, load, ttft_s, total_s, tokens, now = self._pending.popleft()
            self._book.observe(features, load=load, ttft_s=ttft_s, total_s=total_s, output_tokens=tokens, now=now)
