"""How far long work is: a bar on a terminal, plain lines elsewhere, nothing beside --json. On standard error."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

from tqdm import tqdm

LINES_EVERY_S = 5.0
TICK_S = 1.0
Advance = Callable[[int], None]
Step = Callable[[str], None]


def drawable(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether a line there can be written over."""
    return stream.isatty() and environ.get("TERM") != "dumb"


def _on_terminal() -> dict[str, Any]:
    """Where a bar is drawn, and how wide: a terminal may not know its own size, and tqdm then shows nothing."""
    size = shutil.get_terminal_size()
    return {"file": sys.stderr, "ncols": size.columns, "nrows": size.lines}


@contextmanager
def counted(what: str, total: int | None, unit: str, *, quiet: bool) -> Iterator[Advance]:
    """-> what is told how many more are done. `total` None: nobody knows. `unit`: "B" for bytes, else a word."""
    if quiet:
        yield lambda _: None
    elif drawable(sys.stderr, os.environ):
        of_bytes = unit == "B"
        with tqdm(
            desc=what,
            total=total,
            unit=unit if of_bytes else f" {unit}",
            unit_scale=of_bytes,
            unit_divisor=1024,
            **_on_terminal(),
        ) as bar:
            yield lambda more: bar.update(more) and None
    else:
        yield _lines(what, total, unit)


def _lines(what: str, total: int | None, unit: str, now: Callable[[], float] = time.monotonic) -> Advance:
    """A line every `LINES_EVERY_S`; work that is shorter has none."""
    done, at = 0, now()

    def advance(more: int) -> None:
        nonlocal done, at
        done += more
        if now() - at >= LINES_EVERY_S:
            at = now()
            _line(f"{what}: {done}{'' if total is None else f'/{total}'} {unit}")

    return advance


@contextmanager
def steps(*, quiet: bool) -> Iterator[Step]:
    """-> what is told what is done next. On a terminal the step under way shows for how long it has been."""
    if quiet:
        yield lambda _: None
    elif drawable(sys.stderr, os.environ):
        with _Ticking() as ticking:
            yield ticking.show
    else:
        yield _line


def _line(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


@contextmanager
def waiting(what: str, *, quiet: bool) -> Iterator[None]:
    """While something goes on of which nobody says how far it is: on a terminal, for how long it has been."""
    if quiet or not drawable(sys.stderr, os.environ):
        yield
        return
    with _Ticking(kept=False) as ticking:
        ticking.show(what)
        yield


class _Ticking:
    """A line that counts seconds, once there is one to count. `kept`: it stays when it is over."""

    def __init__(self, *, kept: bool = True) -> None:
        self._kept = kept
        self._bar: tqdm[object] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> _Ticking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._end()

    def show(self, text: str) -> None:
        self._end()
        self._bar = tqdm(desc=text, bar_format="{desc}  {elapsed}", leave=self._kept, **_on_terminal())

    def _end(self) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.close()

    def _tick(self) -> None:
        while not self._over.wait(TICK_S):
            if (bar := self._bar) is not None:
                bar.refresh()
