"""The command itself."""

from __future__ import annotations

import argparse
import asyncio
import os
from typing import Any

from gateway.cli.client import FAULT, GOOD, add_addresses, addressed, tell
from gateway.cli.doctor.examine import examine


def register(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Adds `doctor`. `commands`: argparse's subparsers."""
    text = "Look at everything that the gateway needs, and say what is wrong and what to do. Changes nothing."
    command = commands.add_parser("doctor", parents=[shared], help=text, description=text)
    command.add_argument("--upstream", metavar="URL", help="no config file: as `nearhit serve --upstream URL` runs")
    add_addresses(command)
    command.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    environ = addressed(os.environ, arguments.listen, arguments.admin)
    report = asyncio.run(examine(arguments.config, environ, arguments.upstream))
    tell(arguments, report.as_json(), report.as_text())
    return GOOD if report.good else FAULT
