"""`nearhit cache export` and `nearhit cache import`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from gateway.cache.stored_parts import StoredCommand, not_reached
from gateway.cli.admin_client import AdminClient, call_gateway
from gateway.cli.output import FAULT, GOOD, CommandFailed, pluralise, print_result, print_warning
from gateway.cli.parser import Command
from gateway.cli.progress import Advance, progress_bar


def register(command: Command) -> None:
    add = partial(command.add_command, asks_gateway=True)
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
        summary = {"entries": count, "file": str(arguments.out), "not_reached": left}
        return print_result(arguments, summary, f"{pluralise(count, 'entry', 'entries')} in {arguments.out}")

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
