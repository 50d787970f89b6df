"""`nearhit help`: what `--help` says, by the command's name; and the manual page."""

from __future__ import annotations

import argparse
from importlib.metadata import version
from typing import Any

from gateway.cli import parser as parsers
from gateway.cli.client import WrongUsage, tell
from gateway.cli.man_page import man_page
from gateway.cli.manual import tree


def register(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Adds `help`. `commands`: argparse's subparsers."""
    text = "Say what a command does, with examples; or print the manual."
    command = commands.add_parser("help", parents=[shared], help=text, description=text)
    command.add_argument("names", metavar="COMMAND", nargs="*", help="such as: cache purge")
    command.add_argument("--man", action="store_true", help="the manual page of all commands, for man(1)")
    command.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.man:
        page = man_page(parsers.build_parser(), version("nearhit"))
        return tell(arguments, {"man": page}, page.rstrip("\n"))
    name = " ".join(arguments.names)
    found = dict(tree(parsers.build_parser(arguments.names or [""]))).get(name)
    if found is None:
        raise WrongUsage(f"there is no command {name!r}: `nearhit help` lists them")
    said = found.format_help()
    return tell(arguments, {"command": name, "help": said}, said.rstrip("\n"))
