"""`nearhit completion` prints a script that lets a shell complete commands, options and paths."""

from __future__ import annotations

import argparse

import shtab

from gateway.cli.commands import build_parser
from gateway.cli.output import print_result
from gateway.cli.parser import Command

SHELLS = ("bash", "zsh", "fish")
PATHS = (
    "config",
    "file",
    "out",
    "request",
    "paths",
    "model_dir",
    "build_env",
    "triton_env",
)  # arguments that are paths


def register(command: Command) -> None:
    command.define(
        run,
        "bash > /etc/bash_completion.d/nearhit",
        "zsh > /usr/local/share/zsh/site-functions/_nearhit",
        "fish > ~/.config/fish/completions/nearhit.fish",
        about="The shell reads the script once, when it starts.",
    )
    command.add_argument("shell", choices=SHELLS)


def run(arguments: argparse.Namespace) -> int:
    parser = build_parser()
    for _, command in parser.walk():
        for action in command._actions:
            if action.dest in PATHS:
                action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab reads this attribute
    script: str = shtab.complete(parser, shell=arguments.shell)
    return print_result(arguments, {"shell": arguments.shell, "script": script}, script)
