"""How many calls a backend bears at once, learnt from how long it takes to begin its answers. Pure.

A gradient controller as in Netflix's concurrency-limits (`Gradient2Limit`: tolerance, smoothing, only where the limit
is made use of; https://github.com/Netflix/concurrency-limits) and Envoy's adaptive concurrency filter (headroom of the
square root, a baseline measured under less load; https://www.envoyproxy.io/docs/envoy/latest/, HTTP filters). With `r`
for how many times longer than at rest answers take to begin,

    limit' = limit * clamp(TOLERANCE / r, 1/2, 1) + sqrt(limit)

which comes to rest a little above what the backend works on at once. Four things differ, for the sake of models:

- `r` is a geometric mean over a window of answers, each against the baseline of its own kind: answers of a model
  differ by a factor of ten, streams begin long before wholes end, and one that takes a minute is no sign of load.
- The baseline rises only while the limit is not reached. Where it follows latencies under load, as in Gradient2, a
  lasting overload becomes the new normal, and the limit rises without end.
- Under a lasting load the limit is lowered for one window in `PROBE_EVERY`. Where calls queue in the backend, fewer at
  once take that much less long and no fewer are answered (Little's law): then the lower limit stays, its latency is
  the baseline, and the next probe follows soon. So a baseline that was learnt of a loaded backend comes down.
- A cut that did not help is taken back by the same law: slowness has another cause then (longer answers, a slower
  machine), and is the new baseline. Half the calls without half the latency is as far as it goes.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import exp, inf, log, sqrt

# How soon the places at a backend come free. Pure: the clock's reading comes in.
#
# Two measures, and the sooner one is believed, since nobody is refused on a guess: by Little's law a place among `n`
# comes free every `hold / n` seconds; and while somebody waits the time from turn to turn is seen itself. Places that
# are held for long, by streams, make the first too slow; before there was a queue the second is unknown.
#
# Both are means over what came in the last `MEMORY_S` seconds, and over `SAMPLES` values where that is more. A memory
# of so many values alone is 3 ms at 5,000 answers a second: after one stall of the event loop all it knew was the
# stall. With 32 clients before an endpoint that answers at once a gate was seen that took its places to be held for 152
# ms, had room for 9 at a limit of 7, and refused.
#
# What a hold takes in the event loop itself is no sign of the backend: it is measured by how long those who are given
# their turn take to wake, which is one turn of the loop, and a call is at most `LOOP_TURNS` of them.

MEMORY_S = 1.0

SAMPLES = 16

MIN_RETAINED = 1 - 1 / SAMPLES

LOOP_TURNS = 5  # 1.2 to 3.2 on average before an endpoint that answers at once; 3 had 42 of 1,000 clients refused


class RecentLatencies:
    """A mean that forgets: at most 1/`SAMPLES` of what it knows for a new value, and e times less in `MEMORY_S`."""

    __slots__ = ("_at", "_count", "_total")

    def __init__(self) -> None:
        self._count = self._total = 0.0
        self._at = -inf

    def add(self, value: float, now: float) -> None:
        retained = exp((self._at - now) / MEMORY_S)
        if retained < MIN_RETAINED:
            retained = MIN_RETAINED
        self._count = self._count * retained + 1
        self._total = self._total * retained + value
        self._at = now

    @property
    def mean(self) -> float | None:
        return self._total / self._count if self._count else None


class SlotTurnover:
    """All times in seconds, `now` by the monotonic clock."""

    def __init__(self) -> None:
        self._holds, self._gaps, self._wakeups = RecentLatencies(), RecentLatencies(), RecentLatencies()
        self._last_turn = -inf
        self.record_hold = self._holds.add  # told of each place that comes free for how long it was held, and when

    def given(self, waiting_since: float, now: float) -> None:
        """Somebody has a turn; since then somebody has been waiting without a pause."""
        self._gaps.add(now - max(waiting_since, self._last_turn), now)
        self._last_turn = now

    def record_wakeup(self, seconds: float, now: float) -> None:
        """So long after it was given a turn it runs."""
        self._wakeups.add(seconds, now)

    @property
    def hold_s(self) -> float | None:
        """How long a place is usually held; None: not known yet."""
        return self._holds.mean

    @property
    def loop_s(self) -> float:
        """How much of a call is the event loop's own, as long as somebody waits."""
        return LOOP_TURNS * (self._wakeups.mean or 0.0)

    def slot_interval_s(self, places: int) -> float:
        """From one place that comes free to the next, as a rule; 0: not known yet."""
        return self._shorter_interval((self.hold_s or 0.0) / places)

    def backend_interval_s(self, places: int) -> float:
        """Likewise, as far as it is the backend's doing: 0 where the event loop alone is what is short."""
        return self._shorter_interval(max(0.0, (self.hold_s or 0.0) - self.loop_s) / places)

    def _shorter_interval(self, by_holds: float) -> float:
        gap = self._gaps.mean
        return by_holds if gap is None else min(gap, by_holds)


