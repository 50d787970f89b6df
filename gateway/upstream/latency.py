"""What an upstream's answer will take, predicted from what its answers took. Pure: the clock's reading comes in.

Three steps. What is expected: parts that grow with the input, the output and the load (`Trend`). How much slower or
faster answers of this kind are of late (`Levels`). How far answers lie from that (`RatioSketch`): its quantile makes
the bound, so that whatever the first two steps miss is in it. The sum's quantile is learnt as one: the sum of the
parts' quantiles would be far too much. docs/decisions/0012-latency.md has the reasons.
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

# How far latencies lie from what was expected of them, newest first in weight. Pure: the clock's reading comes in.
#
# A histogram of ratios (actual over expected) with logarithmic buckets (the idea of DDSketch, Masson et al. 2019: a
# bucket's width is a fixed ratio, so every quantile has a bounded relative error), in which the weight of an
# observation halves with time.

RATIO = 1.05  # bucket bounds grow by 5 %: no quantile is off by more

_LOG_RATIO = math.log(RATIO)

REACH = 94  # buckets to either side of 1: ratios from 1/98 to 98, what lies beyond counts as the outermost

_BUCKETS = 2 * REACH

# What is believed before anything was seen: lognormal around 1 with this spread, worth two observations. Answers of one
# model to one size of request spread by 0.2 to 0.6 (the standard deviation of the logarithm).
PRIOR_SPREAD, PRIOR_WEIGHT = 0.5, 2.0

_RESCALE_AT = 64.0  # half-lives after which weights are brought back: 2**64 is far from any float's end


def _prior() -> list[float]:
    """Shares of the prior a bucket; they sum to `PRIOR_WEIGHT`."""

    def below(k: int) -> float:
        return 0.5 * (1.0 + math.erf((k - REACH) * _LOG_RATIO / (PRIOR_SPREAD * math.sqrt(2.0))))

    shares = [below(k + 1) - below(k) for k in range(_BUCKETS)]
    return [PRIOR_WEIGHT * share / sum(shares) for share in shares]


_PRIOR = _prior()


class RatioSketch:
    """188 buckets, whatever is observed and for however long."""

    __slots__ = ("_cumulated", "_half_life_s", "_origin", "_total", "_weights")

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._weights = list(_PRIOR)
        self._total = PRIOR_WEIGHT
        self._origin: float | None = None  # time at which one observation weighs 1
        self._cumulated: list[float] | None = None  # of the weights, until they change

    def add(self, ratio: float, now: float, weight: float = 1.0) -> None:
        """An answer took `ratio` times what was expected."""
        scale = weight * self._scale(now)
        self._weights[_bucket(ratio)] += scale
        self._total += scale
        self._cumulated = None

    def add_censored(self, ratio: float, now: float) -> None:
        """An answer that nobody waited for to its end had taken `ratio` times what was expected: it lies somewhere
        beyond, and is spread there as the others are (redistribution to the right, Efron 1967). It weighs what it
        tells: the share of answers that would have come by then."""
        at = _bucket(ratio)
        scale = self._scale(now)
        beyond = sum(self._weights[at:])
        information = 1.0 - beyond / self._total
        if information <= 0.0:
            return
        if beyond <= 1e-9 * self._total:  # farther than anything ever seen
            self._weights[at] += information * scale
        else:
            factor = 1.0 + information * scale / beyond
            self._weights[at:] = [weight * factor for weight in self._weights[at:]]
        self._total += information * scale
        self._cumulated = None

    def quantile(self, q: float) -> float:
        """The ratio below which the share `q` in [0, 1] of the weight lies, interpolated within its bucket."""
        cumulated = self._cumulated
        if cumulated is None:
            cumulated = self._cumulated = list(accumulate(self._weights))
        target = q * cumulated[-1]
        at = min(bisect_left(cumulated, target), _BUCKETS - 1)
        weight = self._weights[at]
        inside = 1.0 if weight <= 0.0 else (target - cumulated[at] + weight) / weight
        return math.exp((at - REACH + min(1.0, max(0.0, inside))) * _LOG_RATIO)

    def beyond(self, ratio: float) -> float:
        """The mean of the ratios that lie beyond this one; `ratio` itself where none does."""
        at = _bucket(ratio)
        tail = self._weights[at:]
        weight = sum(tail)
        if weight <= 1e-9 * self._total:
            return ratio
        middles = (math.exp((k - REACH + 0.5) * _LOG_RATIO) for k in range(at, _BUCKETS))
        return max(ratio, sum(w * middle for w, middle in zip(tail, middles, strict=True)) / weight)

    def _scale(self, now: float) -> float:
        """What one observation made now weighs, in units of the origin's. Newer ones weigh more, so old ones need no
        touching; the weights are brought back before the numbers grow large. What has faded is made up for by the
        prior, so that the first answer after a long silence is not all that is known."""
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


# What answers take on average, as a sum of parts that grow with the request and with the load: learnt while they come,
# forgotten with time. Pure.
#
# Least squares of the relative error over decayed sufficient statistics, with coefficients that may not be negative,
# found by coordinate descent (one sweep an observation, from where the last one ended). Decayed sums cannot blow up, as
# recursive least squares with forgetting does where nothing varies for hours; and no part can ever make an answer
# sooner.

RIDGE = 1e-3  # of each coefficient's own weight: decides between parts that always come together

HUBER = 4.0  # an answer that took more than so many times the expected counts as if it had taken that

_RESCALE_REGRESSION_AT = 64.0  # half-lives


class Trend:
    """`size` coefficients, all at least 0."""

    __slots__ = ("_half_life_s", "_matrix", "_origin", "_target", "coefficients")

    def __init__(self, size: int, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._matrix = [[0.0] * size for _ in range(size)]
        self._target = [0.0] * size
        self._origin: float | None = None
        self.coefficients = [0.0] * size

    def of(self, parts: Sequence[float]) -> float:
        """What is expected of these parts; 0 while nothing is known."""
        return float(sum(map(mul, self.coefficients, parts)))

    def observe(self, parts: Sequence[float], seconds: float, now: float, weight: float = 1.0) -> None:
        """An answer of these parts, all at least 0, took `seconds`."""
        expected = self.of(parts)
        if expected > 0.0:
            seconds = min(seconds, HUBER * expected)
        unit = max(expected, seconds / HUBER, 1e-6)  # errors count in proportion
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


HALF_LIFE_S = 60.0  # of knowing an upstream at all, and of how slow it is of late

SHAPE_HALF_LIFE_S = 600.0  # of what answers depend on, and of how they spread: that changes slowly

# Below this weight the past says too little. An upstream that is shunned for its latency therefore becomes unknown
# again after some half-lives, is tried once more, and so can be found to have recovered.
MIN_WEIGHT = 0.5

CONFIDENCE = 0.95

ASSUMED_OUTPUT_TOKENS = 256.0

OUTPUT_SIZES = (64, 256, 1024)  # max_tokens up to which answers count as of one size

LOADS = (2, 4, 8, 16, 32, 64, 128)  # beyond each of them another call may wait longer than before

KINDS = 256  # of route and size that are told apart; beyond it the longest unused one is forgotten

MIN_EXPECTED_S = 1e-6


class CallFeatures(NamedTuple):
    """What is known of a call before it is sent."""

    stream: bool = False
    input_tokens: float = 0.0
    max_tokens: int | None = None
    route: str = ""

    @property
    def kind(self) -> tuple[str, int]:
        return self.route, _size(self.max_tokens)


class Levels:
    """By what factor the answers of each kind are slower than expected of late: a mean of logarithms over some ten
    answers and a minute, drawn towards 1 while there are few."""

    __slots__ = ("_kinds",)
    MAX_WEIGHT, SHRINKAGE = 10.0, 1.0  # answers

    def __init__(self) -> None:
        # Sum, weight, when.
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
    """How one quantity (the whole answer, its first token, each further one) lies to what is expected of it."""

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
        """It had taken so long when nobody waited any more. -> what it would have taken, as far as can be said (the
        mean of what lies beyond, Buckley and James 1979)."""
        level = self.levels.of(kind, now)
        centre = max(expected * level, MIN_EXPECTED_S)
        ratio = seconds / centre
        beyond = self.ratios.beyond(ratio)
        self.ratios.add_censored(ratio, now)
        if ratio > 1.0:  # below that it says next to nothing
            self.levels.add(kind, beyond * level, now, weight=0.5)
        return beyond * centre


class LatencyBook:
    """One upstream's latencies. Streams and answers in one piece share all that they have in common: a stream tells its
    first token and its further ones apart, an answer in one piece tells their sum."""

    def __init__(self) -> None:
        self._trend = Trend(_SIZE, SHAPE_HALF_LIFE_S)
        self._total, self._ttft, self._tpot = LatencyTrack(), LatencyTrack(), LatencyTrack()
        self._output: dict[int, tuple[float, float]] = {}  # size -> sum of tokens, weight
        self._weight, self._last_seen = 0.0, 0.0  # answers, and when the last one came

    def predict(
        self, features: CallFeatures, *, load: int, now: float, confidence: float = CONFIDENCE
    ) -> Prediction | None:
        """None while nothing recent is known. `load`: calls that it has not finished yet. `confidence` in (0, 1)."""
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
        """A complete answer. `load`: calls that were unfinished when it was sent. For an answer that came in one piece
        `ttft_s` is `total_s`, and `output_tokens` 0 where it does not tell them."""
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
        """A call that was given up after `seconds`: its answer would have taken longer. `ttft_s`: its first token, if
        that had come. A call that is given up on an unknown upstream tells that it is slow."""
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
        """How many answers are known, older ones counted by what is left of their weight."""
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
        """Of the very first answer nobody knows what part of it was writing: half of it, until others tell."""
        self._trend.observe([*first, 0.0, 0.0], 0.5 * total_s, now, weight=0.5)
        self._trend.observe([*_NO_TTFT_PARTS, output, 0.0], 0.5 * total_s, now, weight=0.5)

    def _record_output(self, features: CallFeatures, tokens: int) -> None:
        total, weight = self._output.get(_size(features.max_tokens), (0.0, 0.0))
        self._output[_size(features.max_tokens)] = 0.99 * total + tokens, 0.99 * weight + 1.0

    def _expected_output(self, features: CallFeatures) -> float:
        """Output tokens to expect."""
        total, weight = self._output.get(_size(features.max_tokens), (0.0, 0.0))
        if weight == 0.0:  # none of this size yet: as those of all sizes
            total = sum(tokens for tokens, _ in self._output.values())
            weight = sum(seen for _, seen in self._output.values())
        tokens = total / weight if weight else ASSUMED_OUTPUT_TOKENS
        return tokens if features.max_tokens is None else min(tokens, float(features.max_tokens))


def _ttft_parts(features: CallFeatures, load: int) -> list[float]:
    """What the time to the first token is made of: something, the input, and each call ahead."""
    ahead = [float(load - knot) if load > knot else 0.0 for knot in LOADS]
    return [1.0, features.input_tokens / 1000.0, float(load), *ahead]


_FIRST = 3 + len(LOADS)

_NO_TTFT_PARTS = [0.0] * _FIRST

_SIZE = _FIRST + 2  # and each output token, and what each call ahead adds to it


def _size(max_tokens: int | None) -> int:
    return len(OUTPUT_SIZES) if max_tokens is None else bisect_left(OUTPUT_SIZES, max_tokens)


# Learning from answers when somebody asks what they will take, and not before. Pure: the clock's reading comes in.
#
# To learn from an answer takes a `LatencyBook` 16 to 24 us on a quiet machine, and it is asked only where there are
# latency budgets, hedges or somebody who looks. So answers lie unread until it is asked, the last `MAX_PENDING` of
# them; from then on each is read as it comes, for as long as somebody has asked of late. While nobody asks, one answer
# in `SAMPLE_EVERY` is noted, once there are `MAX_PENDING`: to note one has its price, too.

# What is known of a kind of answers comes from some ten, how far they spread from some fifty; to read these takes 2 ms.
MAX_PENDING = 128

SAMPLE_EVERY = 8


class LazyLatencyBook:
    """A `LatencyBook`, read late."""

    def __init__(self) -> None:
        self._book = LatencyBook()
        self._pending: deque[tuple[CallFeatures, int, float, float, int, float]] = deque(maxlen=MAX_PENDING)
        self._last_predicted_at = float("-inf")  # when it was asked last
        self._skipped = 0  # answers that were not noted since the last one that was

    def predict(
        self, features: CallFeatures, *, load: int, now: float, confidence: float = CONFIDENCE
    ) -> Prediction | None:
        """As `LatencyBook.predict`."""
        self._last_predicted_at = now
        self._flush()
        return self._book.predict(features, load=load, now=now, confidence=confidence)

    def should_observe(self, now: float) -> bool:
        """Whether the answer that has just come is to be observed."""
        if now - self._last_predicted_at <= HALF_LIFE_S or len(self._pending) < MAX_PENDING:
            return True
        self._skipped = (self._skipped + 1) % SAMPLE_EVERY
        return self._skipped == 0

    def observe(
        self, features: CallFeatures, *, load: int, ttft_s: float, total_s: float, output_tokens: int, now: float
    ) -> None:
        """As `LatencyBook.observe`."""
        self._pending.append((features, load, ttft_s, total_s, output_tokens, now))
        if now - self._last_predicted_at <= HALF_LIFE_S:
            self._flush()

    def observe_censored(
        self, features: CallFeatures, *, load: int, seconds: float, now: float, ttft_s: float | None = None
    ) -> None:
        """As `LatencyBook.outlasted`: rare, and made of what is known, so it is read at once."""
        self._flush()
        self._book.observe_censored(features, load=load, seconds=seconds, now=now, ttft_s=ttft_s)

    def _flush(self) -> None:
        while self._pending:
            features, load, ttft_s, total_s, tokens, now = self._pending.popleft()
            self._book.observe(features, load=load, ttft_s=ttft_s, total_s=total_s, output_tokens=tokens, now=now)
