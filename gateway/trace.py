"""What one request has cost so far, stage by stage: the source of Server-Timing and of the stage metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.ports import Clock


class Trace:
    """Durations of one request in seconds, in the order in which the stages ended. Not thread-safe: one task writes."""

    __slots__ = ("_clock", "spans")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.spans: dict[str, float] = {}

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Adds the time spent inside to `name`."""
        started = self._clock.monotonic()
        try:
            yield
        finally:
            self.add(name, self._clock.monotonic() - started)

    def add(self, name: str, seconds: float) -> None:
        self.spans[name] = self.spans.get(name, 0.0) + seconds

    def server_timing(self) -> str:
        """The header's value: milliseconds with 0.1 ms resolution."""
        return ", ".join(f"{name};dur={1e3 * seconds:.1f}" for name, seconds in self.spans.items())
