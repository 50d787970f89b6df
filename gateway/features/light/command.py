"""`nearhit light` trains the light model of a route on its own answers, and manages the rollout of its versions."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import orjson

from gateway.cli.admin_client import AdminClient, call_gateway
from gateway.cli.output import CommandFailed, WrongUsage, print_result, time_text
from gateway.cli.parser import Command, integer_between
from gateway.config.load import load_config
from gateway.features.light.rows import AnsweredRow, split_rows

BUILD_ENV = Path(".venv-build")
ACTIONS = ("train", "start", "list", "explain", "promote", "rollback")


def register(command: Command) -> None:
    command.define(
        run,
        "--route intents",
        "list",
        "explain --route intents",
        "start --route intents --version 4",
        "promote --route intents",
        "rollback --route intents",
        about="Without an action, the command takes the large model's answers of a route with `rollout`, holds the "
        "newest fifth out, trains a classifier on the rest (`nearhit distill`), and compares it with the version in "
        "force. A version that is not worse is written to the model repository, and the gateway rolls it out step by "
        "step. Without --route it does so for all routes with a rollout.",
        fault="the gateway or the training failed",
        asks_gateway=True,
    )
    add = command.add_argument
    add("action", nargs="?", choices=ACTIONS, default="train", help="default: %(default)s")
    add("--route", metavar="NAME", help="the route; default: all routes with a rollout")
    add("--version", metavar="N", type=integer_between(1, 10**9), help="for start: a version in the repository")
    add("--why", metavar="TEXT", default="", help="for rollback: the reason, for the list of changes")
    add("--repository", metavar="DIR", type=Path, help="Triton model repository; default: light.repository")
    add("--rows", metavar="FILE", type=Path, help="write the questions and answers to FILE, and train nothing")
    add("--epochs", metavar="N", type=integer_between(1, 10_000), default=8, help="default: %(default)s")
    add("--distill", metavar="OPTIONS", default="", help="further options of nearhit distill, such as '--hidden 64'")
    add("--build-env", metavar="DIR", type=Path, default=BUILD_ENV, help="environment with torch; default: %(default)s")


def run(arguments: argparse.Namespace) -> int:
    if arguments.action in ("start", "explain", "promote", "rollback") and arguments.route is None:
        raise WrongUsage(f"{arguments.action} is about one route, expected --route NAME")
    if (arguments.version is None) == (arguments.action == "start"):
        raise WrongUsage("expected --version N with start, and without it otherwise")
    if arguments.action == "train":
        return _train(arguments)
    if arguments.action in ("list", "explain"):
        found = call_gateway(arguments, lambda admin: admin.get(f"/admin/light{_query(arguments.route)}"))
        return print_result(arguments, found, _text(found, whole=arguments.action == "explain"))
    body = {"route": arguments.route, "action": arguments.action, "why": arguments.why}
    if arguments.version is not None:
        body["version"] = str(arguments.version)
    done = call_gateway(arguments, lambda admin: admin.post("/admin/light", body))
    return print_result(arguments, done, _text({"rollouts": [done["rollout"]]}, whole=False))


@dataclass(frozen=True, slots=True)
class TrainingData:
    """The state of a rollout, and the questions of its route."""

    rollout: dict[str, Any]
    rows: Sequence[AnsweredRow]


def _train(arguments: argparse.Namespace) -> int:
    config = load_config(arguments.config, os.environ)
    found = call_gateway(arguments, lambda admin: _data(admin, arguments.route))
    if arguments.rows is not None:
        rows = [row for each in found for row in each.rows]
        _write_rows(arguments.rows, rows)
        return print_result(arguments, {"rows": len(rows)}, f"{len(rows)} questions are in {arguments.rows}")
    if not found:
        raise CommandFailed("no route has a rollout: expected rollout: on in the section route of a policy")
    repository = arguments.repository or config.light.repository
    reports = [_train_route(arguments, each, repository, config.light.min_rows) for each in found]
    return print_result(arguments, {"routes": reports}, "\n".join(map(_report_text, reports)))


async def _data(admin: AdminClient, route: str | None) -> list[TrainingData]:
    rollouts = (await admin.get(f"/admin/light{_query(route)}"))["rollouts"]
    found = []
    for rollout in rollouts:
        rows = (await admin.get(f"/admin/light/rows{_query(rollout['route'])}"))["rows"]
        found.append(TrainingData(rollout, [AnsweredRow(**row, tenant="", subjects=()) for row in rows]))
    return found


def _train_route(arguments: argparse.Namespace, found: TrainingData, repository: Path, min_rows: int) -> dict[str, Any]:
    """Train a version for a route and begin its rollout. Return the report, which has no texts."""
    route, in_force = found.rollout["route"], found.rollout["candidate"] or found.rollout["stable"]
    learnt, held_out = split_rows(found.rows, time.time())
    report: dict[str, Any] = {"route": route, "rows": len(learnt), "held_out": len(held_out)}
    if len(learnt) + len(held_out) < min_rows:
        return report | {"started": None, "why": f"expected {min_rows} questions with an answer of the large model"}
    if len({row.label for row in learnt}) < 2:
        return report | {"started": None, "why": "all answers are the same, expected two classes or more"}
    with tempfile.TemporaryDirectory(prefix="nearhit-light-") as scratch:  # so that no question outlives an erasure
        data, held = Path(scratch) / "rows.jsonl", Path(scratch) / "held_out.jsonl"
        _write_rows(data, learnt)
        _write_rows(held, held_out)
        options = ["--repository", str(repository), "--work", str(Path(scratch) / "work")]
        options += ["--build-env", str(arguments.build_env), "--epochs", str(arguments.epochs), "--agreement", "0"]
        options += ["--against", in_force] if in_force else ["--force"]
        options += shlex.split(arguments.distill)
        made = _distil([str(data), "--held-out", str(held), "--name", found.rollout["model"], *options, "--json"])
    figures = made["report"]
    report |= {
        "agreement": figures["agreement"],
        "bytes": figures["models"]["student"]["bytes"],
        "gate": figures["gate"],
    }
    return call_gateway(arguments, lambda admin: _hand_over(admin, report, made["entry"]))


def _distil(words: Sequence[str]) -> dict[str, Any]:
    """Run `nearhit distill` in a process of its own, and return its result. Raise `CommandFailed`."""
    done = subprocess.run(  # noqa: S603 - the command is built here
        [sys.executable, "-m", "gateway", "distill", *words], capture_output=True, text=True, check=False
    )
    try:
        made: dict[str, Any] = orjson.loads(done.stdout)
        return made if "report" in made else _fail(done.stderr)
    except orjson.JSONDecodeError:
        return _fail(done.stderr)


def _fail(text: str) -> dict[str, Any]:
    last = text.strip().splitlines()[-1:] or ["no reason given"]
    raise CommandFailed(f"the training failed: {last[0]}")


async def _hand_over(admin: AdminClient, report: dict[str, Any], entry: str | None) -> dict[str, Any]:
    """Tell the gateway of the new version, or that there is none."""
    route = report["route"]
    if entry is None:
        why = f"worse than version {report['gate']['version']} on {report['gate']['rows']} questions: "
        why += report["gate"]["why"]
        await admin.post("/admin/light", {"route": route, "action": "refuse", "why": why, "report": report})
        return report | {"started": None, "why": why}
    version = Path(entry).name
    body = {"route": route, "action": "start", "version": version, "report": report}
    await admin.post("/admin/light", body)
    return report | {"started": version, "why": "the version is being rolled out"}


def _write_rows(path: Path, rows: Sequence[AnsweredRow]) -> None:
    """Write texts and labels for `nearhit distill`, to be read by their owner alone. Raise `CommandFailed`."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.writelines(orjson.dumps({"text": row.text, "label": row.label}) + b"\n" for row in rows)
    except OSError as error:
        raise CommandFailed(f"{path}: {error.strerror or error}") from None


