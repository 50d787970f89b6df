"""The list of commands. Other packages add theirs by an entry point of the group `nearhit.commands`.

A command needs a line in `OWN`, a module with `register(command)`, and a case in tests/cli/test_json.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Protocol

from gateway.cli.parser import Command
from gateway.errors import StartupError
from gateway.extensions import Extensions

# Module and summary. The summary is here so that `nearhit --help` need not import the modules.
OWN: Mapping[str, tuple[str, str]] = {
    "serve": ("gateway.cli.serve", "Run the gateway until it is stopped."),
    "demo": (
        "gateway.features.demo.command",
        "Run the gateway in front of two real models, and send some sample requests.",
    ),
    "stub": ("gateway.features.demo.stub", "Run an endpoint without a model, to try the gateway with."),
    "check": ("gateway.cli.check", "List every fault of the configuration and of all policies."),
    "import": (
        "gateway.features.importing.command",
        "Turn the configuration of another gateway into one of nearhit, with a report.",
    ),
    "explain": ("gateway.cli.explain", "Explain how a request would be answered, or whether two prompts match."),
    "eval": (
        "gateway.features.evaluation.command",
        "Say how often the policy chooses the expected tier or backend, and by which signal.",
    ),
    "simulate": (
        "gateway.features.simulation.command",
        "Compare another policy with the current one on recorded traffic.",
    ),
    "capacity": (
        "gateway.features.capacity.command",
        "Size gateways, shards, nodes and GPUs for some traffic, with the monthly cost.",
    ),
    "spend": ("gateway.features.spend.command", "Report who spent how much on which model, and what hits saved."),
    "report": (
        "gateway.features.spend.report_command",
        "Report what hits and light models saved, how often they were wrong, and what that cost.",
    ),
    "prices": ("gateway.features.prices.command", "Show what backends charge, list and renew the catalogue of prices."),
    "cache": ("gateway.cli.cache", "Manage stored answers: statistics, purge, export, import, warming."),
    "jobs": ("gateway.features.jobs.command", "Manage jobs: list and show them, retry or drop the dead ones."),
    "keys": ("gateway.features.keys.command", "Manage API keys: create, list, change, rotate and revoke them."),
    "policy": ("gateway.cli.policy", "Manage a gateway's policy: show, validate, apply, compare, roll back."),
    "audit": (
        "gateway.features.audit.command",
        "List the actions on the admin port, newest first: who did what, and when.",
    ),
    "doctor": (
        "gateway.cli.doctor.command",
        "Check all that the gateway needs, and say how to fix faults. Changes nothing.",
    ),
    "top": ("gateway.features.top.command", "Watch a running gateway: requests, hit rate, latency, backends, routes."),
    "restart": (
        "gateway.features.workers.command",
        "Replace the workers, with the current configuration, without losing requests.",
    ),
    "completion": (
        "gateway.cli.completion",
        "Print a completion script for a shell, to source from its start-up file.",
    ),
    "schema": ("gateway.cli.json_schema", "Print the JSON Schema of policy files or of config.yaml, for editors."),
    "distill": (
        "gateway.features.distillation.command",
        "Train a light classifier on a large model's answers, for Triton or nearhit.",
    ),
    "light": (
        "gateway.features.light.command",
        "Train the light model of a route on its own answers, and roll the version out step by step.",
    ),
    "tune": (
        "gateway.features.tuning.command",
        "Tune the decision on similar questions with labelled pairs, behind a gate.",
    ),
    "index": ("gateway.cli.index", "Manage the index that finds similar questions."),
    "model": (
        "gateway.features.embedding_model.command",
        "Fetch or build an embedding model, or export it for Triton.",
    ),
}

COMMANDS = Extensions("nearhit.commands", {name: module for name, (module, _) in OWN.items()})


class ForeignCommand(Protocol):
    """A command of another package: a module or an object to which its entry point refers."""

    @property
    def summary(self) -> str:
        """The line about the command in `nearhit --help`."""

    def register(self, command: Command) -> None:
        """Define the command, or the commands below it, by `Command.define` and `Command.add_command`."""


def build_parser(argv: Sequence[str] | None = None) -> Command:
    """Return the parser of every command.

    With a command line, only the command that it names is complete; of the others the parser has the names.
    Importing all their modules takes more than a second. Raise `StartupError` if the command that it names belongs to
    another package and cannot be loaded.
    """
    named = None if argv is None else next((word for word in argv if not word.startswith("-")), "")
    parser = Command(
        prog="nearhit", description="Semantic response cache and adaptive routing gateway for model endpoints."
    )
    parser.add_argument("--version", action="version", version=f"nearhit {version('nearhit')}")
    for name, (_, text) in OWN.items():
        command = parser.add_command(name, text)
        if named in (None, name):
            COMMANDS.load(name).register(command)
    if named not in OWN:
        for name in COMMANDS.names()[len(OWN) :]:
            _add_foreign(parser, name, named)
    return parser


def _add_foreign(parser: Command, name: str, named: str | None) -> None:
    """Add a command of another package. It is imported for help, for completion, and if the command line names it."""
    if named not in (None, "", name):
        parser.add_command(name, "")
        return
    try:
        foreign: ForeignCommand = COMMANDS.load(name)
    except StartupError as error:
        if named == name:
            raise
        parser.add_command(name, str(error).replace("%", "%%"))
        return
    foreign.register(parser.add_command(name, foreign.summary))
