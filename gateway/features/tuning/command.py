"""`nearhit tune` fits the verifier to one's own labelled pairs, and manages the versions of it."""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gateway.adapters.onnx.model_files import model_dir_of
from gateway.adapters.system.weight_files import WeightsCorrupt
from gateway.cache.label_archive import read_labels
from gateway.cache.model_factory import can_tune, embedder_name
from gateway.cache.verifier_versions import VerifierVersions
from gateway.cli.output import CommandFailed, WrongUsage, print_result, printable, time_text
from gateway.cli.parser import Command, number_between, parser_type
from gateway.cli.progress import bar_console, progress_bar, step_reporter
from gateway.config import Config
from gateway.config.load import load_config
from gateway.config.units import parse_positive_share
from gateway.features.tuning.encoder import Training
from gateway.features.tuning.pairs import LabelledPair, PairsInvalid, read_pairs
from gateway.features.tuning.run import TuneOptions, tune
from gateway.model_build.environment import FetchFailed
from gateway.model_build.fetch import build_environment

BUILD_ENV = Path(".venv-build")
PROMISE = 0.01


def register(command: Command) -> None:
    command.define(
        run,
        "--pairs pairs.jsonl --json",
        "--route support",
        "--list",
        "--rollback",
        about="Without --pairs, the command uses the labels of routes with `learn: {keep: 30d}`. It fits the numbers "
        "of the score, and fine-tunes the cross-encoder in the environment that `nearhit distill --prepare` makes. The "
        "newest fifth of the labels is held out. The result is put in force only if it serves at least one point more "
        "of them at the promise's error. A gateway uses it from its next start on.",
        fault="the pairs have faults (each with its line), or the configuration cannot be tuned",
    )
    add = command.add_argument
    add("--pairs", metavar="FILE", type=Path, help='one {"a": "...", "b": "...", "y": 0 or 1} a line, oldest first')
    add("--route", metavar="NAME", help="use the labels of this route only; default: of all routes")
    add(
        "--promise",
        metavar="X",
        type=parser_type(parse_positive_share),
        default=PROMISE,
        help="share of wrong hits at which candidates are compared, such as 0.5%%; default: 1%%",
    )
    add("--minutes", metavar="N", type=number_between(0.1, 600), default=60.0, help="limit; default: %(default)s")
    add("--build-env", metavar="DIR", type=Path, default=None, help="environment with torch; default: .venv-build")
    add("--rollback", action="store_true", help="put the previous version in force, and stop")
    add("--list", action="store_true", help="list the versions, and stop")


def run(arguments: argparse.Namespace) -> int:
    if sum((arguments.rollback, arguments.list, arguments.pairs is not None)) > 1:
        raise WrongUsage("--pairs, --rollback and --list exclude each other")
    if arguments.pairs is not None and arguments.route is not None:
        raise WrongUsage("--route selects collected labels, and --pairs reads a file: expected only one of the two")
    config = load_config(arguments.config, os.environ)
    try:
        if arguments.rollback:
            return _roll_back(arguments, VerifierVersions(config.data_dir))
        if arguments.list:
            return _list(arguments, VerifierVersions(config.data_dir))
        with _exclusive(config.data_dir):
            return _tune(arguments, config)
    except (PairsInvalid, WeightsCorrupt, FetchFailed) as fault:
        raise CommandFailed(str(fault)) from None
    except OSError as error:
        raise CommandFailed(f"{error.filename or config.data_dir}: {error.strerror or error}") from None


@contextmanager
def _exclusive(data_dir: Path) -> Iterator[None]:
    """Let one run at a time use the data directory. Raise `CommandFailed` or OSError."""
    folder = VerifierVersions(data_dir).folder
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandFailed(f"another `nearhit tune` runs on {data_dir}, expected one at a time") from None
        yield


def _tune(arguments: argparse.Namespace, config: Config) -> int:
    if not can_tune(config.verifier, config.embedder):
        raise CommandFailed(
            "this configuration cannot be tuned: expected embedder.adapter onnx with all-MiniLM-L6-v2, "
            "and verifier.adapter learned with its cross-encoder in process"
        )
    options = TuneOptions(
        data_dir=config.data_dir,
        model_dir=model_dir_of(config.embedder),
        embedder=embedder_name(config.embedder),
        promise=arguments.promise,
        python=_build_python(arguments.build_env),
        training=replace(Training(), limit_s=60.0 * arguments.minutes),
        quiet=arguments.json,
    )
    console = bar_console()
    with step_reporter(quiet=arguments.json, console=console) as step:
        bar = partial(_bar, quiet=arguments.json, console=console)
        report = tune(_pairs(arguments, config), options, step, bar)
    return print_result(arguments, report, _text(report))


def _bar(what: str, total: int, *, quiet: bool, console: Any) -> Any:
    return progress_bar(what, total, "pairs", quiet=quiet, console=console)


def _pairs(arguments: argparse.Namespace, config: Config) -> list[LabelledPair]:
    """Return the pairs, the oldest first."""
    if arguments.pairs is not None:
        return read_pairs(arguments.pairs)
    rows = read_labels(config.data_dir, time.time(), arguments.route)
    return [LabelledPair(stored, question, right) for _, _, _, _, stored, question, right, _ in rows]


def _build_python(given: Path | None) -> Path | None:
    """Return the interpreter of the build environment, or None. Raise `FetchFailed` if a named one is not there."""
    if given is not None:
        return build_environment(given.absolute(), print, make=False)
    for folder in (BUILD_ENV, Path(sys.prefix).parent / BUILD_ENV):  # `make torch` leaves it next to .venv
        try:
            return build_environment(folder.absolute(), print, make=False)
        except FetchFailed:
            continue
    return None


def _roll_back(arguments: argparse.Namespace, versions: VerifierVersions) -> int:
    version = versions.rollback()
    text = f"{version or 'the shipped verifier'} is in force; a gateway uses it from its next start on"
    return print_result(arguments, {"version": version}, text)


def _list(arguments: argparse.Namespace, versions: VerifierVersions) -> int:
    all_versions = versions.all()
    rows = [{"version": each.name, "in_force": each.in_force, **_facts(each.manifest)} for each in all_versions]
    lines = [_version_text(row) for row in rows] or ["no version: the shipped verifier is in force"]
    return print_result(arguments, {"versions": rows}, "\n".join(lines))


def _facts(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a manifest that the list shows; null where it cannot be read."""
    return {name: manifest.get(name) for name in ("made_at", "labels", "before", "after")}


def _version_text(row: Mapping[str, Any]) -> str:
    mark = "*" if row["in_force"] else " "
    if row["labels"] is None:
        return f"{mark} {row['version']}  cannot be read"
    before, after = row["before"]["share"], row["after"]["share"]
    return f"{mark} {row['version']}  {time_text(row['made_at'])}  {row['labels']} labels, {before:.1%} to {after:.1%}"


def _text(report: Mapping[str, Any]) -> str:
    head = f"in force: {report['version']}" if report["in_force"] else "not put in force"
    lines = [f"{head}: {report['why']}", f"labels: {report['labels']}"]
    for name, pairs in report["examples"].items():
        lines += [printable(f"{name}: {'served' if each['served'] else 'not served'}: {each['a']} | {each['b']}")
                  for each in pairs]  # fmt: skip
    return "\n".join(lines)
