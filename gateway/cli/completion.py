"""`nearhit completion`: a script that lets a shell complete commands, options and paths."""

from __future__ import annotations

import argparse
from typing import Any

import shtab

from gateway.cli import parser as parsers
from gateway.cli.client import tell
from gateway.cli.manual import tree

SHELLS = ("bash", "zsh", "fish")
PATHS = ("config", "file", "out", "request", "paths", "model_dir", "build_env", "triton_env")  # options that name one


def register(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Adds `completion`. `commands`: argparse's subparsers."""
    text = "Print what lets a shell complete commands and options: source it from the shell's start-up file."
    command = commands.add_parser("completion", parents=[shared], help=text, description=text)
    command.add_argument("shell", choices=SHELLS)
    command.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    made = script(parsers.build_parser(), arguments.shell)
    return tell(arguments, {"shell": arguments.shell, "script": made}, made)


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Of one of `SHELLS`. Marks the parser's arguments that name a file, so that the shell offers files for them."""
    for _, command in tree(parser):
        for action in command._actions:
            if action.dest in PATHS:
                action.complete = shtab.FILE  # type: ignore[attr-defined]  # where shtab looks for it
    made: str = shtab.complete(parser, shell=shell)
    return made