MIN_LIMIT = 3  # Envoy's min_concurrency; Netflix' is 20, which for a model that writes two answers at once is a queue

INITIAL_SHARE, INITIAL_LIMIT = 0.25, 8  # of the ceiling, and no fewer: doubled from there while answers get no slower

TOLERANCE = 1.25  # Envoy's buffer of 25 %

SMOOTHING = 0.5

CERTAINTY_SIGMAS, SIGN_WINDOWS = (
    2.0,
    2,
)  # standard errors beyond the tolerance, windows in a row, that end the growth from the start

MIN_SAMPLES = 48  # a geometric mean of so many is within 15 % two times of three at a lognormal spread (sigma) of 1

START_SAMPLES = 16  # of a window while it doubles: a wrong end of that costs a slower growth, and no answer

PROBE_EVERY, PROBE_SHARE = 24, 0.7  # windows; costs 1 % of the throughput at worst

BASELINE_FALL, BASELINE_RISE = (
    0.3,
    0.1,
)  # how fast the baseline follows a window below it, and one above it while the limit is not reached

CUT_HELPED_RATIO = 0.7  # between 1/2, what half the calls take if they queued, and 1, if they did not

PROBE_HELPED_RATIO = 0.84  # likewise between `PROBE_SHARE` and 1

BACKOFF_RATIO = 0.9  # of the limit is left when a backend says itself that it is overloaded: Netflix's backoffRatio

MIN_SECONDS = 0.02  # what is faster is not told apart: nobody notices it, and a busy event loop takes as long

LOG_MIN_SECONDS = log(MIN_SECONDS)


