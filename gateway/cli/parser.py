"""Which commands there are, and the parser of a command line.

A command is a line in `COMMANDS`, a module with `register(command)`, and a case in tests/cli/test_json.py.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from textwrap import fill
from typing import Any, TypeVar

from gateway.cli.output import USAGE
from gateway.config.errors import closest_match
from gateway.config.units import parse_address, parse_duration

T = TypeVar("T")
Run = Callable[[argparse.Namespace], int]
WIDTH = 78
FAULT_TEXT = "a fault was found, or the command could not do what it was asked"
EPILOG = """{examples}exit codes:
  0    good
  1    {fault}
  2    wrong usage
  130  interrupted

environment:
  NEARHIT_SECTION__KEY
      goes before section.key of config.yaml, such as NEARHIT_SERVER__ADMIN=127.0.0.1:9999
  the variable of auth.admin_token_env, or of --token-env
      the admin port's token
  NO_COLOR
      no colours"""

# Module and summary: the list of commands is printed without an import of their modules.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "serve": ("gateway.cli.serve", "Run the gateway until it is told to stop."),
    "demo": ("gateway.cli.demo", "Run the gateway before two real models and play a short sample of traffic."),
    "stub": ("gateway.cli.stub", "Run an endpoint without a model, to try the gateway before it."),
    "check": ("gateway.cli.check", "List every fault of the configuration and of all policies at once."),
    "explain": (
        "gateway.cli.explain",
        "Say what would become of a request, without sending it; or what is made of two prompts.",
    ),
    "simulate": (
        "gateway.cli.simulate",
        "Say what recorded traffic would have come to under another policy, beside the one in force.",
    ),
    "capacity": (
        "gateway.cli.capacity",
        "Say how many gateways, shards, nodes and GPUs some traffic takes, and what they cost a month.",
    ),
    "cache": ("gateway.cli.cache", "Stored answers: figures, removal, export, import, warming."),
    "jobs": ("gateway.cli.jobs", "Jobs: what waits, and what nobody could answer."),
    "keys": ("gateway.cli.keys", "API keys: make, list, change, rotate and revoke them."),
    "policy": ("gateway.cli.policy", "The policy in force: see it, try one, change it, take it back."),
    "audit": ("gateway.cli.audit", "List who did what on the admin port, the youngest first."),
    "doctor": (
        "gateway.cli.doctor.command",
        "Look at everything that the gateway needs, and say what is wrong and what to do. Changes nothing.",
    ),
    "top": (
        "gateway.cli.top",
        "Watch a gateway that runs: requests, hit rate, latency, backends, routes. Ctrl-C ends it.",
    ),
    "restart": (
        "gateway.cli.workers",
        "Go over to new worker processes, with the configuration as it is now, without losing a request.",
    ),
    "completion": (
        "gateway.cli.completion",
        "Print what lets a shell complete commands and options: source it from the shell's start-up file.",
    ),
    "schema": (
        "gateway.cli.json_schema",
        "Print the JSON Schema of policy files or of config.yaml, for editors.",
    ),
    "distill": (
        "gateway.cli.distill",
        "Make a light model from a large one's answers: a classifier, for Triton or the gateway itself.",
    ),
    "index": ("gateway.cli.index", "The index that finds questions in other words."),
    "model": ("gateway.cli.model", "The embedding model."),
}


class Command(argparse.ArgumentParser):
    """A command, or one that has commands of its own. What is mistyped is refused with what was probably meant."""

    def __init__(self, **given: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **given)
        self.epilog = EPILOG.format(examples="", fault=FAULT_TEXT)
        self.commands: Mapping[str, Command] = {}
        self._subparsers_action: Any = None

    def define(
        self, run: Run, *examples: str, about: str = "", fault: str = FAULT_TEXT, asks_gateway: bool = False
    ) -> None:
        """What it runs, the options of all commands, and its help. `examples`: what follows its name. `fault`: what
        exit code 1 says."""
        self.set_defaults(command=run)
        self.add_argument("--config", type=Path, default=Path("config.yaml"), help="default: %(default)s")
        self.add_argument("--json", action="store_true", help="print one JSON object instead of text")
        if asks_gateway:
            self.add_argument("--admin", metavar="URL", help="of the gateway's admin port; default: server.admin")
            self.add_argument(
                "--token-env", metavar="VARIABLE", help="where its token is; default: auth.admin_token_env"
            )
            text = "for a gateway that is still starting, such as 30s; default: 0s"
            self.add_argument("--wait", metavar="DURATION", type=duration, default=0.0, help=text)
        self.description = "\n\n".join([self.description or "", *(fill(part, WIDTH) for part in about.splitlines())])
        lines = "\n".join(f"  {self.prog} {example}".rstrip() for example in examples)
        self.epilog = EPILOG.format(examples=f"examples:\n{lines}\n\n", fault=fault)

    def add_command(self, name: str, text: str, run: Run | None = None, *examples: str, **given: Any) -> Command:
        """One of its own, defined where `run` is given. Without the name of one, help and exit code 2."""
        if self._subparsers_action is None:
            self._subparsers_action = self.add_subparsers(title="commands", metavar="COMMAND")
            self.commands = self._subparsers_action.choices
            self.set_defaults(command=self._print_usage)
        added: Command = self._subparsers_action.add_parser(name, help=text, description=text)
        if run is not None:
            added.define(run, *examples, **given)
        return added

    def walk(self, name: str = "") -> Iterator[tuple[str, Command]]:
        """This one and all below it, by what is written after `nearhit`."""
        yield name, self
        for word, inner in self.commands.items():
            yield from inner.walk(f"{name} {word}".strip())

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuses what it does not know itself: argparse has the outermost parser do that, which knows no options."""
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
            self._reject(f"there is no command {word!r}", word, self.commands)
        if word not in ("-h", "--help", "--version"):
            self.error(f"options go after the command, and {word} stands before it")

    def _reject(self, text: str, word: str, known: Iterable[str]) -> None:
        meant = closest_match(word, known)
        hint = f", did you mean {meant}?" if meant else ";"
        self.error(f"{text}{hint} `{self.prog} --help` lists what there is")

    def _print_usage(self, _: argparse.Namespace) -> int:
        self.print_help(sys.stderr)
        return USAGE


