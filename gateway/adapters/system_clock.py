"""The real clock."""

from __future__ import annotations

import time


class SystemClock:
    def wall(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.perf_counter()
