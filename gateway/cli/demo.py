"""The command itself."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import uvloop

from gateway.cli.client import GOOD, tell
from gateway.cli.demo_traffic import demo
from gateway.cli.progress import steps
from gateway.tools.demo.triton_environment import default_environment, ensure_triton


def register(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Adds `demo`. `commands`: argparse's subparsers."""
    text = "Run the gateway before two real models and play a short sample of traffic."
    command = commands.add_parser("demo", parents=[shared], help=text, description=text)
    command.add_argument("--triton-env", type=Path, default=None, help="where Triton is or will be installed")
    command.add_argument("--prepare", action="store_true", help="install what is missing and stop")
    command.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    env = arguments.triton_env or default_environment()
    if arguments.prepare:
        with steps(quiet=arguments.json) as step:
            ensure_triton(env, step)
        return tell(arguments, {"triton": str(env)}, f"Triton is in {env}")
    uvloop.run(demo(arguments.config, env, os.environ, as_json=arguments.json))
    return GOOD
