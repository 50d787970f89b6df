"""Asks a gateway again and again, and draws what it says."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from textwrap import wrap
from typing import Any, TextIO

import orjson

from gateway.cli.admin_client import AdminClient, CommandFailed, connected
from gateway.cli.client import GOOD, add_place, place_given
from gateway.cli.top.figures import Figures, Report, figures
from gateway.cli.top.view import Line, drawn, lines

STRETCH_S = 10.0  # that rates and latencies are about: shorter ones jump, longer ones hide what has just begun
MOST_REPORTS = 128
ANSWER_S = 10.0
WIDTH = 78
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # the alternate screen, without a cursor
HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


def register(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Adds `top`. `commands`: argparse's subparsers."""
    text = "Watch a gateway that runs: requests, hit rate, latency, backends, routes. Ctrl-C ends it."
    command = commands.add_parser("top", parents=[shared], help=text, description=text)
    add_place(command)
    command.add_argument("--once", action="store_true", help="print once, from the gateway's start on, and end")
    command.add_argument("--refresh", type=refresh, default=1.0, metavar="SECONDS", help="from 0.1 to 60; default: 1")
    command.set_defaults(command=run)


def refresh(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 60:
        raise argparse.ArgumentTypeError(f"expected seconds from 0.1 to 60, got {text!r}")
    return seconds


def run(arguments: argparse.Namespace) -> int:
    try:
        asyncio.run(_watch(arguments) if not arguments.once else _once(arguments))
    except BrokenPipeError:  # whoever read has seen enough; what is still to be flushed goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return GOOD


class Window:
    """The reports of the last `STRETCH_S`, of which the oldest is what the newest is compared with."""

    def __init__(self) -> None:
        self._reports: deque[Report] = deque(maxlen=MOST_REPORTS)

    def add(self, report: Report) -> Figures:
        self._reports.append(report)
        while len(self._reports) > 2 and report["now"] - self._reports[1]["now"] >= STRETCH_S:
            self._reports.popleft()
        return figures(report, self._reports[0] if len(self._reports) > 1 else None)


async def _once(arguments: argparse.Namespace) -> None:
    async with connected(place_given(arguments)) as admin:
        found = figures(await _report(admin), None)
    if arguments.json:
        sys.stdout.write(orjson.dumps(found.as_json()).decode() + "\n")
    else:
        width = shutil.get_terminal_size().columns
        sys.stdout.write(drawn(list(lines(found)), width, None, colour=_colour(sys.stdout, os.environ)) + "\n")
    sys.stdout.flush()


async def _watch(arguments: argparse.Namespace) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    window, place = Window(), place_given(arguments)
    async with connected(place) as admin:
        # A gateway that is not there is an error at first, and later an interruption.
        report: Report | None = await _report(admin)
        with _screen(sys.stdout, on=not arguments.json) as draw:
            while not stop.is_set():
                if report is not None:
                    found = window.add(report)
                    draw(list(lines(found)), found)
                try:
                    async with asyncio.timeout(arguments.refresh):
                        await stop.wait()
                    return
                except TimeoutError:
                    pass
                try:
                    report = await _report(admin)
                except CommandFailed as error:
                    report = None
                    width = min(WIDTH, _size(sys.stdout).columns)
                    draw([Line(part) for part in wrap(f"asking again: {error}", width)], None)


async def _report(admin: AdminClient) -> Report:
    """Raises `CommandFailed`."""
    try:
        async with asyncio.timeout(ANSWER_S):
            return await admin.get("/admin/stats")
    except TimeoutError:
        raise CommandFailed(f"the gateway has not answered within {ANSWER_S:g} s") from None


@contextmanager
def _screen(stream: TextIO, *, on: bool) -> Iterator[Any]:
    """-> a function that draws. On a terminal a screen of its own, left whatever happens; elsewhere one text after the
    other, or an object a line where `on` is false."""
    terminal, colour = on and stream.isatty(), _colour(stream, os.environ)

    def draw(shown: list[Line], found: Figures | None) -> None:
        size = _size(stream)
        if terminal:
            text = drawn(shown, size.columns, max(2, size.lines - 1), colour=colour)
            stream.write(HOME + text.replace("\n", REST_OF_LINE + "\n") + REST_OF_LINE + "\n" + REST_OF_SCREEN)
        elif on:
            stream.write(drawn(shown, size.columns, None, colour=colour) + "\n\n")
        elif found is not None:
            stream.write(orjson.dumps(found.as_json()).decode() + "\n")
        stream.flush()

    stream.write(ENTER if terminal else "")
    try:
        yield draw
    finally:
        stream.write(LEAVE if terminal else "")
        stream.flush()


def _size(stream: TextIO) -> os.terminal_size:
    """As it is now: COLUMNS and LINES, where they are exported, stay what they were when the terminal was opened."""
    if stream.isatty() and 0 not in (size := os.get_terminal_size(stream.fileno())):
        return size
    return shutil.get_terminal_size()


def _colour(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """https://no-color.org: a variable that is there and not empty."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
