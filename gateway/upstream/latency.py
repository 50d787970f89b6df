"""What an upstream's answer will take, predicted from what its answers took. Pure: the clock's reading comes in.

Three steps. What is expected: parts that grow with the input, the output and the load (`Trend`). How much slower or
faster answers of this kind are of late (`Levels`). How far answers lie from that (`Ratios`): its quantile makes the
bound, so that whatever the first two steps miss is in it. The sum's quantile is learnt as one: the sum of the parts'
quantiles would be far too much. docs/decisions/0012-latency.md has the reasons.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import NamedTuple

from gateway.bounded_cache import BoundedCache
from gateway.latency_forecast import Prediction
from gateway.upstream.ratio_sketch import Ratios
from gateway.upstream.regression import Trend

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

SMALLEST_S = 1e-6


class Asked(NamedTuple):
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
    MOST, DRAWN = 10.0, 1.0  # answers

    def __init__(self) -> None:
        # Sum, weight, when.
        self._kinds: BoundedCache[tuple[str, int], tuple[float, float, float]] = BoundedCache(KINDS)

    def of(self, kind: tuple[str, int], now: float) -> float:
        total, weight = self._at(kind, now)
        return math.exp(total / (weight + self.DRAWN))

    def add(self, kind: tuple[str, int], ratio: float, now: float, weight: float = 1.0) -> None:
        total, seen = self._at(kind, now)
        total, seen = total + weight * math.log(max(ratio, 1e-6)), seen + weight
        if seen > self.MOST:
            total, seen = total * self.MOST / seen, self.MOST
        self._kinds.put(kind, (total, seen, now))

    def _at(self, kind: tuple[str, int], now: float) -> tuple[float, float]:
        found = self._kinds.peek(kind)
        if found is None:
            return 0.0, 0.0
        total, weight, when = found
        faded = float(2.0 ** (-max(0.0, now - when) / HALF_LIFE_S))
        return total * faded, weight * faded


class Track:
    """How one quantity (the whole answer, its first token, each further one) lies to what is expected of it."""

    __slots__ = ("levels", "ratios")

    def __init__(self) -> None:
        self.levels = Levels()
        self.ratios = Ratios(SHAPE_HALF_LIFE_S)

    def bound(self, expected: float, kind: tuple[str, int], now: float, confidence: float) -> float:
        return expected * self.levels.of(kind, now) * self.ratios.quantile(confidence)

    def observe(self, expected: float, seconds: float, kind: tuple[str, int], now: float) -> None:
        expected = max(expected, SMALLEST_S)
        self.ratios.add(seconds / (expected * self.levels.of(kind, now)), now)
        self.levels.add(kind, seconds / expected, now)

    def outlasted(self, expected: float, seconds: float, kind: tuple[str, int], now: float) -> float:
        """It had taken so long when nobody waited any more. -> what it would have taken, as far as can be said (the
        mean of what lies beyond, Buckley and James 1979)."""
        level = self.levels.of(kind, now)
        centre = max(expected * level, SMALLEST_S)
        ratio = seconds / centre
        beyond = self.ratios.beyond(ratio)
        self.ratios.add_beyond(ratio, now)
        if ratio > 1.0:  # below that it says next to nothing
            self.levels.add(kind, beyond * level, now, weight=0.5)
        return beyond * centre


class LatencyBook:
    """One upstream's latencies. Streams and answers in one piece share all that they have in common: a stream tells its
    first token and its further ones apart, an answer in one piece tells their sum."""

    def __init__(self) -> None:
        self._trend = Trend(_SIZE, SHAPE_HALF_LIFE_S)
        self._total, self._ttft, self._tpot = Track(), Track(), Track()
        self._output: dict[int, tuple[float, float]] = {}  # size -> sum of tokens, weight
        self._weight, self._seen = 0.0, 0.0  # answers, and when the last one came

    def predict(self, asked: Asked, *, load: int, now: float, confidence: float = CONFIDENCE) -> Prediction | None:
        """None while nothing recent is known. `load`: calls that it has not finished yet. `confidence` in (0, 1)."""
        if self.weight(now) < MIN_WEIGHT:
            return None
        kind, first, output = asked.kind, _first(asked, load), self._output_of(asked)
        expected = self._trend.of([*first, output, output * load])
        total = self._total.bound(expected, kind, now, confidence)
        if not asked.stream:
            return Prediction(total, 0.0, total)
        ttft = self._ttft.bound(self._trend.of(first), kind, now, confidence)
        tpot = self._tpot.bound(self._trend.of([*_NONE, 1.0, load]), kind, now, confidence)
        return Prediction(min(ttft, total), tpot, total)

    def observe(
        self, asked: Asked, *, load: int, ttft_s: float, total_s: float, output_tokens: int, now: float
    ) -> None:
        """A complete answer. `load`: calls that were unfinished when it was sent. For an answer that came in one piece
        `ttft_s` is `total_s`, and `output_tokens` 0 where it does not tell them."""
        self._knows(now)
        if output_tokens > 0:
            self._wrote(asked, output_tokens)
        kind, first, output = asked.kind, _first(asked, load), self._output_of(asked)
        whole = [*first, output, output * load]
        expected = self._trend.of(whole)
        if asked.stream:
            self._observe_stream(asked, first, load, ttft_s, (total_s - ttft_s) / max(1, output_tokens), now)
        else:
            if expected <= 0.0:
                self._halve(first, output, total_s, now)
            self._trend.observe(whole, total_s, now)
        self._total.observe(expected or self._trend.of(whole), total_s, kind, now)

    def outlasted(self, asked: Asked, *, load: int, seconds: float, now: float, ttft_s: float | None = None) -> None:
        """A call that was given up after `seconds`: its answer would have taken longer. `ttft_s`: its first token, if
        that had come. A call that is given up on an unknown upstream tells that it is slow."""
        kind, first, output = asked.kind, _first(asked, load), self._output_of(asked)
        if self.weight(now) < MIN_WEIGHT:
            self.observe(asked, load=load, ttft_s=ttft_s or seconds, total_s=seconds, output_tokens=0, now=now)
            return
        whole = [*first, output, output * load]
        if asked.stream and ttft_s is not None:
            expected = self._trend.of(first)
            self._trend.observe([*first, 0.0, 0.0], ttft_s, now)
            self._ttft.observe(expected, ttft_s, kind, now)
        elif asked.stream:
            self._ttft.outlasted(self._trend.of(first), seconds, kind, now)
        expected = self._trend.of(whole)
        guessed = self._total.outlasted(expected, seconds, kind, now)
        if seconds > expected:
            self._knows(now)
            self._trend.observe(whole, guessed, now, weight=0.5)

    def weight(self, now: float) -> float:
        """How many answers are known, older ones counted by what is left of their weight."""
        return self._weight * float(2.0 ** (-max(0.0, now - self._seen) / HALF_LIFE_S))

    def _knows(self, now: float) -> None:
        self._weight, self._seen = min(self.weight(now), 1e6) + 1.0, now

    def _observe_stream(
        self, asked: Asked, first: list[float], load: int, ttft_s: float, tpot_s: float, now: float
    ) -> None:
        parts, token = [*first, 0.0, 0.0], [*_NONE, 1.0, float(load)]
        for track, of, seconds in ((self._ttft, parts, ttft_s), (self._tpot, token, max(tpot_s, 0.0))):
            expected = self._trend.of(of)
            self._trend.observe(of, seconds, now)
            track.observe(expected or self._trend.of(of), seconds, asked.kind, now)

    def _halve(self, first: list[float], output: float, total_s: float, now: float) -> None:
        """Of the very first answer nobody knows what part of it was writing: half of it, until others tell."""
        self._trend.observe([*first, 0.0, 0.0], 0.5 * total_s, now, weight=0.5)
        self._trend.observe([*_NONE, output, 0.0], 0.5 * total_s, now, weight=0.5)

    def _wrote(self, asked: Asked, tokens: int) -> None:
        total, weight = self._output.get(_size(asked.max_tokens), (0.0, 0.0))
        self._output[_size(asked.max_tokens)] = 0.99 * total + tokens, 0.99 * weight + 1.0

    def _output_of(self, asked: Asked) -> float:
        """Output tokens to expect."""
        total, weight = self._output.get(_size(asked.max_tokens), (0.0, 0.0))
        if weight == 0.0:  # none of this size yet: as those of all sizes
            total = sum(tokens for tokens, _ in self._output.values())
            weight = sum(seen for _, seen in self._output.values())
        tokens = total / weight if weight else ASSUMED_OUTPUT_TOKENS
        return tokens if asked.max_tokens is None else min(tokens, float(asked.max_tokens))


def _first(asked: Asked, load: int) -> list[float]:
    """What the time to the first token is made of: something, the input, and each call ahead."""
    ahead = [float(load - knot) if load > knot else 0.0 for knot in LOADS]
    return [1.0, asked.input_tokens / 1000.0, float(load), *ahead]


_FIRST = 3 + len(LOADS)

_NONE = [0.0] * _FIRST

_SIZE = _FIRST + 2  # and each output token, and what each call ahead adds to it


def _size(max_tokens: int | None) -> int:
    return len(OUTPUT_SIZES) if max_tokens is None else bisect_left(OUTPUT_SIZES, max_tokens)
