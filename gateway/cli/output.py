"""How a command says what came of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

GOOD, FAULT, USAGE, INTERRUPTED = 0, 1, 2, 130  # exit codes


def print_result(arguments: argparse.Namespace, value: Mapping[str, Any], text: str) -> int:
    """Prints the one with --json, and else the other. -> the exit code of what is good."""
    return print_line(orjson.dumps(value).decode() if arguments.json else text)


def print_line(text: str) -> int:
    sys.stdout.write(text + "\n")
    return GOOD


def print_warning(text: str) -> None:
    """A line on standard error, at once."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def printable(text: str) -> str:
    """On one line, and without what a terminal would obey."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def pluralise(count: int, singular: str, plural: str = "") -> str:
    """`1 file`, `2 files`."""
    return f"{count} {singular if count == 1 else plural or singular + 's'}"


def time_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
