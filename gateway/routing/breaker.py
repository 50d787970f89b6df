"""A circuit breaker: pure, the clock's reading comes in."""

from __future__ import annotations

from enum import IntEnum


class State(IntEnum):
    """The value is that of the metric `nearhit_breaker_state`."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class Breaker:
    """Closed until `threshold` failures in a row; then open for `cooldown_s`; then one probe at a time decides."""

    __slots__ = ("_cooldown_s", "_failures", "_probe_at", "_probing_since", "_threshold")

    def __init__(self, threshold: int, cooldown_s: float) -> None:
        self._threshold = threshold
        self._cooldown_s = cooldown_s
        self._failures = 0
        self._probe_at = 0.0
        self._probing_since: float | None = None

    def state(self, now: float) -> State:
        if self._failures < self._threshold:
            return State.CLOSED
        return State.HALF_OPEN if now >= self._probe_at else State.OPEN

    def allow(self, now: float) -> bool:
        """Whether a call may be made now. In the half-open state only one caller is let through, and another one if
        nothing has been heard of it for a whole cooldown (it may have been cancelled)."""
        state = self.state(now)
        if state is State.CLOSED:
            return True
        if state is State.OPEN:
            return False
        if self._probing_since is not None and now - self._probing_since < self._cooldown_s:
            return False
        self._probing_since = now
        return True

    def succeeded(self) -> None:
        self._failures = 0
        self._probing_since = None

    def failed(self, now: float) -> None:
        self._failures += 1
        self._probing_since = None
        self._probe_at = now + self._cooldown_s
