"""`nearhit cache` manages the stored answers of a running gateway."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from importlib import import_module
from typing import Any

from gateway.cli.admin_client import AdminClient, call_gateway
from gateway.cli.output import CommandFailed, WrongUsage, print_result, printable
from gateway.cli.parser import Command
from gateway.cli.progress import spinner

# Features with commands below `nearhit cache`, in the order of its help.
FEATURES = ("export", "warming", "erasure", "encryption")
CONDITIONS = ("tag", "tenant", "route", "model", "backend", "older_than", "fingerprint", "like", "min_similarity")
STORE_STALE = "the store does not answer: these are the last known figures"
STORE_UNKNOWN = "the store does not answer: its figures are unknown"


def register(command: Command) -> None:
    add = partial(command.add_command, asks_gateway=True)
    text = "Show the size of the caches and the hit rate since the gateway started."
    add("stats", text, run_stats, "", "--json")
    purge = add(
        "purge", "Remove the stored answers that match all conditions, at once and permanently.", run_purge,
        "--tag doc-17 --dry-run", "--route support --older-than 1d", "--like 'How do I reset my password?'",
        about="At least one condition is required. When the command returns, no gateway on the store serves a matching "
        "answer any more.",
        fault="nothing was removed, or not everything; the message says which",
    )  # fmt: skip
    _add_conditions(purge)
    for name in FEATURES:
        import_module(f"gateway.features.{name}.command").register(command)


def _add_conditions(command: Command) -> None:
    command.add_argument(
        "--tag", action="append", metavar="TAG", help="repeatable; an answer with any of the tags matches"
    )
    command.add_argument("--tenant", help="its name, or at least the first 12 digits of its hash")
    command.add_argument("--route", metavar="NAME")
    command.add_argument("--model", metavar="NAME", help="model name that the client sent")
    command.add_argument("--backend", metavar="NAME", help="backend that gave the answer, such as a canary")
    command.add_argument("--older-than", metavar="DURATION", help="such as 1d")
    command.add_argument("--fingerprint", metavar="HEX")
    command.add_argument("--like", metavar="TEXT", help="answers to questions similar to this one")
    command.add_argument("--min-similarity", type=float, metavar="X", help="for --like, in [0, 1]; default: 0.8")
    command.add_argument("--all", action="store_true", help="every stored answer")
    command.add_argument("--dry-run", action="store_true", help="show what would be removed, and change nothing")
    command.add_argument("--yes", action="store_true", help="do not ask for confirmation of --all")


def run_stats(arguments: argparse.Namespace) -> int:
    async def ask(admin: AdminClient) -> int:
        report = await admin.get("/admin/stats")
        cache = report["cache"]
        figures = {
            **{name: cache[name] for name in ("entries", "bytes", "store_answers")},
            **{name: report[name] for name in ("hit_rate", "verdicts", "unrouted", "tokens_saved", "dollars_saved")},
        }
        return print_result(arguments, figures, stats_text(figures))

    return call_gateway(arguments, ask)


def run_purge(arguments: argparse.Namespace) -> int:
    body = _purge_body(arguments)
    if not set(body) - {"dry_run", "min_similarity"}:
        raise WrongUsage("no condition given: expected one such as --tag, or --all")
    if arguments.all and not (arguments.yes or arguments.dry_run) and sys.stdin.isatty():
        meant = "every stored answer" if set(body) == {"all"} else "all stored answers that match these conditions"
        sys.stderr.write(f"Remove {meant}? [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise CommandFailed("nothing was removed")

    async def ask(admin: AdminClient) -> int:
        with spinner("scanning the store", quiet=arguments.json):
            outcome = await admin.post("/admin/cache/purge", body)
        return print_result(arguments, outcome, purge_text(outcome, dry_run=arguments.dry_run))

    return call_gateway(arguments, ask)


def _purge_body(arguments: argparse.Namespace) -> dict[str, Any]:
    given = {"tags" if name == "tag" else name: getattr(arguments, name) for name in CONDITIONS}
    given |= {"all": arguments.all or None, "dry_run": arguments.dry_run or None}
    return {name: value for name, value in given.items() if value is not None}


def purge_text(outcome: dict[str, Any], *, dry_run: bool) -> str:
    lines = [_sample_text(sample) for sample in outcome["samples"]]
    if outcome["matched"] > len(lines):
        lines.append(f"... and {outcome['matched'] - len(lines)} more")
    lines += outcome.get("notes", ())  # older gateways send no notes
    if dry_run:
        lines.append(f"{outcome['matched']} would be removed")
    else:
        unknown = "" if outcome["durable"] else "; the store has not confirmed that the removal is on disk"
        lines.append(f"{outcome['removed']} removed{unknown}")
    return "\n".join(lines)


def _sample_text(sample: dict[str, Any]) -> str:
    """Return one line; clients wrote most of it, so that it is made safe for a terminal."""
    shown = (
        sample["fingerprint"][:12],
        sample["route"],
        sample["tenant"],
        sample["model"],
        f"{sample['age_s']:.0f} s",
        ",".join(sample["tags"]) or "-",
        sample["question"] or "-",
    )
    return printable("  ".join(shown))


def stats_text(figures: dict[str, Any]) -> str:
    hit_rate = "-" if figures["hit_rate"] is None else f"{figures['hit_rate']:.1%}"
    lines = [f"{'':10}{'entries':>12}{'bytes':>16}"]
    lines += [
        f"{kind:10}{count:>12.0f}{figures['bytes'].get(kind, 0):>16.0f}"
        for kind, count in sorted(figures["entries"].items())
    ]
    if not figures["store_answers"]:
        lines.append(STORE_STALE if "store" in figures["entries"] else STORE_UNKNOWN)
    verdicts = ", ".join(f"{name} {count:.0f}" for name, count in figures["verdicts"].items())
    refused = (
        f"; {figures['unrouted']:.0f} of the misses matched no route and do not count" if figures["unrouted"] else ""
    )
    lines.append(f"hit rate  {hit_rate} ({verdicts}{refused})")
    return "\n".join([*lines, f"saved     {figures['tokens_saved']:.0f} tokens"])