def build_parser(argv: Sequence[str] | None = None) -> Command:
    """Of every command; with a command line, of the one that it names, and of the others their names alone: what they
    need takes more than a second to import."""
    named = None if argv is None else next((word for word in argv if not word.startswith("-")), "")
    parser = Command(
        prog="nearhit", description="Semantic response cache and adaptive routing gateway for model endpoints."
    )
    parser.add_argument("--version", action="version", version=f"nearhit {version('nearhit')}")
    for name, (module, text) in COMMANDS.items():
        command = parser.add_command(name, text)
        if named in (None, name):
            import_module(module).register(command)
    return parser


def parser_type(parse: Callable[[str], T]) -> Callable[[str], T]:
    """For argparse, which leaves out what a `ValueError` says."""

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
    """`below`: `maximum` itself is none."""

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
    """A dataclass from the options with the names of its fields; `given` goes before them."""
    options = vars(arguments)
    names = [field.name for field in fields(kind) if field.name in options]  # type: ignore[arg-type]
    return kind(**({name: options[name] for name in names} | given))


def add_addresses(command: Command) -> None:
    """The options that `with_addresses` reads."""
    command.add_argument("--listen", metavar="HOST:PORT", type=address, help="instead of server.listen")
    command.add_argument("--admin", metavar="HOST:PORT", type=address, help="instead of server.admin")


def with_addresses(environ: Mapping[str, str], arguments: argparse.Namespace) -> dict[str, str]:
    """The environment with the addresses of the command line in it: they are checked like every other setting."""
    given = {"NEARHIT_SERVER__LISTEN": arguments.listen, "NEARHIT_SERVER__ADMIN": arguments.admin}
    return {**environ, **{name: str(value) for name, value in given.items() if value is not None}}
