"""How far long work is: on a terminal, elsewhere, and beside --json."""

from __future__ import annotations

import os
import pty
import re
from collections.abc import Iterator
from io import StringIO
from types import SimpleNamespace

import pytest

from gateway.cli import output, progress


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.ours

    ours = -1


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    shown = Terminal()
    ours, theirs = pty.openpty()
    shown.ours = theirs  # whose size is asked for
    for module in (progress, output):
        monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=shown))
    monkeypatch.setenv("TERM", "xterm")
    yield shown
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_terminal_has_a_bar(no_color: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    with progress.progress_bar("warming", 2, "prompts", quiet=False) as done:
        done(1)
        done(1)
    said = terminal.getvalue()
    assert "warming" in said and "2/2" in said and "prompts" in said
    assert ("\x1b[3" in said) == (not no_color)


def test_a_bar_of_bytes_says_how_many(terminal: Terminal) -> None:
    with progress.progress_bar("importing", 4096, "B", quiet=False) as done:
        done(4096)
    assert "4.0/4.0 KiB" in terminal.getvalue()


def test_a_terminal_has_what_is_done_next_with_its_time(terminal: Terminal) -> None:
    with progress.step_reporter(quiet=False) as step:
        step("downloading")
        step("exporting")
    said = re.sub(r"\x1b\[[?\d;]*\w", "", terminal.getvalue())
    assert re.search(r"\rdownloading 0:00:\d\d\n.*\rexporting 0:00:\d\d\n$", said)


def test_a_bar_may_be_drawn_below_a_step(terminal: Terminal) -> None:
    console = progress.bar_console()
    with progress.step_reporter(quiet=False, console=console) as step:
        step("comparing")
        with progress.progress_bar("asking", 2, "questions", quiet=False, console=console) as done:
            done(2)
    assert "2/2" in terminal.getvalue() and "comparing" in terminal.getvalue()


@pytest.mark.parametrize("why", ["json", "dumb", "file"])
def test_nothing_is_drawn_where_that_is_not_wanted(
    why: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "dumb":
        monkeypatch.setenv("TERM", "dumb")
    if why == "file":
        monkeypatch.setattr(terminal, "isatty", lambda: False)
    quiet = why == "json"
    with progress.progress_bar("x", 2, "y", quiet=quiet) as done, progress.spinner("z", quiet=quiet):
        done(2)
    assert terminal.getvalue() == ""
    with progress.step_reporter(quiet=quiet) as step:
        step("downloading")
    assert terminal.getvalue() == ("" if quiet else "downloading\n")


def test_elsewhere_there_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 1.0, 5.0, 5.0, 6.0])
    advance = progress._line_reporter("warming", 9, "prompts", lambda: next(times))
    advance(1)
    advance(2)
    advance(1)
    assert capsys.readouterr().err == "warming: 3/9 prompts\n"
