"""The command itself."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import uvloop

from gateway.cli.demo_traffic import demo
from gateway.cli.output import GOOD, print_result
from gateway.cli.parser import Command
from gateway.cli.progress import step_reporter
from gateway.tools.demo.triton_environment import default_environment, ensure_triton


def register(command: Command) -> None:
    command.define(
        run,
        "",
        "--prepare --triton-env .venv-triton",
        about="Installs a real Triton server where there is none, makes two small models over this documentation, "
        "starts both and the gateway, asks a few questions, and stays until Ctrl-C.",
    )
    command.add_argument("--triton-env", type=Path, default=None, help="where Triton is or will be installed")
    command.add_argument("--prepare", action="store_true", help="install what is missing and stop")


def run(arguments: argparse.Namespace) -> int:
    env = arguments.triton_env or default_environment()
    if arguments.prepare:
        with step_reporter(quiet=arguments.json) as step:
            ensure_triton(env, step)
        return print_result(arguments, {"triton": str(env)}, f"Triton is in {env}")
    uvloop.run(demo(arguments.config, env, os.environ, as_json=arguments.json))
    return GOOD
