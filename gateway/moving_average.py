"""A moving average of the time that a piece of work takes. Pure."""

from __future__ import annotations

WEIGHT = 1 / 8  # of the last value


def moving_average(average: float, value: float) -> float:
    """Return the average with one more value. An average of 0 has no value yet, and becomes `value`."""
    return average + (value - average) * (WEIGHT if average else 1.0)
