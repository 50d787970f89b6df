"""`nearhit spend` prints who spent how much."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from gateway.cli.admin_client import AdminClient, call_gateway
from gateway.cli.output import GOOD, print_line, print_result, printable
from gateway.cli.parser import Command

NOT_PRICED = "not priced"


def register(command: Command) -> None:
    command.define(
        run,
        "",
        "--by tenant,model --from 2026-11-01 --to 2026-12-01",
        "--by key --csv",
        about="The figures are those of all gateways on the store, on routes with `spend: on`. They are a second old. "
        "Calls of a model without a price count in no cost.",
        asks_gateway=True,
    )
    text = "tenant, key, user, route, backend, model, day, hour, separated by commas; default: tenant,model"
    command.add_argument("--by", default="tenant,model", metavar="NAMES", help=text)
    command.add_argument("--from", dest="since", metavar="TIME", help="day or hour (UTC); default: the month's first")
    command.add_argument("--to", metavar="TIME", help="where the report ends; default: now")
    command.add_argument("--tenant", metavar="NAME", help="only this tenant")
    command.add_argument("--csv", action="store_true", help="print CSV with the column names of FOCUS")


def run(arguments: argparse.Namespace) -> int:
    given = {
        "by": arguments.by,
        "from": arguments.since,
        "to": arguments.to,
        "tenant": arguments.tenant,
        "format": "csv" if arguments.csv and not arguments.json else None,
    }
    path = "/admin/spend?" + urlencode({name: value for name, value in given.items() if value is not None})

    async def ask(admin: AdminClient) -> int:
        if given["format"] == "csv":
            chunks = [chunk async for chunk in admin.lines(path)]
            return print_line(b"".join(chunks).decode().rstrip("\r\n"))
        found = await admin.get(path)
        print_result(arguments, found, as_text(found, [*filter(None, arguments.by.split(","))]))
        return GOOD

    return call_gateway(arguments, ask)


def as_text(found: Mapping[str, Any], by: list[str]) -> str:
    """Return a table with the sum in its last line."""
    lines = [[*by, "requests", "hits", "tokens", "cost", "saved"]]
    lines += [[*(printable(row[name]) or "-" for name in by), *_figures(row)] for row in found["rows"]]
    lines += [["total", *[""] * (len(by) - 1), *_figures(found["total"])]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ["  ".join(_padded(cell, at, widths, len(by)) for at, cell in enumerate(line)).rstrip() for line in lines]
    if unpriced := found["total"].get("not_priced"):
        rows.append(f"{unpriced} calls are not priced, and count in no cost: see `nearhit prices show`")
    return "\n".join(rows)


def _padded(cell: str, at: int, widths: list[int], names: int) -> str:
    return cell.ljust(widths[at]) if at < names else cell.rjust(widths[at])


def _figures(row: Mapping[str, Any]) -> list[str]:
    cost = NOT_PRICED if row["cost"] is None else f"${row['cost']:,.4f}"
    return [f"{row['requests']:,}", f"{row['hits']:,}", f"{row['tokens']:,}", cost, f"${row['saved']:,.4f}"]
