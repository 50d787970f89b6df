"""The real clock."""

from __future__ import annotations

import time


class SystemClock:
    """The system's own functions, without a wrapper: a miss reads the clock some ten times."""

    wall = staticmethod(time.time)
    monotonic = staticmethod(time.perf_counter)
