"""Which commands there are, and the parser of a command line.

A command is a line in `COMMANDS`, a module with `register(commands, shared)`, a page for each of its own commands in
`pages.py`, and a case in tests/cli/test_json.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from gateway.cli.manual import dress
from gateway.cli.usage import Parser


@dataclass(frozen=True, slots=True)
class Listed:
    """`text` is what the module's own parser says of itself: the list of commands is printed without importing it."""

    module: str
    text: str


COMMANDS: Mapping[str, Listed] = {
    "serve": Listed("gateway.cli.serve", "Run the gateway until it is told to stop."),
    "demo": Listed("gateway.cli.demo", "Run the gateway before two real models and play a short sample of traffic."),
    "stub": Listed("gateway.cli.stub", "Run an endpoint without a model, to try the gateway before it."),
    "check": Listed("gateway.cli.check", "List every fault of the configuration and of all policies at once."),
    "explain": Listed(
        "gateway.cli.explain",
        "Say what would become of a request, without sending it; or what is made of two prompts.",
    ),
    "simulate": Listed(
        "gateway.cli.simulate",
        "Say what recorded traffic would have come to under another policy, beside the one in force.",
    ),
    "capacity": Listed(
        "gateway.cli.capacity",
        "Say how many gateways, shards, nodes and GPUs some traffic takes, and what they cost a month.",
    ),
    "cache": Listed("gateway.cli.cache", "Stored answers: figures, removal, export, import, warming."),
    "jobs": Listed("gateway.cli.jobs", "Jobs: what waits, and what nobody could answer."),
    "keys": Listed("gateway.cli.keys", "API keys: make, list, change, rotate and revoke them."),
    "policy": Listed("gateway.cli.policy", "The policy in force: see it, try one, change it, take it back."),
    "audit": Listed("gateway.cli.audit", "List who did what on the admin port, the youngest first."),
    "doctor": Listed(
        "gateway.cli.doctor.command",
        "Look at everything that the gateway needs, and say what is wrong and what to do. Changes nothing.",
    ),
    "top": Listed(
        "gateway.cli.top.command",
        "Watch a gateway that runs: requests, hit rate, latency, backends, routes. Ctrl-C ends it.",
    ),
    "restart": Listed(
        "gateway.cli.workers.restart",
        "Go over to new worker processes, with the configuration as it is now, without losing a request.",
    ),
    "completion": Listed(
        "gateway.cli.completion",
        "Print what lets a shell complete commands and options: source it from the shell's start-up file.",
    ),
    "schema": Listed(
        "gateway.cli.json_schema", "Print the JSON Schema of policy files or of config.yaml, for editors."
    ),
    "distill": Listed(
        "gateway.cli.distill",
        "Make a light model from a large one's answers: a classifier, for Triton or the gateway itself.",
    ),
    "index": Listed("gateway.cli.index", "The index that finds questions in other words."),
    "model": Listed("gateway.cli.model", "The embedding model."),
    "help": Listed("gateway.cli.helping", "Say what a command does, with examples; or print the manual."),
}


def build_parser(argv: Sequence[str] | None = None) -> Parser:
    """Of every command; with a command line, of the one that it names, and of the others their names alone: what they
    need takes more than a second to import."""
    named = None if argv is None else next((word for word in argv if not word.startswith("-")), "")
    parser = Parser(
        prog="nearhit", description="Semantic response cache and adaptive routing gateway for model endpoints."
    )
    parser.add_argument("--version", action="version", version=f"nearhit {version('nearhit')}")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--config", type=Path, default=Path("config.yaml"), help="default: %(default)s")
    shared.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, listed in COMMANDS.items():
        if named in (None, name):
            import_module(listed.module).register(commands, shared)
        else:
            commands.add_parser(name, help=listed.text)
    dress(parser)
    return parser
