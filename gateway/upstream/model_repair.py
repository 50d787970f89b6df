"""When a model that does not answer is looked at, and when it is loaded anew. Pure: the clock's reading and chance come
in."""

from __future__ import annotations

from enum import StrEnum

LOOK_EVERY_S = 4.0  # less than the shortest cooldown of a breaker: no client's request has to find out
JITTER = 0.25  # of it, to either side: gateways do not ask in step
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0  # between two reloads
RELAPSE_S = 60.0  # who fails again within it after it answered, did not get well by itself
CALM_S = 600.0  # after which the pauses begin anew


class Reload(StrEnum):
    """What came of a reload; the label `outcome` of `nearhit_model_reloads_total`."""

    RECOVERED = "recovered"  # it answers again
    FAILED = "failed"  # it could not be loaded, or does not answer
    REFUSED = "refused"  # the server does not let models be loaded


def look_again_s(chance: float) -> float:
    """How long to wait until the next look. `chance`: in [0, 1)."""
    return LOOK_EVERY_S * (1.0 - JITTER + 2.0 * JITTER * chance)


class Repairs:
    """Of one model at one upstream. Each pause between two reloads is twice the one before; where the server refuses,
    it is the longest at once."""

    __slots__ = ("_answered_at", "_next_at", "_pause_s")

    def __init__(self) -> None:
        self._pause_s = FIRST_PAUSE_S
        self._next_at = 0.0
        self._answered_at: float | None = None

    def due(self, now: float) -> bool:
        """Whether it may be reloaded now."""
        return now >= self._next_at

    def trusts(self, now: float) -> bool:
        """Whether an answer to a probe means that it is well. Of several processes of a model one may be dead: then a
        probe may well be answered, and soon a call is not."""
        return self._answered_at is None or now - self._answered_at > RELAPSE_S

    def answered(self, now: float) -> None:
        """It is in service again, by itself or by a reload."""
        self._answered_at = now

    def reloaded(self, outcome: Reload, now: float) -> None:
        if now - self._next_at > CALM_S:
            self._pause_s = FIRST_PAUSE_S
        if outcome is Reload.REFUSED:
            self._pause_s = LONGEST_PAUSE_S
        self._next_at = now + self._pause_s
        self._pause_s = min(LONGEST_PAUSE_S, 2.0 * self._pause_s)
