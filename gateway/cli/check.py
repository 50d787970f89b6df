"""`nearhit check`: every fault of the configuration and of all policies at once."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path
from typing import Any

from gateway.admin.policy_tests import disappointments
from gateway.cli.client import FAULT, GOOD, place_given, several, tell
from gateway.cli.policy import warnings_of
from gateway.config.policy.check import CheckResult, check


def register(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Adds `check`. `commands`: argparse's subparsers."""
    text = "List every fault of the configuration and of all policies at once."
    command = commands.add_parser("check", parents=[shared], help=text, description=text)
    command.add_argument("paths", metavar="PATH", nargs="*", type=Path, help="files or folders; default: all in use")
    command.add_argument("--admin", metavar="URL", help="ask the gateway with this admin port, too: what only it knows")
    command.add_argument("--token-env", metavar="VARIABLE", help="where the admin port's token is")
    command.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    result = check(arguments.paths, arguments.config, os.environ, disappointments)
    if arguments.admin is not None:
        result = result.warned(asyncio.run(warnings_of(place_given(arguments))))
    tell(arguments, result.as_json(), _text(result))
    return FAULT if result.faults else GOOD


def _text(result: CheckResult) -> str:
    lines = [*map(str, result.faults), *(f"warning: {warning}" for warning in result.warnings)]
    return "\n".join(lines if result.faults else [*lines, f"{several(len(result.files), 'file')}, no faults"])
