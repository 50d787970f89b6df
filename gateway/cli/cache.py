"""`nearhit cache`: what operators do with the stored answers of a gateway that runs."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from gateway.cli.admin_client import AdminClient, CommandFailed, Place, connected
from gateway.cli.cache_texts import purge_text, stats_text, warm_text
from gateway.cli.client import FAULT, GOOD, WrongUsage, asked, group, place_given, several, tell
from gateway.cli.progress import Advance, counted, waiting
from gateway.cli.warming import Plan, count_prompts, parse_rate, warm
from gateway.config.environment import secret


def register(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Adds `cache` and its commands. `commands`: argparse's subparsers."""
    add = group(commands, shared, "cache", "Stored answers: figures, removal, export, import, warming.")
    add("stats", run_stats, "Say how full the caches are and how often they answer.")
    _add_purge(add("purge", run_purge, "Remove stored answers, at once and for good. All conditions must hold."))

    exported = add("export", run_export, "Write stored answers, one a line.")
    exported.add_argument("--out", metavar="FILE", type=Path, help="default: standard output")
    exported.add_argument("--route", metavar="NAME")
    exported.add_argument("--tag", metavar="TAG")
    exported.add_argument(
        "--format", choices=("entries", "chat"), default="entries", help="chat: conversations to train a model with"
    )
    imported = add("import", run_import, "Bring in what an export has written.")
    imported.add_argument("file", metavar="FILE", type=Path)

    warmed = add("warm", run_warm, "Send prompts through the gateway, so that their answers are there.")
    warmed.add_argument("file", metavar="PROMPTS.jsonl", type=Path, help="a line: a JSON string, or a body")
    warmed.add_argument("--url", help="of the data port; default: server.listen")
    warmed.add_argument("--rate", type=rate, default=5.0, metavar="5/s", help="requests begun; default: 5/s")
    warmed.add_argument("--concurrency", type=positive, default=8, metavar="N", help="in flight; default: %(default)s")
    warmed.add_argument("--model", default="default", help="for lines that name none; default: %(default)s")
    warmed.add_argument("--api-key-env", metavar="VARIABLE", help="where the key is that the gateway is shown")


def _add_purge(command: argparse.ArgumentParser) -> None:
    command.add_argument("--tag", action="append", metavar="TAG", help="again for more: one of them must be there")
    command.add_argument("--tenant", help="its name, or the first 12 digits of its hash, or more")
    command.add_argument("--route", metavar="NAME")
    command.add_argument("--model", metavar="NAME", help="as the client named it")
    command.add_argument("--backend", metavar="NAME", help="that gave the answer, such as a canary")
    command.add_argument("--older-than", metavar="DURATION", help="such as 1d")
    command.add_argument("--fingerprint", metavar="HEX")
    command.add_argument("--like", metavar="TEXT", help="everything close to this question")
    command.add_argument("--min-similarity", type=float, metavar="X", help="how close, in [0, 1]; default: 0.8")
    command.add_argument("--all", action="store_true", help="everything")
    command.add_argument("--dry-run", action="store_true", help="say what would go, and change nothing")
    command.add_argument("--yes", action="store_true", help="do not ask before --all")


