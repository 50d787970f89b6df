"""Output of the commands: results, warnings and exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from gateway.errors import GatewayError

GOOD, FAULT, USAGE, INTERRUPTED = 0, 1, 2, 130  # exit codes


class CommandFailed(GatewayError):
    """The command failed; the message is one sentence for the operator."""


class WrongUsage(CommandFailed):
    """The arguments contradict each other, which the parser cannot see: exit code 2."""


def print_result(arguments: argparse.Namespace, value: Mapping[str, Any], text: str) -> int:
    """Print `value` with --json, or else `text`. Return the exit code of success."""
    return print_line(orjson.dumps(value).decode() if arguments.json else text)


def print_line(text: str) -> int:
    sys.stdout.write(text + "\n")
    return GOOD


def print_warning(text: str) -> None:
    """Write a line to standard error, unbuffered."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def printable(text: str) -> str:
    """Replace line breaks and control characters by spaces, so that text of a client is safe on a terminal."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def pluralise(count: int, singular: str, plural: str = "") -> str:
    """Return the count with its noun, such as `1 file` or `2 files`."""
    return f"{count} {singular if count == 1 else plural or singular + 's'}"


def time_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