def _query(route: str | None) -> str:
    return "" if route is None else f"?{urlencode({'route': route})}"


def _report_text(report: dict[str, Any]) -> str:
    head = f"{report['route']}: {report['rows']} rows, {report['held_out']} held out"
    if report["started"] is None:
        return f"{head}\n  no new version: {report['why']}"
    share = report["agreement"]
    return (
        f"{head}\n  version {report['started']} agrees with the large model in {share['share']:.1%} and is rolled out"
    )


def _text(found: dict[str, Any], *, whole: bool) -> str:
    if not found["rollouts"]:
        return "no route has a rollout"
    return "\n".join(_rollout_text(rollout, whole=whole) for rollout in found["rollouts"])


def _rollout_text(rollout: dict[str, Any], *, whole: bool) -> str:
    lines = [f"{rollout['route']}: model {rollout['model']}"]
    if not rollout["managed"]:
        lines.append("  nothing was rolled out yet: the model server chooses the version")
    elif rollout["stable"] is None and rollout["candidate"] is None:
        lines.append("  no version is in force: the large model answers")
    for name, text in (("stable", "in force"), ("candidate", "rolled out"), ("previous", "the one before")):
        if rollout[name] is not None:
            share = f", {rollout['share']:.0%} of the calls" if name == "candidate" else ""
            lines.append(f"  version {rollout[name]}: {text}{share}")
    lines.append(f"  {rollout['verdict']}")
    if whole:
        evidence = rollout["evidence"]
        lines += [f"  {name}: {value}" for name, value in evidence.items() if value is not None]
    events = rollout["events"] if whole else rollout["events"][:3]
    for event in events:
        lines.append(
            f"  {time_text(event['at'])}  {event['change']:<11}  version {event['version'] or '-'}  {event['why']}"
        )
    return "\n".join(lines)
