"""The pairs that wait for a cross-encoder."""

from __future__ import annotations

import time
from collections.abc import Callable

from gateway.moving_average import moving_average
from gateway.ports import EncoderQueue


class PairQueue:
    """`PairQueue` measures the queue before the threads of a cross-encoder. Use it from one event loop.

    `clock` returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._inside, self._threads = 0, 1
        self._pair_s = 0.0  # moving average
        self._emptied = clock()  # when no pair was waiting

    def __len__(self) -> int:
        """Return the number of pairs that wait or are read."""
        return self._inside

    def enter(self, threads: int) -> None:
        """Count a pair. The cross-encoder reads `threads` pairs at once."""
        self._threads = threads
        self._move(1)

    def leave(self, pair_s: float | None) -> None:
        """Take a pair off. `pair_s` is the time of reading it in seconds, or None if nothing read it."""
        self._move(-1)
        if pair_s is not None:
            self._pair_s = moving_average(self._pair_s, pair_s)

    def _move(self, by: int) -> None:
        if not self._waiting:
            self._emptied = self._clock()
        self._inside += by

    @property
    def _waiting(self) -> int:
        return max(0, self._inside - self._threads)

    def measure(self) -> EncoderQueue:
        """Return the queue at this moment."""
        if not self._inside:
            return EncoderQueue()
        wait_s = self._waiting * self._pair_s / self._threads
        return EncoderQueue(wait_s, self._pair_s, self._clock() - self._emptied)
