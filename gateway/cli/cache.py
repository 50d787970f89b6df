"""`nearhit cache` manages the stored answers of a running gateway."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from gateway.cache.stored_parts import StoredCommand, not_reached
from gateway.cli import erasure
from gateway.cli.admin_client import AdminClient, CommandFailed, WrongUsage, admin_address, call_gateway, connect
from gateway.cli.output import FAULT, GOOD, pluralise, print_result, print_warning, printable
from gateway.cli.parser import Command, integer_between, parser_type
from gateway.cli.progress import Advance, progress_bar, spinner
from gateway.cli.warming import WarmingPlan, WarmingSummary, count_prompts, parse_rate, warm
from gateway.config.environment import read_secret

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
    exported = add(
        "export", "Write the stored answers, one per line.", run_export,
        "--out answers.jsonl", "--format chat --route support --out training.jsonl",
        about="The file contains questions and answers: protect it accordingly. It is written completely or not "
        "at all.",
    )  # fmt: skip
    exported.add_argument("--out", metavar="FILE", type=Path, help="default: standard output")
    exported.add_argument("--route", metavar="NAME")
    exported.add_argument("--tag", metavar="TAG")
    exported.add_argument(
        "--format", choices=("entries", "chat"), default="entries", help="chat: conversations, to train a model on"
    )
    imported = add(
        "import", "Read the file of an export into the store.", run_import, "answers.jsonl",
        about="Each line is checked like an answer that a backend has just sent. Refused lines are listed; the others "
        "are stored.",
        fault="lines were refused, or nothing could be imported",
    )  # fmt: skip
    imported.add_argument("file", metavar="FILE", type=Path)
    warmed = add(
        "warm", "Send prompts through the gateway, so that it stores their answers.", run_warm,
        "prompts.jsonl --rate 5/s",
        about="They are sent to the data port like any client's requests: tiers, limits and policies apply.",
        fault="some prompts were not answered",
    )  # fmt: skip
    warmed.add_argument("file", metavar="PROMPTS.jsonl", type=Path, help="each line is a JSON string or a request body")
    warmed.add_argument("--url", help="URL of the data port; default: server.listen")
    warmed.add_argument(
        "--rate", type=parser_type(parse_rate), default=5.0, metavar="5/s", help="requests started; default: 5/s"
    )
    warmed.add_argument(
        "--concurrency", type=integer_between(1, 9999), default=8, metavar="N", help="default: %(default)s"
    )
    warmed.add_argument("--model", default="default", help="model for lines that name none; default: %(default)s")
    warmed.add_argument("--api-key-env", metavar="VARIABLE", help="variable with the API key to send")

    erasure.register(command)


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


def run_export(arguments: argparse.Namespace) -> int:
    given = {"format": arguments.format, "route": arguments.route, "tag": arguments.tag}
    path = "/admin/cache/export?" + urlencode({name: value for name, value in given.items() if value is not None})

    async def ask(admin: AdminClient) -> int:
        if arguments.out is None:
            await _write_pieces(admin.lines(path), sys.stdout.buffer.write)
            sys.stdout.flush()
            return GOOD
        with progress_bar("exporting", None, "entries", quiet=arguments.json) as done:
            count = await _write_file(_report_progress(admin.lines(path), done), arguments.out)
        left = not_reached(StoredCommand.EXPORT)
        said = {"entries": count, "file": str(arguments.out), "not_reached": left}
        return print_result(arguments, said, f"{pluralise(count, 'entry', 'entries')} in {arguments.out}")

    return call_gateway(arguments, ask)


async def _write_pieces(pieces: AsyncIterator[bytes], write: Callable[[bytes], Any]) -> int:
    """Write every chunk; return the number of lines."""
    count = 0
    async for piece in pieces:
        write(piece)
        count += piece.count(b"\n")
    return count


async def _report_progress(pieces: AsyncIterator[bytes], done: Advance) -> AsyncIterator[bytes]:
    async for piece in pieces:
        yield piece
        done(piece.count(b"\n"))


async def _write_file(pieces: AsyncIterator[bytes], out: Path) -> int:
    """Write to a temporary file first, so that an interrupted export leaves no file. Return the number of lines."""
    temporary = out.with_name(out.name + ".part")
    try:
        # The file contains prompts and answers, so that only its owner may read it.
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            count = await _write_pieces(pieces, file.write)
        temporary.replace(out)
    except OSError as error:
        raise CommandFailed(f"{out}: cannot be written ({error.strerror})") from None
    finally:
        temporary.unlink(missing_ok=True)
    return count


def run_import(arguments: argparse.Namespace) -> int:
    async def ask(admin: AdminClient) -> int:
        size = arguments.file.stat().st_size
        with progress_bar("importing", size, "B", quiet=arguments.json) as sent:
            done = await admin.post("/admin/cache/import", _read_pieces(arguments.file, sent))
        for fault in () if arguments.json else done["faults"]:
            print_warning(f"{arguments.file}:{fault['line']}: {fault['error']}")
        text = (
            f"{done['imported']} imported, {done['unchanged']} already stored, {done['refused']} refused, "
            f"{done['embedded']} re-embedded"
        )
        print_result(arguments, done, text)
        return FAULT if done["refused"] else GOOD

    if not arguments.file.is_file():
        raise CommandFailed(f"{arguments.file}: no such file; expected one that `nearhit cache export` wrote")
    return call_gateway(arguments, ask)


async def _read_pieces(file: Path, sent: Advance) -> AsyncIterator[bytes]:
    """Yield chunks of the file, and report each one as sent once the gateway is ready for the next."""
    with file.open("rb") as opened:
        while piece := opened.read(2**16):
            yield piece
            sent(len(piece))


def run_warm(arguments: argparse.Namespace) -> int:
    async def send() -> int:
        place = admin_address(arguments)
        key = read_secret(os.environ, arguments.api_key_env, "--api-key-env")
        plan = WarmingPlan(
            file=arguments.file,
            url=(arguments.url or place.data).rstrip("/"),
            model=arguments.model,
            rate=arguments.rate,
            concurrency=arguments.concurrency,
            headers={"Authorization": f"Bearer {key}"} if key else {},
        )
        total = count_prompts(plan)
        async with connect(place):
            pass  # with --wait: return once the gateway answers
        with progress_bar("warming", total, "prompts", quiet=arguments.json) as done:
            summary = await warm(plan, total, done)
        print_result(arguments, asdict(summary), warm_text(summary))
        return FAULT if summary.failed else GOOD

    return asyncio.run(send())


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


def warm_text(summary: WarmingSummary) -> str:
    text = f"{summary.stored} stored, {summary.hits} hits, {summary.not_stored} not stored, {summary.failed} failed"
    return text if summary.first_failure is None else f"{text} (first failure: {summary.first_failure})"
