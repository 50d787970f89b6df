"""How soon the places at a backend come free. Pure: the clock's reading comes in.

Two measures, and the sooner one is believed, since nobody is refused on a guess: by Little's law a place among `n`
comes free every `hold / n` seconds; and while somebody waits the time from turn to turn is seen itself. Places that
are held for long, by streams, make the first too slow; before there was a queue the second is unknown.

Both are means over what came in the last `MEMORY_S` seconds, and over `SAMPLES` values where that is more. A memory of
so many values alone is 3 ms at 5,000 answers a second: after one stall of the event loop all it knew was the stall.
With 32 clients before an endpoint that answers at once a gate was seen that took its places to be held for 152 ms, had
room for 9 at a limit of 7, and refused.

What a hold takes in the event loop itself is no sign of the backend: it is measured by how long those who are given
their turn take to wake, which is one turn of the loop, and a call is at most `LOOP_TURNS` of them.
"""

from __future__ import annotations

from math import exp, inf

MEMORY_S = 1.0
SAMPLES = 16
LEAST_KEPT = 1 - 1 / SAMPLES
LOOP_TURNS = 5  # 1.2 to 3.2 on average before an endpoint that answers at once; 3 had 42 of 1,000 clients refused


class Recent:
    """A mean that forgets: at most 1/`SAMPLES` of what it knows for a new value, and e times less in `MEMORY_S`."""

    __slots__ = ("_at", "_count", "_total")

    def __init__(self) -> None:
        self._count = self._total = 0.0
        self._at = -inf

    def add(self, value: float, now: float) -> None:
        kept = exp((self._at - now) / MEMORY_S)
        if kept < LEAST_KEPT:
            kept = LEAST_KEPT
        self._count = self._count * kept + 1
        self._total = self._total * kept + value
        self._at = now

    @property
    def mean(self) -> float | None:
        return self._total / self._count if self._count else None


class Turnover:
    """All times in seconds, `now` by the monotonic clock."""

    def __init__(self) -> None:
        self._holds, self._gaps, self._wakes = Recent(), Recent(), Recent()
        self._last_turn = -inf
        self.held = self._holds.add  # told of each place that comes free for how long it was held, and when

    def given(self, waiting_since: float, now: float) -> None:
        """Somebody has a turn; since then somebody has been waiting without a pause."""
        self._gaps.add(now - max(waiting_since, self._last_turn), now)
        self._last_turn = now

    def woke(self, seconds: float, now: float) -> None:
        """So long after it was given a turn it runs."""
        self._wakes.add(seconds, now)

    @property
    def hold_s(self) -> float | None:
        """How long a place is usually held; None: not known yet."""
        return self._holds.mean

    @property
    def loop_s(self) -> float:
        """How much of a call is the event loop's own, as long as somebody waits."""
        return LOOP_TURNS * (self._wakes.mean or 0.0)

    def each_s(self, places: int) -> float:
        """From one place that comes free to the next, as a rule; 0: not known yet."""
        return self._sooner((self.hold_s or 0.0) / places)

    def backends_s(self, places: int) -> float:
        """Likewise, as far as it is the backend's doing: 0 where the event loop alone is what is short."""
        return self._sooner(max(0.0, (self.hold_s or 0.0) - self.loop_s) / places)

    def _sooner(self, by_holds: float) -> float:
        gap = self._gaps.mean
        return by_holds if gap is None else min(gap, by_holds)
