"""The command itself."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from typing import Any

import orjson

from gateway.commands.doctor.examine import examine

GOOD, FAULT = 0, 1


def register(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Adds `doctor`. `commands`: argparse's subparsers."""
    text = "Look at everything that the gateway needs, and say what is wrong and what to do. Changes nothing."
    command = commands.add_parser("doctor", parents=[shared], help=text, description=text)
    command.add_argument("--upstream", metavar="URL", help="no config file: as `nearhit serve --upstream URL` runs")
    command.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    report = asyncio.run(examine(arguments.config, os.environ, arguments.upstream))
    sys.stdout.write((orjson.dumps(report.as_json()).decode() if arguments.json else report.as_text()) + "\n")
    return GOOD if report.good else FAULT
