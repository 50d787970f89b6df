"""`nearhit demo` runs the gateway in front of a real Triton with two models."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import uvloop

from gateway.cli.output import GOOD, print_result
from gateway.cli.parser import Command
from gateway.cli.progress import step_reporter
from gateway.features.demo.traffic import demo
from gateway.features.demo.triton_environment import default_environment, ensure_triton
from gateway.private_files import UMASK


def register(command: Command) -> None:
    command.define(
        run,
        "",
        "--prepare --triton-env .venv-triton",
        about="The command installs a real Triton server if there is none, and builds two small models from this "
        "documentation. It starts Triton and the gateway, sends a few questions, and runs until Ctrl-C.",
    )
    command.add_argument("--triton-env", type=Path, default=None, help="folder of the Triton installation")
    command.add_argument("--prepare", action="store_true", help="install missing parts, and stop")


def run(arguments: argparse.Namespace) -> int:
    env = arguments.triton_env or default_environment()
    if arguments.prepare:
        with step_reporter(quiet=arguments.json) as step:
            ensure_triton(env, step)
        return print_result(arguments, {"triton": str(env)}, f"Triton is in {env}")
    os.umask(UMASK)  # the demo makes the data folder
    uvloop.run(demo(arguments.config, env, os.environ, as_json=arguments.json))
    return GOOD
