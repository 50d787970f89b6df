"""How often a question was asked lately: a count-min sketch in two generations. In memory, of fixed size.

Ours because those on PyPI (datasketches, pyprobables) count for ever: what was asked a month ago would still be asked
often, and in the end every question would. Fingerprints are SHA-256, so that their digits do for the hashes.
"""

from __future__ import annotations

ROWS = 4
WIDTH = 2**18  # counters of a byte a row: 1 MiB a generation
WINDOW = 2**16  # questions a generation
_MOST = 255


class Frequency:
    """What `add` says is never too low within the last `window` questions, and forgets everything after two of them.
    With the sizes above it is too high for one new question of 200 at worst: all four rows have to agree, and at most a
    quarter of the counters of each is in use in each generation."""

    def __init__(self, *, width: int = WIDTH, window: int = WINDOW) -> None:
        self._width = width
        self._window = window
        self._added = 0
        self._now, self._before = bytearray(ROWS * width), bytearray(ROWS * width)

    def add(self, fingerprint: str) -> int:
        """-> how often it was asked lately, this time included. `fingerprint`: 64 hex digits."""
        digits = [int(fingerprint[at : at + 16], 16) for at in range(0, 16 * ROWS, 16)]
        cells = [digit % self._width + row * self._width for row, digit in enumerate(digits)]
        now, low = self._now, min(self._now[cell] for cell in cells)
        if low < _MOST:
            for cell in cells:
                if now[cell] == low:  # the others are too high already (Estan and Varghese's conservative update)
                    now[cell] = low + 1
        count = min(low + 1, _MOST) + min(self._before[cell] for cell in cells)
        self._added += 1
        if self._added == self._window:
            self._added = 0
            self._before, self._now = self._now, bytearray(ROWS * self._width)
        return count
