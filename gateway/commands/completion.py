"""`nearhit completion`: a script that lets a shell complete commands, options and paths."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import shtab

from gateway.commands.asking import tell

SHELLS = ("bash", "zsh", "fish")
PATHS = ("config", "file", "out", "request", "paths", "model_dir", "build_env", "triton_env")  # options that name one


def register(commands: Any, shared: argparse.ArgumentParser, build: Callable[[], argparse.ArgumentParser]) -> None:
    """Adds `completion`. `build` makes the parser that the script is about, this command in it."""
    text = "Print what lets a shell complete commands and options: source it from the shell's start-up file."
    command = commands.add_parser("completion", parents=[shared], help=text, description=text)
    command.add_argument("shell", choices=SHELLS)

    def run(arguments: argparse.Namespace) -> int:
        made = script(build(), arguments.shell)
        return tell(arguments, {"shell": arguments.shell, "script": made}, made)

    command.set_defaults(command=run)


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Of one of `SHELLS`. Marks the parser's arguments that name a file, so that the shell offers files for them."""
    _mark(parser)
    made: str = shtab.complete(parser, shell=shell)
    return made


def _mark(parser: argparse.ArgumentParser) -> None:
    # argparse has no public way to walk its own tree; shtab walks it by the same attribute.
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                _mark(inner)
        elif action.dest in PATHS:
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # where shtab looks for it