def rate(text: str) -> float:
    try:
        return parse_rate(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 4 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 to 9999, got {text!r}")
    return int(text)


def run_stats(arguments: argparse.Namespace) -> int:
    async def ask(admin: AdminClient) -> int:
        report = await admin.get("/admin/stats")
        figures = {
            "entries": report["cache"]["entries"],
            "bytes": report["cache"]["bytes"],
            "store_answers": report["cache"].get("store_answers", True),  # a gateway of before does not say
            "hit_rate": report["hit_rate"],
            "verdicts": report["verdicts"],
            "unrouted": report["unrouted"],
            "tokens_saved": report["tokens_saved"],
            "dollars_saved": report["dollars_saved"],
        }
        return tell(arguments, figures, stats_text(figures))

    return asked(arguments, ask)


def run_purge(arguments: argparse.Namespace) -> int:
    body = _purge_body(arguments)
    if not set(body) - {"dry_run", "min_similarity"}:
        raise WrongUsage("nothing says what is meant: expected a condition such as --tag, or --all")
    if arguments.all and not (arguments.yes or arguments.dry_run) and sys.stdin.isatty():
        meant = "every stored answer" if set(body) == {"all"} else "all stored answers that these conditions mean"
        sys.stderr.write(f"Remove {meant}? [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise CommandFailed("nothing was removed")

    async def ask(admin: AdminClient) -> int:
        with waiting("looking through the store", quiet=arguments.json):
            outcome = await admin.post("/admin/cache/purge", body)
        return tell(arguments, outcome, purge_text(outcome, dry_run=arguments.dry_run))

    return asked(arguments, ask)


def run_export(arguments: argparse.Namespace) -> int:
    given = {"format": arguments.format, "route": arguments.route, "tag": arguments.tag}
    path = "/admin/cache/export?" + urlencode({name: value for name, value in given.items() if value is not None})

    async def ask(admin: AdminClient) -> int:
        if arguments.out is None:
            await _written(admin.lines(path), sys.stdout.buffer.write)
            sys.stdout.flush()
            return GOOD
        with counted("exporting", None, "entries", quiet=arguments.json) as done:
            count = await _to_file(_told(admin.lines(path), done), arguments.out)
        said = {"entries": count, "file": str(arguments.out)}
        return tell(arguments, said, f"{several(count, 'entry', 'entries')} in {arguments.out}")

    return asked(arguments, ask)


async def _written(pieces: AsyncIterator[bytes], write: Callable[[bytes], Any]) -> int:
    """-> lines."""
    count = 0
    async for piece in pieces:
        write(piece)
        count += piece.count(b"\n")
    return count


async def _told(pieces: AsyncIterator[bytes], done: Advance) -> AsyncIterator[bytes]:
    async for piece in pieces:
        yield piece
        done(piece.count(b"\n"))


async def _to_file(pieces: AsyncIterator[bytes], out: Path) -> int:
    """Beside it first: what broke off is no export."""
    beside = out.with_name(out.name + ".part")
    try:
        # Prompts and answers: nobody else's to read.
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            count = await _written(pieces, file.write)
        beside.replace(out)
    except OSError as error:
        raise CommandFailed(f"{out}: cannot be written ({error.strerror})") from None
    finally:
        beside.unlink(missing_ok=True)
    return count


def run_import(arguments: argparse.Namespace) -> int:
    async def ask(admin: AdminClient) -> int:
        size = arguments.file.stat().st_size
        with counted("importing", size, "B", quiet=arguments.json) as sent:
            done = await admin.post("/admin/cache/import", _pieces(arguments.file, sent))
        for fault in () if arguments.json else done["faults"]:
            sys.stderr.write(f"{arguments.file}:{fault['line']}: {fault['error']}\n")
        text = (
            f"{done['imported']} imported, {done['unchanged']} were there already, {done['refused']} refused, "
            f"{done['embedded']} embedded anew"
        )
        tell(arguments, done, text)
        return FAULT if done["refused"] else GOOD

    if not arguments.file.is_file():
        raise CommandFailed(f"{arguments.file}: there is no such file, expected one that `nearhit cache export` wrote")
    return asked(arguments, ask)


async def _pieces(file: Path, sent: Advance) -> AsyncIterator[bytes]:
    """The gateway takes a piece when it is done with the ones before it."""
    with file.open("rb") as opened:
        while piece := opened.read(2**16):
            yield piece
            sent(len(piece))


def run_warm(arguments: argparse.Namespace) -> int:
    async def send(place: Place) -> int:
        key = secret(os.environ, arguments.api_key_env, "--api-key-env")
        plan = Plan(
            file=arguments.file,
            url=(arguments.url or place.data).rstrip("/"),
            model=arguments.model,
            rate=arguments.rate,
            concurrency=arguments.concurrency,
            headers={"Authorization": f"Bearer {key}"} if key else {},
        )
        total = count_prompts(plan)
        async with connected(place):
            pass  # where --wait is given, until somebody answers
        with counted("warming", total, "prompts", quiet=arguments.json) as done:
            summary = await warm(plan, total, done)
        tell(arguments, summary.as_json(), warm_text(summary))
        return FAULT if summary.failed else GOOD

    return asyncio.run(send(place_given(arguments)))


def _purge_body(arguments: argparse.Namespace) -> dict[str, Any]:
    given = {
        "tags": arguments.tag,
        "tenant": arguments.tenant,
        "route": arguments.route,
        "model": arguments.model,
        "backend": arguments.backend,
        "older_than": arguments.older_than,
        "fingerprint": arguments.fingerprint,
        "like": arguments.like,
        "min_similarity": arguments.min_similarity,
        "all": arguments.all or None,
        "dry_run": arguments.dry_run or None,
    }
    return {name: value for name, value in given.items() if value is not None}
