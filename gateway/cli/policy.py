"""`nearhit policy` shows, validates, applies, compares and rolls back the policy of a running gateway."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import os
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import orjson

from gateway.cli.admin_client import AdminClient, call_gateway
from gateway.cli.output import (
    FAULT,
    GOOD,
    CommandFailed,
    WrongUsage,
    print_line,
    print_result,
    print_warning,
    time_text,
)
from gateway.cli.parser import Command
from gateway.config.policy.history import AUTHOR, COMMENT, unified_diff
from gateway.config.policy.load import LAST_FILE


def register(command: Command) -> None:
    add = partial(command.add_command, asks_gateway=True)
    add("show", "Print the files of the policy in force.", run_show, "")
    validated = add(
        "validate", "Check a new policy file together with the others, and change nothing.", run_validate,
        "support.yaml", "new.yaml --as default.yaml --offline",
        about="FILE is the new content of one policy file; the other files stay.",
        fault="the file has faults, or the gateway does not answer",
    )  # fmt: skip
    applied = add(
        "apply", "Put a policy file in force: the gateway writes it to its policies.", run_apply,
        "support.yaml --comment 'six hours'", "new.yaml --as default.yaml --if-match 0a1b2c3d4e5f",
        about="The gateway checks the file together with the others. If there is a fault, it changes nothing.",
        fault="the file has faults, or --if-match does not name the policy in force",
    )  # fmt: skip
    for each in (validated, applied):
        each.add_argument("file", metavar="FILE", type=Path, help="the new content of one policy file")
        each.add_argument(
            "--as", dest="name", metavar="NAME", help="name of the policy file; default: the name of FILE"
        )
    validated.add_argument("--offline", action="store_true", help="check with the files of --config, without a gateway")
    text = "List the versions that were in force, newest first."
    listed = add("history", text, run_history, "", "--limit 5")
    listed.add_argument("--limit", type=int, default=20, metavar="N", help="default: %(default)s")
    compared = add("diff", "Show the changes of a version, or the difference between two.", run_diff, "", "16 17")
    compared.add_argument("versions", metavar="VERSION", nargs="*", help="number or hash; default: the last one")
    rolled = add(
        "rollback", "Restore the files of an earlier version, as a new version.", run_rollback,
        "", "16 --comment 'hits were wrong'",
        about="Files that the earlier version did not have are removed.",
    )  # fmt: skip
    rolled.add_argument(
        "version", metavar="VERSION", nargs="?", help="number or hash; default: the version before the last"
    )
    for each in (applied, rolled):
        each.add_argument("--author", metavar="NAME", help="name for the history; default: your user name")
        each.add_argument("--comment", metavar="TEXT", default="", help="reason for the change")
        each.add_argument("--if-match", metavar="HASH", help="fail unless this policy is in force")


def run_show(arguments: argparse.Namespace) -> int:
    async def ask(admin: AdminClient) -> int:
        found = await admin.get("/admin/policy")
        for fault in () if arguments.json else found["faults"]:
            print_warning(f"not in force: {fault}")
        for warning in () if arguments.json else found["warnings"]:
            print_warning(f"warning: {warning}")
        files = (f"# {file['name']}, policy {found['hash']}\n{file['content']}" for file in found["files"])
        return print_result(arguments, found, "\n".join(files))

    return call_gateway(arguments, ask)


def run_validate(arguments: argparse.Namespace) -> int:
    content, name = _content(arguments.file), _name(arguments)
    if arguments.offline:
        offline = import_module("gateway.cli.check")  # the import takes 0.7 s, so that only --offline pays for it
        return _print_outcome(arguments, 200, asyncio.run(offline.validate(arguments.config, name, content)))

    async def ask(admin: AdminClient) -> int:
        path = f"/admin/policy/validate?{urlencode({'file': name})}"
        status, reply = await admin.submit(path, content, {})
        await _hint_other_files(arguments, admin, status)
        return _print_outcome(arguments, status, reply)

    return call_gateway(arguments, ask)


def run_apply(arguments: argparse.Namespace) -> int:
    content = _content(arguments.file)

    async def ask(admin: AdminClient) -> int:
        path = f"/admin/policy?{urlencode({'file': _name(arguments)})}"
        status, reply = await admin.submit(path, content, _headers(arguments))
        await _hint_other_files(arguments, admin, status)
        return _print_outcome(arguments, status, reply)

    return call_gateway(arguments, ask)


async def _hint_other_files(arguments: argparse.Namespace, admin: AdminClient, status: int) -> None:
    """Warn if a refused file would have been an additional one: the operator may have meant to replace a file."""
    if status != 422 or arguments.name is not None or arguments.json:
        return
    names = [file["name"] for file in (await admin.get("/admin/policy"))["files"]]
    if names and _name(arguments) not in names:
        print_warning(
            f"{_name(arguments)} would be a new file next to {', '.join(names)}: --as {names[-1]} would "
            "replace that one instead"
        )


def run_rollback(arguments: argparse.Namespace) -> int:
    key = arguments.version
    body = {} if key is None else {"version": int(key)} if key.isdigit() and len(key) < 10 else {"hash": key}

    async def ask(admin: AdminClient) -> int:
        status, reply = await admin.submit("/admin/policy/rollback", orjson.dumps(body), _headers(arguments))
        return _print_outcome(arguments, status, reply)

    return call_gateway(arguments, ask)


def run_history(arguments: argparse.Namespace) -> int:
    async def ask(admin: AdminClient) -> int:
        found = await admin.get(f"/admin/policy/history?{urlencode({'limit': arguments.limit})}")
        return print_result(arguments, found, "\n".join(map(_line, found["versions"])) or "no versions")

    return call_gateway(arguments, ask)


def _line(version: Mapping[str, Any]) -> str:
    changed = f"+{version['added']} -{version['removed']}"
    who = f"{version['author']} ({version['via']})" + (f"  {version['comment']}" if version["comment"] else "")
    return f"{version['version']:>4}  {version['hash']}  {time_text(version['at'])}  {changed:<12}{who}"


def run_diff(arguments: argparse.Namespace) -> int:
    if len(arguments.versions) > 2:
        raise WrongUsage("expected at most two versions")

    async def ask(admin: AdminClient) -> int:
        keys = arguments.versions or [str((await admin.get("/admin/policy/history?limit=1"))["versions"][0]["version"])]
        found = [await admin.get(f"/admin/policy/history/{quote(key, safe='')}") for key in keys]
        diff = found[0]["diff"] if len(found) == 1 else unified_diff(found[0]["files"], found[1]["files"])
        return print_result(arguments, {"diff": diff}, diff.rstrip("\n"))

    return call_gateway(arguments, ask)


def _print_outcome(arguments: argparse.Namespace, status: int, reply: Mapping[str, Any]) -> int:
    """Print the result of a change, or every fault of the file."""
    if arguments.json:
        print_line(orjson.dumps(reply).decode())
    elif status == 422:
        for fault in reply["faults"]:
            print_line(f"{fault['file']}:{fault['line']}: {fault['path']}: {fault['message']}")
    elif status != 200:
        raise CommandFailed(str(reply.get("error", "no reason given")))
    else:
        for warning in reply["warnings"]:
            print_line(f"warning: {warning['file']}:{warning['line']}: {warning['path']}: {warning['message']}")
        print_line(reply["diff"].rstrip("\n") + f"\n{_outcome(reply)}" if reply["diff"] else _outcome(reply))
    return GOOD if status == 200 else FAULT


def _outcome(reply: Mapping[str, Any]) -> str:
    if reply.get("applied"):
        return f"policy {reply['hash']} is in force; it replaces {reply['previous']}"
    if reply["hash"] == reply["previous"]:
        return f"no change: policy {reply['hash']} is in force"
    return f"no faults: this would be policy {reply['hash']}; it would replace {reply['previous']}"


def _headers(arguments: argparse.Namespace) -> dict[str, str]:
    match = {} if arguments.if_match is None else {"If-Match": f'"{arguments.if_match}"'}
    return {AUTHOR: arguments.author or _who(), COMMENT: arguments.comment, **match}


def _who() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name, in a container
        return f"uid {os.getuid()}"


def _name(arguments: argparse.Namespace) -> str:
    return arguments.name or arguments.file.name or LAST_FILE


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CommandFailed(f"{file}: {error.strerror}: expected a policy file") from None
