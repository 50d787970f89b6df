"""`nearhit cache erase`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import orjson

from gateway.cache.erasure_key import ERASURE_KEY, erasure_secret
from gateway.cli.admin_client import AdminClient, call_gateway
from gateway.cli.output import CommandFailed, WrongUsage, print_result, printable
from gateway.cli.parser import Command
from gateway.cli.progress import spinner
from gateway.config.load import load_config
from gateway.features.erasure.report import ReportInvalid, public_key, verify
from gateway.subjects import SubjectDigests, parse_subject, subject_key

PLACES = {
    "entries": "stored answers",
    "traffic": "requests in the traffic log",
    "labels": "labels with their texts",
    "jobs": "jobs",
    "files": "lines of batches, or files and batches of a tenant",
    "relations": "links and counterexamples",
    "learned": "learnt lookups and decoys",
}


def register(command: Command) -> None:
    erase = command.add_command(
        "erase", "Erase all that one user, key or tenant asked or caused, with a signed report.", run_erase,
        "--subject user:alice --dry-run", "--subject user:alice --tenant acme --out report.json",
        "--verify report.json --subject user:alice",
        asks_gateway=True,
        about="It covers stored answers, the index, the traffic log, jobs and learnt labels. When the command returns, "
        "no gateway on the store serves an answer that the subject caused before.",
        fault="not everything was erased, or the report is not valid; the message says which",
    )  # fmt: skip
    erase.add_argument("--subject", metavar="KIND:NAME", help="user:NAME, key:NAME or tenant:NAME")
    erase.add_argument("--tenant", help="only what belongs to this tenant")
    erase.add_argument("--dry-run", action="store_true", help="count what would be erased, and change nothing")
    erase.add_argument("--out", metavar="FILE", type=Path, help="write the signed report to this file")
    erase.add_argument("--verify", metavar="FILE", type=Path, help="verify the signature of a report; asks no gateway")
    erase.add_argument(
        "--public-key", metavar="HEX", help="for --verify: the signer's; default: that of the configuration"
    )


def run_erase(arguments: argparse.Namespace) -> int:
    if arguments.verify is not None:
        return _verify(arguments)
    if arguments.subject is None:
        raise WrongUsage("no subject given: expected --subject user:NAME, key:NAME or tenant:NAME")
    _parsed(arguments.subject)
    body = {"subject": arguments.subject, "tenant": arguments.tenant, "dry_run": arguments.dry_run or None}

    async def ask(admin: AdminClient) -> int:
        with spinner("erasing", quiet=arguments.json):
            document = await admin.post(
                "/admin/cache/erase", {name: value for name, value in body.items() if value is not None}
            )
        if arguments.out is not None:
            _write(arguments.out, document)
        return print_result(arguments, document, erase_text(document["report"]))

    return call_gateway(arguments, ask)


def erase_text(report: dict[str, Any]) -> str:
    lines = [f"{report['counts'].get(name, 0):>8}  {text}" for name, text in PLACES.items()]
    lines += [printable(note) for note in report["notes"]]
    if report["dry_run"]:
        return "\n".join([*lines, "would be erased; learnt lookups are not counted"])
    unknown = "" if report["durable"] else "; the store has not confirmed that the ban is on disk"
    return "\n".join([*lines, f"erased{unknown}"])


def _verify(arguments: argparse.Namespace) -> int:
    """Verify a report. Raise `CommandFailed`."""
    path: Path = arguments.verify
    try:
        document = orjson.loads(path.read_bytes())
    except OSError as error:
        raise CommandFailed(f"{path}: cannot be read ({error.strerror})") from None
    except orjson.JSONDecodeError:
        raise CommandFailed(f"{path}: it is not JSON") from None
    secret = None if arguments.public_key else _secret(arguments)
    try:
        report = verify(document, arguments.public_key or public_key(secret or ""))
    except ReportInvalid as invalid:
        raise CommandFailed(f"{path}: {invalid}") from None
    if arguments.subject is not None:
        if secret is None:
            raise WrongUsage("--subject with --public-key: expected the secret of the gateway, which makes the digests")
        subject = _parsed(arguments.subject)
        if SubjectDigests(subject_key(secret)).of(subject.kind, subject.name) != report.get("subject"):
            raise CommandFailed(f"{path}: it is the report of another subject")
    figures = {
        "valid": True,
        "time": report.get("time"),
        "subject": report.get("subject"),
        "dry_run": report["dry_run"],
    }
    kind = "a dry run" if report["dry_run"] else "an erasure"
    return print_result(arguments, figures, printable(f"valid: {kind} of {figures['subject']} at {figures['time']}"))


def _secret(arguments: argparse.Namespace) -> str:
    """Return the secret of the configuration. It is never made here. Raise `CommandFailed`."""
    config = load_config(arguments.config, os.environ)
    path = ERASURE_KEY.path(config, config.store.erasure_key_env)
    secret = None if path is not None and not path.exists() else erasure_secret(config, os.environ)
    if secret is None:
        raise CommandFailed(
            "there is no secret of erasures here: expected the data folder of the gateway, or --public-key"
        )
    return secret


def _parsed(text: str) -> Any:
    try:
        return parse_subject(text)
    except ValueError as invalid:
        raise WrongUsage(f"--subject: {invalid}") from None


def _write(path: Path, document: dict[str, Any]) -> None:
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    except OSError as error:
        raise CommandFailed(f"{path}: cannot be written ({error.strerror}); the erasure itself is done") from None
