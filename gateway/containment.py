"""Containment: an unexpected exception in a step costs the work of that step, not the request."""

from __future__ import annotations

import logging
from typing import Protocol

LOG = logging.getLogger("nearhit")

MAX_PLACES = 256  # places in the code that are logged; failures at further places are only counted


class FailureCounter(Protocol):
    def add(self, *labels: str, amount: float = 1.0) -> None:
        """Add to the failures of the step in `labels`."""


class StepFailures:
    """Counts the unexpected exceptions of each step, and logs each place in the code once."""

    def __init__(self, counter: FailureCounter) -> None:
        self._counter = counter
        self._logged: set[tuple[str, str, int]] = set()

    def expect(self, step: str) -> None:
        """Show the count of a step from the start: an alert sees only increases of a known counter."""
        self._counter.add(step, amount=0.0)

    def record(self, step: str, error: BaseException) -> None:
        """Count the failure of a step. Its first one at a place in the code is logged, with its traceback."""
        self._counter.add(step)
        place = (step, *_place_of(error))
        if place in self._logged or len(self._logged) >= MAX_PLACES:
            return
        self._logged.add(place)
        LOG.error("a step failed, and the request went on without it", exc_info=error, extra={"fields": {"step": step}})


def _place_of(error: BaseException) -> tuple[str, int]:
    """Return the file and the line that raised an error."""
    entry = error.__traceback__
    if entry is None:
        return "", 0
    while entry.tb_next is not None:
        entry = entry.tb_next
    return entry.tb_frame.f_code.co_filename, entry.tb_lineno


class Containment:
    """`Containment` records the failures of one step. A request can go on without an `optional` step."""

    __slots__ = ("_failures", "optional", "step")

    def __init__(self, step: str, failures: StepFailures, *, optional: bool) -> None:
        self.step = step
        self.optional = optional
        self._failures = failures
        failures.expect(step)

    def record(self, error: BaseException) -> None:
        self._failures.record(self.step, error)
