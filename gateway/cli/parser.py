"""The parser of the command line, and the types of its options."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from textwrap import fill
from typing import Any, TypeVar

from gateway.cli.output import USAGE
from gateway.config.errors import closest_match
from gateway.config.units import parse_address, parse_duration

T = TypeVar("T")
Run = Callable[[argparse.Namespace], int]
WIDTH = 78
FAULT_TEXT = "a fault was found, or the command failed"
EPILOG = """{examples}exit codes:
  0    success
  1    {fault}
  2    wrong usage
  130  interrupted

environment:
  NEARHIT_SECTION__KEY
      overrides section.key of config.yaml, such as NEARHIT_SERVER__ADMIN=127.0.0.1:9999
  the variable that auth.admin_token_env or --token-env names
      the token of the admin port
  NO_COLOR
      no colours"""


class Command(argparse.ArgumentParser):
    """A command or a group of commands. It rejects an unknown word and suggests the closest known one."""

    def __init__(self, **given: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **given)
        self.epilog = EPILOG.format(examples="", fault=FAULT_TEXT)
        self.commands: Mapping[str, Command] = {}
        self._subparsers_action: Any = None

    def define(
        self, run: Run, *examples: str, about: str = "", fault: str = FAULT_TEXT, asks_gateway: bool = False
    ) -> None:
        """Set the function that the command runs, the options that all commands have, and the help.

        Each example is the rest of a command line after the name. `fault` says what exit code 1 means.
        """
        self.set_defaults(command=run)
        self.add_argument(
            "--config", type=Path, default=Path("config.yaml"), help="configuration file; default: %(default)s"
        )
        self.add_argument("--json", action="store_true", help="print one JSON object instead of text")
        if asks_gateway:
            self.add_argument("--admin", metavar="URL", help="URL of the admin port; default: server.admin")
            self.add_argument(
                "--token-env", metavar="VARIABLE", help="variable with its token; default: auth.admin_token_env"
            )
            text = "how long to wait for a gateway that is still starting, such as 30s; default: 0s"
            self.add_argument("--wait", metavar="DURATION", type=duration, default=0.0, help=text)
        self.description = "\n\n".join([self.description or "", *(fill(part, WIDTH) for part in about.splitlines())])
        lines = "\n".join(f"  {self.prog} {example}".rstrip() for example in examples)
        self.epilog = EPILOG.format(examples=f"examples:\n{lines}\n\n", fault=fault)

    def add_command(self, name: str, text: str, run: Run | None = None, *examples: str, **given: Any) -> Command:
        """Add a subcommand, and define it if `run` is given.

        Without the name of a subcommand the command prints its help and exits with code 2.
        """
        if self._subparsers_action is None:
            self._subparsers_action = self.add_subparsers(title="commands", metavar="COMMAND")
            self.commands = self._subparsers_action.choices
            self.set_defaults(command=self._print_usage)
        added: Command = self._subparsers_action.add_parser(name, help=text, description=text)
        if run is not None:
            added.define(run, *examples, **given)
        return added

    def walk(self, name: str = "") -> Iterator[tuple[str, Command]]:
        """Yield this command and all below it, each with the words that follow `nearhit`."""
        yield name, self
        for word, inner in self.commands.items():
            yield from inner.walk(f"{name} {word}".strip())

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Reject unknown words here: argparse leaves that to the outermost parser, which knows no options."""
        given: list[str] = list(sys.argv[1:] if args is None else args)
        if self.commands and given and given[0] not in self.commands:
            self._reject_unknown_command(given[0])
        known, rest = super().parse_known_args(given, namespace)
        if rest:
            option = rest[0].partition("=")[0]
            options = [option for action in self._actions for option in action.option_strings if len(option) > 2]
            if option.startswith("-"):
                self._reject(f"unknown option {option}", option, options)
            self._reject(f"unexpected argument {rest[0]!r}", "", ())
        return known, rest

    def _reject_unknown_command(self, word: str) -> None:
        if not word.startswith("-"):
            self._reject(f"unknown command {word!r}", word, self.commands)
        if word not in ("-h", "--help", "--version"):
            self.error(f"options follow the command: move {word} after it")

    def _reject(self, text: str, word: str, known: Iterable[str]) -> None:
        meant = closest_match(word, known)
        hint = f" (did you mean {meant}?);" if meant else ";"
        self.error(f"{text}{hint} see `{self.prog} --help`")

    def _print_usage(self, _: argparse.Namespace) -> int:
        self.print_help(sys.stderr)
        return USAGE


def parser_type(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Make `parse` a type for argparse, which omits the message of a `ValueError`."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


address = parser_type(parse_address)  # HOST:PORT
duration = parser_type(parse_duration)  # seconds


def integer_between(minimum: int, maximum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 10 and minimum <= int(text) <= maximum):
            raise ValueError(f"expected a whole number from {minimum} to {maximum}, got {text!r}")
        return int(text)

    return parser_type(parse)


def number_between(minimum: float, maximum: float, *, below: bool = False) -> Callable[[str], float]:
    """Return a parser of numbers in [minimum, maximum]; with `below`, `maximum` itself is excluded."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not minimum <= value <= maximum or (below and value == maximum):
            raise ValueError(f"expected a number from {minimum:g} to {'below ' * below}{maximum:g}, got {text!r}")
        return value

    return parser_type(parse)


def build(kind: type[T], arguments: argparse.Namespace, **given: Any) -> T:
    """Build a dataclass from the options with the names of its fields; `given` overrides them."""
    options = vars(arguments)
    names = [field.name for field in fields(kind) if field.name in options]  # type: ignore[arg-type]
    return kind(**({name: options[name] for name in names} | given))


def add_addresses(command: Command) -> None:
    """Add the options that `with_addresses` reads."""
    command.add_argument("--listen", metavar="HOST:PORT", type=address, help="data port; overrides server.listen")
    command.add_argument("--admin", metavar="HOST:PORT", type=address, help="admin port; overrides server.admin")


def with_addresses(environ: Mapping[str, str], arguments: argparse.Namespace) -> dict[str, str]:
    """Return the environment with the addresses of the command line, so that they are checked like every setting."""
    given = {"NEARHIT_SERVER__LISTEN": arguments.listen, "NEARHIT_SERVER__ADMIN": arguments.admin}
    return {**environ, **{name: str(value) for name, value in given.items() if value is not None}}
