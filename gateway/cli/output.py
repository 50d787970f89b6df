"""How a command says what came of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

GOOD, FAULT, USAGE, INTERRUPTED = 0, 1, 2, 130  # exit codes


def tell(arguments: argparse.Namespace, value: Mapping[str, Any], text: str) -> int:
    """Prints the one with --json, and else the other. -> the exit code of what is good."""
    return say(orjson.dumps(value).decode() if arguments.json else text)


def say(text: str) -> int:
    sys.stdout.write(text + "\n")
    return GOOD


def warn(text: str) -> None:
    """A line on standard error, at once."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def printable(text: str) -> str:
    """On one line, and without what a terminal would obey."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def several(count: int, one: str, more: str = "") -> str:
    """`1 file`, `2 files`."""
    return f"{count} {one if count == 1 else more or one + 's'}"


def time_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
