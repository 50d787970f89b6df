"""The notebook of one request: what it has cost so far, stage by stage, and what is known of it.

The one object of a request that changes: the stages within write down what the outer ones report, also when the
request ends in an error and no response of theirs comes back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.messages import Entry
from gateway.ports import Clock, Dialect


class Trace:
    """Spans are seconds, in the order in which the stages ended."""

    __slots__ = ("_clock", "complexity", "dialect", "expose_headers", "note", "route", "served", "spans", "tenant")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.spans: dict[str, float] = {}
        self.dialect: Dialect | None = None
        self.route = ""
        self.tenant = ""
        self.expose_headers = True
        self.served: tuple[Entry, float] | None = None  # of an exact hit: the entry and the time to live it is held to
        self.complexity: float | None = None  # in [0, 1]
        self.note: str | None = None  # why no semantic lookup was made, or why the nearest neighbour was refused

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
