"""Times to a few decimals, by integers: `round(x, 3)` and `f"{x:.3f}"` of an arbitrary float take 2 to 4 us each, this
0.2, and every answer and every line of the log has several."""

from __future__ import annotations

IN_MS = (1e3).__mul__  # of seconds


def thousandths(value: float) -> float:
    """`value`, not negative, to three decimals."""
    return int(1e3 * value + 0.5) / 1e3


def millis(seconds: float) -> float:
    """Not negative, to a thousandth of a millisecond."""
    return int(1e6 * seconds + 0.5) / 1e3


def tenths_of_millis(seconds: float) -> str:
    """Not negative, as text with one decimal."""
    tenths = int(1e4 * seconds + 0.5)
    return f"{tenths // 10}.{tenths % 10}"
