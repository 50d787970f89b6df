"""A circuit breaker: pure, the clock's reading comes in."""

from __future__ import annotations

from enum import IntEnum


class BreakerState(IntEnum):
    """The value is that of the metric `nearhit_breaker_state`."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class CircuitBreaker:
    """Closed until `threshold` failures in a row, or until it is ejected; then open for `cooldown_s`; then one probe at
    a time decides.

    With `longest_s` each opening that follows upon the last one's end by less than that is twice as long, up to it:
    what comes back and fails again at once is let in more rarely. A probe that fails costs one call, so the next one
    comes after no longer a time."""

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
        """Whether `allow` would say yes."""
        if self.failures < self._threshold:
            return True
        state = self.state(now)
        if state is BreakerState.HALF_OPEN:
            return self._probing_since is None or now - self._probing_since >= self._open_s
        return state is BreakerState.CLOSED

    def allow(self, now: float) -> bool:
        """Whether a call may be made now. In the half-open state only one caller is let through, and another one if
        nothing has been heard of it for a whole cooldown (it may have been cancelled)."""
        if self.failures < self._threshold:
            return True
        if not self.ready(now):
            return False
        if self.state(now) is BreakerState.HALF_OPEN:
            self._probing_since = now
        return True

    def succeeded(self, sent_at: float | None = None) -> None:
        """`sent_at`: when the call was sent, where that is known. What was sent before the opening proves nothing."""
        if sent_at is not None and self.failures >= self._threshold and sent_at < self._opened_at:
            return
        self.failures = 0
        self._probing_since = None

    def failed(self, now: float, sent_at: float | None = None) -> None:
        """`sent_at` as above: what was on its way at the opening, and fails too, is no news."""
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
        """Another gateway's has opened: where this one meets a failure, too, it need not meet all of them."""
        if self.failures < self._threshold:
            self.failures = self._threshold - 1

    def eject(self, now: float) -> None:
        """Opens it whatever the failures in a row."""
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
