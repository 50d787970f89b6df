"""A circuit breaker. Pure: the caller passes the clock's reading."""

from __future__ import annotations

from enum import IntEnum


class BreakerState(IntEnum):
    """The state of a circuit breaker, with the value of the metric `nearhit_breaker_state`."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class CircuitBreaker:
    """`CircuitBreaker` stops calls to a target that fails.

    It is closed until `threshold` failures in a row, or until `eject`. It is then open for `cooldown_s`. After that it
    is half-open: one probe at a time decides.

    With `longest_s`, an opening that follows the end of the previous one by less than `longest_s` lasts twice as long,
    up to `longest_s`. So a target that recovers and fails again at once is tried less often. A failed probe does not
    lengthen the time until the next probe, because it costs only one call.
    """

    __slots__ = (
        "_cooldown_s",
        "_longest_s",
        "_opened_at",
        "_openings",
        "_probe_at",
        "_probing_since",
        "_threshold",
        "failures",
    )

    def __init__(self, threshold: int, cooldown_s: float, longest_s: float | None = None) -> None:
        self._threshold = threshold
        self._cooldown_s = cooldown_s
        self._longest_s = cooldown_s if longest_s is None else longest_s
        self.failures = 0  # in a row
        self._openings = 0
        self._opened_at = 0.0
        self._probe_at = 0.0
        self._probing_since: float | None = None

    def state(self, now: float) -> BreakerState:
        if self.failures < self._threshold:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if now >= self._probe_at else BreakerState.OPEN

    def ready(self, now: float) -> bool:
        """Return whether `allow` would return True."""
        if self.failures < self._threshold:
            return True
        state = self.state(now)
        if state is BreakerState.HALF_OPEN:
            return self._probing_since is None or now - self._probing_since >= self._open_s
        return state is BreakerState.CLOSED

    def allow(self, now: float) -> bool:
        """Return whether a call may be made now.

        In the half-open state one caller is let through. Another one follows if the first reports nothing for a whole
        cooldown, because it may have been cancelled.
        """
        if self.failures < self._threshold:
            return True
        if not self.ready(now):
            return False
        if self.state(now) is BreakerState.HALF_OPEN:
            self._probing_since = now
        return True

    def succeeded(self, sent_at: float | None = None) -> None:
        """Record a success. `sent_at` is the time of the call, if known. A call that was sent before the breaker opened
        does not close it."""
        if sent_at is not None and self.failures >= self._threshold and sent_at < self._opened_at:
            return
        self.failures = 0
        self._probing_since = None

    def failed(self, now: float, sent_at: float | None = None) -> None:
        """Record a failure. A call that was sent before the breaker opened (`sent_at`) does not count."""
        if self.failures >= self._threshold:
            if sent_at is not None and sent_at < self._opened_at:
                return
            self.failures += 1
        else:
            self.failures += 1
            if self.failures == self._threshold:
                self._open(now)
        self._probing_since = None
        self._probe_at = now + self._open_s

    def hint(self) -> None:
        """Note that another gateway's breaker has opened: the next failure here opens this one."""
        if self.failures < self._threshold:
            self.failures = self._threshold - 1

    def eject(self, now: float) -> None:
        """Open the breaker regardless of the failures in a row."""
        if self.failures < self._threshold:
            self.failures = self._threshold
            self._open(now)
            self._probing_since = None
            self._probe_at = now + self._open_s

    @property
    def _open_s(self) -> float:
        return min(self._longest_s, self._cooldown_s * 2.0 ** max(0, self._openings - 1))

    def _open(self, now: float) -> None:
        if now - self._probe_at > self._longest_s:
            self._openings = 0
        self._openings = min(self._openings + 1, 32)
        self._opened_at = now
