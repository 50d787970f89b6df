"""`nearhit audit` lists the actions on the admin port of a running gateway."""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import urlencode

import orjson

from gateway.cli.admin_client import print_response
from gateway.cli.output import time_text
from gateway.cli.parser import Command

FORMATTED_FIELDS = frozenset({"at", "who", "role", "by", "peer", "did", "status", "outcome"})


def register(command: Command) -> None:
    command.define(run, "", "--source file --limit 200", asks_gateway=True)
    command.add_argument("--limit", type=int, default=50, metavar="N", help="at most 1000; default: %(default)s")
    command.add_argument(
        "--source",
        choices=("store", "file"),
        default="store",
        help="store: the last 1000 actions on all gateways of the store; file: the log of this gateway, with rejected "
        "requests; default: %(default)s",
    )


def run(arguments: argparse.Namespace) -> int:
    query = urlencode({"limit": arguments.limit, "source": arguments.source})
    return print_response(arguments, lambda admin: admin.get(f"/admin/audit?{query}"), audit_text)


def audit_text(reply: dict[str, Any]) -> str:
    if not reply["entries"]:
        return "no actions yet"
    return "\n".join(map(_format_entry, reply["entries"]))


def _format_entry(entry: dict[str, Any]) -> str:
    who = f"{entry.get('who') or 'unknown'} ({entry['by']})" if entry.get("by") else "unknown"
    more = {name: value for name, value in entry.items() if name not in FORMATTED_FIELDS}
    line = (
        f"{time_text(entry.get('at', 0.0))}  {who:<24}  {entry.get('peer', ''):<15}  {entry.get('outcome', ''):<7}  "
        f"{entry.get('did', '')}  {orjson.dumps(more).decode() if more else ''}"
    )
    return line.rstrip()
