"""Adapt the concurrency limit of a backend to the time that its responses take to begin. Pure.

The controller is a gradient controller. From Netflix's concurrency-limits (`Gradient2Limit`,
https://github.com/Netflix/concurrency-limits) it takes the tolerance, the smoothing, and the rule that only windows
which reach the limit count. From Envoy's adaptive concurrency filter (https://www.envoyproxy.io/docs/envoy/latest/,
HTTP filters) it takes the headroom of the square root and the baseline that is measured under less load. Let `r` be the
slowdown: the time to first byte as a multiple of its baseline. Then

    limit' = limit * clamp(TOLERANCE / r, 1/2, 1) + sqrt(limit)

This settles a little above the number of calls that the backend works on at once. Four things differ, because backends
are models:

- `r` is a geometric mean over a window of responses. Each response is compared with the baseline of its own kind.
  Response times of a model differ by a factor of ten. Streams begin long before complete responses are ready. One
  response that takes a minute is no sign of load.
- The baseline rises only while the limit is not reached. In Gradient2 the baseline follows the latency under load. A
  lasting overload then becomes the new normal, and the limit rises without end.
- Under lasting load, one window in `PROBE_EVERY` is a probe with a lower limit. If calls queue in the backend, fewer
  concurrent calls take proportionally less time, at the same throughput (Little's law). In that case the lower limit
  stays, its latency becomes the baseline, and the next probe follows soon. So a baseline that was learnt from a loaded
  backend comes down.
- A cut that did not help is undone, by the same law. The slowness then has another cause (longer responses, a slower
  machine), and becomes the new baseline. Cuts stop at half the calls if that does not halve the latency.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import exp, inf, log, sqrt

# Estimate how soon permits of a backend are released. Pure: callers pass the time.
#
# There are two estimates, and the shorter one is used, so that no call is refused on a guess. By Little's law one of
# `n` permits is released every `hold / n` seconds. While calls wait, the time from one grant to the next is measured
# directly. The first estimate is too long if streams hold permits for long. The second one is unknown before there is a
# queue.
#
# Both are means over the last `MEMORY_S` seconds, or over `SAMPLES` values if that is more. A memory of `SAMPLES`
# values alone spans 3 ms at 5,000 responses a second: one stall of the event loop would fill it. With 32 clients and an
# endpoint that answers at once, a limiter then measured holds of 152 ms, allowed a queue of 9 at a limit of 7, and
# refused calls.
#
# The share of a hold that the event loop takes says nothing about the backend. It is estimated from the time that
# granted waiters take to wake up, which is one iteration of the loop. A call takes at most `LOOP_TURNS` iterations.

MEMORY_S = 1.0

SAMPLES = 16

MIN_RETAINED = 1 - 1 / SAMPLES

# iterations; 1.2 to 3.2 on average with an endpoint that answers at once; with 3, 42 of 1,000 clients were refused
LOOP_TURNS = 5


class RecentLatencies:
    """A mean that forgets. A new value weighs at least 1/`SAMPLES`, and the weight of the old ones falls by e in
    `MEMORY_S`.
    """

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
    """`SlotTurnover` estimates how often a permit is released. All times are in seconds; `now` is monotonic."""

    def __init__(self) -> None:
        self._holds, self._gaps, self._wakeups = RecentLatencies(), RecentLatencies(), RecentLatencies()
        self._last_turn = -inf
        self.record_hold = self._holds.add  # called with the hold time and `now` for each released permit

    def on_grant(self, waiting_since: float, now: float) -> None:
        """Record a grant. Calls have been waiting without a pause since `waiting_since`."""
        self._gaps.add(now - max(waiting_since, self._last_turn), now)
        self._last_turn = now

    def record_wakeup(self, seconds: float, now: float) -> None:
        """Record the seconds from a grant until the waiting task runs."""
        self._wakeups.add(seconds, now)

    @property
    def hold_s(self) -> float | None:
        """The mean time that a permit is held, or None if it is not known yet."""
        return self._holds.mean

    @property
    def loop_s(self) -> float:
        """The part of a call's time that the event loop takes while calls wait."""
        return LOOP_TURNS * (self._wakeups.mean or 0.0)

    def slot_interval_s(self, places: int) -> float:
        """Return the expected seconds from one released permit to the next, or 0 if they are not known yet."""
        return self._shorter_interval((self.hold_s or 0.0) / places)

    def backend_interval_s(self, places: int) -> float:
        """Return the part of `slot_interval_s` that the backend causes: 0 if only the event loop is slow."""
        return self._shorter_interval(max(0.0, (self.hold_s or 0.0) - self.loop_s) / places)

    def _shorter_interval(self, by_holds: float) -> float:
        gap = self._gaps.mean
        return by_holds if gap is None else min(gap, by_holds)


# Envoy's min_concurrency; Netflix uses 20, which is a queue for a model that generates two responses at once
MIN_LIMIT = 3

# the share of the ceiling and the minimum to start from; doubles while responses get no slower
INITIAL_SHARE, INITIAL_LIMIT = 0.25, 8

