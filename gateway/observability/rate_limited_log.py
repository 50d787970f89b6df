"""Warnings of what fails with every request while it fails: a line a second says as much as five thousand."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

EVERY_S = 1.0


class Seldom:
    """The first one is said at once; then at most one in `EVERY_S`, with how many `more` there were since the last."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._next = float("-inf")
        self._unsaid = 0

    def warn(self, log: logging.Logger, message: str, fields: Mapping[str, object]) -> None:
        now = self._now()
        if now < self._next:
            self._unsaid += 1
            return
        more = {"more": self._unsaid} if self._unsaid else {}
        self._next, self._unsaid = now + EVERY_S, 0
        log.warning(message, extra={"fields": {**fields, **more}})
