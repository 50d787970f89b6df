"""Progress of long work on standard error: a bar on a terminal, plain lines elsewhere, nothing with --json."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from gateway.cli.output import print_warning

LINE_INTERVAL_S = 5.0
REFRESHES_PER_S = 4.0
TEXT = TextColumn("{task.description}", markup=False)
Advance = Callable[[int], None]
Step = Callable[[str], None]


def bar_console() -> Console:
    """Return a console on standard error. Bars that are drawn at the same time must share one."""
    return Console(file=sys.stderr)


def _progress(console: Console, *columns: ProgressColumn, transient: bool = False) -> Progress:
    """Return a progress display; with `transient` it disappears at the end. Results go to standard output."""
    return Progress(
        *(TEXT, *columns),
        console=console,
        transient=transient,
        redirect_stdout=False,
        refresh_per_second=REFRESHES_PER_S,
    )


@contextmanager
def progress_bar(
    what: str, total: int | None, unit: str, *, quiet: bool, console: Console | None = None
) -> Iterator[Advance]:
    """Yield a function that takes the number of units done since its last call.

    `total` is None if it is unknown. `unit` is "B" for bytes, or else a word.
    """
    console = console or bar_console()
    if quiet:
        yield lambda _: None
    elif console.is_interactive:
        done = (DownloadColumn(binary_units=True),) if unit == "B" else (MofNCompleteColumn(), TextColumn(unit))
        with _progress(console, BarColumn(), *done, TimeRemainingColumn()) as progress:
            task = progress.add_task(what, total=total)
            yield lambda more: progress.advance(task, more)
    else:
        yield _line_reporter(what, total, unit)


def _line_reporter(what: str, total: int | None, unit: str, now: Callable[[], float] = time.monotonic) -> Advance:
    """Print a line every `LINE_INTERVAL_S`, and nothing for shorter work."""
    done, at = 0, now()

    def advance(more: int) -> None:
        nonlocal done, at
        done += more
        if now() - at >= LINE_INTERVAL_S:
            at = now()
            print_warning(f"{what}: {done}{'' if total is None else f'/{total}'} {unit}")

    return advance


@contextmanager
def step_reporter(*, quiet: bool, console: Console | None = None) -> Iterator[Step]:
    """Yield a function that takes the text of the next step. A terminal shows the elapsed time of the current one."""
    console = console or bar_console()
    if quiet:
        yield lambda _: None
    elif console.is_interactive:
        with _progress(console, TimeElapsedColumn()) as progress:

            def begin(text: str) -> None:
                # Only the last line is redrawn, so that output of child processes stays visible.
                if before := progress.tasks:
                    progress.remove_task(before[0].id)
                    console.print(progress.make_tasks_table(before))
                progress.add_task(text, total=None)

            yield begin
    else:
        yield print_warning


@contextmanager
def spinner(what: str, *, quiet: bool) -> Iterator[None]:
    """Show the elapsed time on a terminal while work without known progress runs."""
    console = bar_console()
    if quiet or not console.is_interactive:
        yield
        return
    with _progress(console, TimeElapsedColumn(), transient=True) as progress:
        progress.add_task(what, total=None)
        yield
