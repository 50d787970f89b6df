"""Shows the progress of a training: a bar on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

LINES_EVERY_S = 5.0


class ProgressDisplay:
    def __init__(self, what: str, total: int, unit: str, write: Callable[[str], object] | None, bar: Any) -> None:
        self._what, self._total, self._unit, self._write, self._bar = what, total, unit, write, bar
        self._done, self._at = 0, time.monotonic()

    def epoch(self, done: int, loss: float) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.3f}")
        self.more(done - self._done, f", loss {loss:.3f}")

    def more(self, count: int, suffix: str = "") -> None:
        self._done += count
        if self._bar is not None:
            self._bar.n = self._done
            self._bar.refresh()
        elif self._write is not None and (time.monotonic() - self._at >= LINES_EVERY_S or self._done == self._total):
            self._at = time.monotonic()
            self._write(f"{self._what}: {self._done}/{self._total} {self._unit}{suffix}\n")


@contextmanager
def show_progress(what: str, total: int, unit: str, *, quiet: bool) -> Iterator[ProgressDisplay]:
    if quiet:
        yield ProgressDisplay(what, total, unit, None, None)
    elif sys.stderr.isatty():
        with tqdm(desc=what, total=total, unit=f" {unit}", file=sys.stderr, dynamic_ncols=True) as bar:
            yield ProgressDisplay(what, total, unit, None, bar)
    else:
        yield ProgressDisplay(what, total, unit, sys.stderr.write, None)
