"""`nearhit report` tells what the gateway saved, for a mail, a chat or a README."""

from __future__ import annotations

import argparse
from pathlib import Path
from urllib.parse import urlencode

from gateway.cli.admin_client import AdminClient, call_gateway
from gateway.cli.output import GOOD, print_result, print_warning
from gateway.cli.parser import Command
from gateway.errors import StartupError
from gateway.features.spend.digest import badge, markdown
from gateway.features.spend.picture import png


def register(command: Command) -> None:
    command.define(
        run,
        "",
        "--since 7d --png week.png",
        "--from 2026-11-01 --to 2026-12-01 --badge saved.svg",
        about="The report is Markdown: requests answered, dollars saved, how many audited hits were wrong, and what "
        "that cost. The figures are those of all gateways on the store, on routes with `spend: on`.",
        asks_gateway=True,
    )
    command.add_argument("--since", metavar="DURATION", help="such as 24h; default: 7d, without --from")
    command.add_argument("--from", dest="first", metavar="TIME", help="instead of --since: a day or hour (UTC)")
    command.add_argument("--to", metavar="TIME", help="where the report ends; default: now")
    command.add_argument("--badge", metavar="FILE", type=Path, help="write a badge for a README, as SVG")
    command.add_argument("--png", metavar="FILE", type=Path, help="write a picture; needs the extra `report`")


def run(arguments: argparse.Namespace) -> int:
    since = arguments.since or (None if arguments.first else "7d")
    given = {"since": since, "from": arguments.first, "to": arguments.to}
    path = "/admin/report?" + urlencode({name: value for name, value in given.items() if value is not None})

    async def ask(admin: AdminClient) -> int:
        found = await admin.get(path)
        if arguments.badge is not None:
            _write(arguments.badge, badge(found).encode())
        if arguments.png is not None:
            _write(arguments.png, png(found))
        print_result(arguments, found, markdown(found))
        return GOOD

    return call_gateway(arguments, ask)


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise StartupError(f"{path} cannot be written: {error.strerror}") from None
    print_warning(f"wrote {path}")
