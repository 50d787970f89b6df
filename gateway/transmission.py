"""Whether the request of a job has gone to a backend. Calls to backends record it, and jobs decide by it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Transmission:
    """The calls of one attempt. A job that may go only once is not tried again."""

    sent: bool = False  # a byte of it may have reached a backend, now or in an earlier attempt
    once: bool = False  # it may not be sent a second time

    @property
    def final(self) -> bool:
        """Whether no further attempt may be made."""
        return self.sent and self.once