class AdaptiveLimit:
    """Between `MIN_LIMIT` (or the ceiling, where that is less) and `ceiling`. Not adaptive: always `ceiling`."""

    def __init__(self, ceiling: int, *, adaptive: bool) -> None:
        self._adaptive = adaptive
        self.ceiling = ceiling
        self._floor = min(MIN_LIMIT, ceiling)
        initial = max(INITIAL_LIMIT, ceiling * INITIAL_SHARE) if adaptive else ceiling
        self._limit = float(min(ceiling, initial))
        self.value = int(self._limit)
        self._is_starting = True  # until there are signs of load
        self._signs = 0  # windows in a row that have one
        self._baselines: dict[Hashable, float] = {}  # kind -> log of seconds
        self._before_cuts: tuple[float, float] | None = None  # limit and log of r when cuts began
        self._probing_from: tuple[float, float] | None = None  # likewise when a probe began
        self._until_probe = 1  # windows in which the limit is reached
        self._open_window(0.0)

    @property
    def is_starting(self) -> bool:
        """Whether it still grows from its start, with no sign of load so far: more may do as well."""
        return self._adaptive and self._is_starting and self._limit < self.ceiling

    def _open_window(self, now: float) -> None:
        """A window of answers that are asked for from now on: earlier ones met another limit."""
        self._window_start = now
        self._logs: dict[
            Hashable, list[float]
        ] = {}  # kind -> how many, sums of the logs of their seconds and of their squares
        self._count = 0
        self._peak = 0
        self._overloaded = False

    def on_response(self, kind: Hashable, sent_at: float, now: float, inflight: int) -> None:
        """An answer begins at `now` whose call was sent at `sent_at`, both by the monotonic clock; `inflight`: this one
        included.

        `kind`: what answers have in common that take alike; a small number of values."""
        if not self._adaptive or sent_at < self._window_start:
            return
        if inflight > self._peak:
            self._peak = inflight
        log_seconds = log(now - sent_at) if now - sent_at > MIN_SECONDS else LOG_MIN_SECONDS
        sums = self._logs.get(kind)
        if sums is None:
            sums = self._logs[kind] = [0, 0.0, 0.0]
        sums[0] += 1
        sums[1] += log_seconds
        sums[2] += log_seconds * log_seconds
        self._count += 1
        if self._count < START_SAMPLES:
            return
        # Twice the limit: those that end first are the fast ones.
        if self._count >= (max(START_SAMPLES, self._limit) if self.is_starting else max(MIN_SAMPLES, 2 * self._limit)):
            self._close_window()
            self._open_window(now)

    def on_overload(self, sent_at: float) -> None:
        """The backend refused for load, or did not answer in time: once a window, whatever the latencies say."""
        if not self._adaptive or self._overloaded or sent_at < self._window_start:
            return
        self._overloaded = True
        self._is_starting = False
        self._set_limit(self._limit * BACKOFF_RATIO)

    def _close_window(self) -> None:
        slowdown = self._slowdown()
        reached = self._peak >= self.value
        self._update_baselines(reached)
        if slowdown is None:
            return
        if self._probing_from is not None:
            self._end_probe(*self._probing_from, slowdown)
        elif self._recovered_from_cuts(slowdown):
            return
        elif reached:
            self._adjust(slowdown)

    def _slowdown(self) -> float | None:
        """Log of how many times longer than their baselines this window's answers took; None: no kind has one yet."""
        known = [(n, total - n * self._baselines[k]) for k, (n, total, _) in self._logs.items() if k in self._baselines]
        count = sum(n for n, _ in known)
        return sum(total for _, total in known) / count if count else None

    def _standard_error(self) -> float:
        """The standard error of `_slowdown`, as far as this window's own spread makes it."""
        spread = sum(squares - total * total / n for n, total, squares in self._logs.values())
        return sqrt(max(0.0, spread)) / self._count

    def _update_baselines(self, reached: bool) -> None:
        for kind, (n, total, _) in self._logs.items():
            mean = total / n
            known = self._baselines.setdefault(kind, mean)
            if mean < known:
                self._baselines[kind] += BASELINE_FALL * (mean - known)
            elif not reached:
                self._baselines[kind] += BASELINE_RISE * (mean - known)

    def _recovered_from_cuts(self, slowdown: float) -> bool:
        """Whether cuts were taken back because they did not help."""
        if self._before_cuts is None or self._limit > self._before_cuts[0] / 2:
            return False
        limit, previous = self._before_cuts
        self._before_cuts = None
        if slowdown <= previous + log(CUT_HELPED_RATIO):
            return False
        self._reset_baselines()
        self._set_limit(limit)
        return True

    def _reset_baselines(self) -> None:
        for kind, (n, total, _) in self._logs.items():
            self._baselines[kind] = total / n

    def _end_probe(self, limit: float, previous: float, slowdown: float) -> None:
        self._probing_from = None
        if slowdown > previous + log(PROBE_HELPED_RATIO):
            self._set_limit(limit)
            self._until_probe = PROBE_EVERY
        else:
            for kind, (n, total, _) in self._logs.items():
                self._baselines[kind] = min(self._baselines[kind], total / n)
            self._until_probe = 1

    def _adjust(self, slowdown: float) -> None:
        if self.is_starting and not self._signs_of_load(slowdown):
            return
        self._is_starting = False
        gradient = min(1.0, max(0.5, TOLERANCE / exp(slowdown)))
        target = self._limit * gradient + sqrt(self._limit)
        if target >= self._limit:
            self._before_cuts = None
        elif self._before_cuts is None:
            self._before_cuts = self._limit, slowdown
        else:  # the backend's queue may still have grown after the first cut
            self._before_cuts = self._before_cuts[0], max(self._before_cuts[1], slowdown)
        self._set_limit(self._limit + SMOOTHING * (target - self._limit))
        self._until_probe -= 1
        if self._until_probe <= 0:
            self._before_cuts = None
            self._probing_from = self._limit, slowdown
            self._set_limit(self._limit * PROBE_SHARE)

    def _signs_of_load(self, slowdown: float) -> bool:
        """While it grows from its start: what chance explains is none, and one window alone may be a stall."""
        if slowdown < log(TOLERANCE) + CERTAINTY_SIGMAS * self._standard_error():
            self._signs = 0
            self._set_limit(2 * self._limit)
        else:
            self._signs += 1
        return self._signs >= SIGN_WINDOWS

    def _set_limit(self, limit: float) -> None:
        self._limit = min(float(self.ceiling), max(float(self._floor), limit))
        self.value = int(self._limit)