TOLERANCE = 1.25  # Envoy's buffer of 25 %

SMOOTHING = 0.5

# standard errors beyond the tolerance, and consecutive windows, that end the initial growth
CERTAINTY_SIGMAS, SIGN_WINDOWS = 2.0, 2

MIN_SAMPLES = 48  # their geometric mean is within 15 % two times out of three, for a lognormal with sigma 1

START_SAMPLES = 16  # of a window during the initial growth: ending it by mistake costs slower growth, but no response

# windows between probes, share of the limit in a probe; probes cost 1 % of the throughput at worst
PROBE_EVERY, PROBE_SHARE = 24, 0.7

# the rate at which the baseline follows a faster window, and a slower one while the limit is not reached
BASELINE_FALL, BASELINE_RISE = 0.3, 0.1

CUT_HELPED_RATIO = 0.7  # between 1/2 (half the calls take half the time: they queued) and 1 (they did not)

PROBE_HELPED_RATIO = 0.84  # in the same way between `PROBE_SHARE` and 1

BACKOFF_RATIO = 0.9  # factor on the limit when the backend reports overload: Netflix's backoffRatio

MIN_SECONDS = 0.02  # shorter times count as this: clients do not notice them, and a busy event loop takes as long

LOG_MIN_SECONDS = log(MIN_SECONDS)


class AdaptiveLimit:
    """`AdaptiveLimit` keeps a limit between `MIN_LIMIT` (or `ceiling`, if lower) and `ceiling`.

    If it is not adaptive, the limit is always `ceiling`.
    """

    def __init__(self, ceiling: int, *, adaptive: bool) -> None:
        self._adaptive = adaptive
        self.ceiling = ceiling
        self._floor = min(MIN_LIMIT, ceiling)
        initial = max(INITIAL_LIMIT, ceiling * INITIAL_SHARE) if adaptive else ceiling
        self._limit = float(min(ceiling, initial))
        self.value = int(self._limit)
        self._is_starting = True  # no window has shown load yet
        self._signs = 0  # consecutive windows that show load
        self._baselines: dict[Hashable, float] = {}  # kind -> log of seconds
        self._before_cuts: tuple[float, float] | None = None  # limit and log of r before the first cut
        self._probing_from: tuple[float, float] | None = None  # limit and log of r before the probe
        self._until_probe = 1  # windows that reach the limit
        self._open_window(0.0)

    @property
    def is_starting(self) -> bool:
        """Whether the limit is still in its initial growth: no load was seen, and a higher limit may work too."""
        return self._adaptive and self._is_starting and self._limit < self.ceiling

    def _open_window(self, now: float) -> None:
        """Start a window. Only calls that are sent from now on count, because earlier ones met another limit."""
        self._window_start = now
        self._logs: dict[Hashable, list[float]] = {}  # kind -> count, sum of log seconds, sum of their squares
        self._count = 0
        self._peak = 0
        self._overloaded = False

    def on_response(self, kind: Hashable, sent_at: float, now: float, inflight: int) -> None:
        """Record that a response begins at `now`, for a call that was sent at `sent_at` (both monotonic).

        `inflight` counts this call too. `kind` groups responses of similar duration; it takes few values.
        """
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
        # Twice the limit, because fast responses complete first and would bias a shorter window.
        if self._count >= (max(START_SAMPLES, self._limit) if self.is_starting else max(MIN_SAMPLES, 2 * self._limit)):
            self._close_window()
            self._open_window(now)

    def on_overload(self, sent_at: float) -> None:
        """Lower the limit because the backend refused for load or did not respond in time; at most once a window."""
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
        """Return the log of this window's slowdown against the baselines, or None if no kind has a baseline yet."""
        known = [(n, total - n * self._baselines[k]) for k, (n, total, _) in self._logs.items() if k in self._baselines]
        count = sum(n for n, _ in known)
        return sum(total for _, total in known) / count if count else None

    def _standard_error(self) -> float:
        """Return the standard error of `_slowdown` that follows from the spread within this window."""
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
        """Undo the cuts if they did not help. Return whether they were undone."""
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
        else:  # the backend's queue may have grown further after the first cut
            self._before_cuts = self._before_cuts[0], max(self._before_cuts[1], slowdown)
        self._set_limit(self._limit + SMOOTHING * (target - self._limit))
        self._until_probe -= 1
        if self._until_probe <= 0:
            self._before_cuts = None
            self._probing_from = self._limit, slowdown
            self._set_limit(self._limit * PROBE_SHARE)

    def _signs_of_load(self, slowdown: float) -> bool:
        """Return whether the initial growth must end. One window alone may be a stall; chance does not count."""
        if slowdown < log(TOLERANCE) + CERTAINTY_SIGMAS * self._standard_error():
            self._signs = 0
            self._set_limit(2 * self._limit)
        else:
            self._signs += 1
        return self._signs >= SIGN_WINDOWS

    def _set_limit(self, limit: float) -> None:
        self._limit = min(float(self.ceiling), max(float(self._floor), limit))
        self.value = int(self._limit)
