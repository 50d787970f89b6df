"""`nearhit report` tells what the gateway saved, for a mail, a chat or a README."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from gateway.cli.admin_client import AdminClient, call_gateway
from gateway.cli.output import GOOD, CommandFailed, WrongUsage, print_result, print_warning
from gateway.cli.parser import Command
from gateway.errors import StartupError
from gateway.features.spend.alternatives import alternatives_section, alternatives_tiles, policy_section
from gateway.features.spend.digest import badge, markdown
from gateway.features.spend.picture import png

NO_POLICY = Path()  # of `--shadow` without a file


def register(command: Command) -> None:
    command.define(
        run,
        "",
        "--since 7d --png week.png",
        "--from 2026-11-01 --to 2026-12-01 --badge saved.svg",
        "--since 7d --shadow",
        "--since 7d --shadow new.yaml",
        about="The report is Markdown: requests answered, dollars saved, how many audited hits were wrong, and what "
        "that cost. The figures are those of all gateways on the store, on routes with `spend: on`. With --shadow it "
        "also tells what other light models and thresholds would have cost and kept, on the traffic that this gateway "
        "has recorded (`record: on`), and what another policy would have done.",
        asks_gateway=True,
    )
    command.add_argument("--since", metavar="DURATION", help="such as 24h; default: 7d, without --from")
    command.add_argument("--from", dest="first", metavar="TIME", help="instead of --since: a day or hour (UTC)")
    command.add_argument("--to", metavar="TIME", help="where the report ends; default: now")
    command.add_argument(
        "--shadow",
        metavar="POLICY",
        nargs="?",
        type=Path,
        const=NO_POLICY,
        help="tell what other choices would have cost and kept; POLICY takes the place of the file of its name",
    )
    command.add_argument("--badge", metavar="FILE", type=Path, help="write a badge for a README, as SVG")
    command.add_argument("--png", metavar="FILE", type=Path, help="write a picture; needs the extra `report`")


def run(arguments: argparse.Namespace) -> int:
    if arguments.shadow is not None and (arguments.first or arguments.to):
        raise WrongUsage("--shadow reads recorded traffic: expected --since, such as 7d, and neither --from nor --to")
    since = arguments.since or (None if arguments.first else "7d")
    given = {"since": since, "from": arguments.first, "to": arguments.to}
    path = "/admin/report?" + urlencode({name: value for name, value in given.items() if value is not None})

    content = None if arguments.shadow in (None, NO_POLICY) else _read(arguments.shadow)

    async def ask(admin: AdminClient) -> int:
        found = await admin.get(path)
        text, tiles = markdown(found), list[tuple[str, str, str]]()
        if arguments.shadow is not None:
            others = await admin.get(f"/admin/report/alternatives?traffic=last-{since}")
            found, sections = {**found, "alternatives": others}, alternatives_section(others)
            tiles += alternatives_tiles(others)
            if content is not None:
                found["simulation"] = await _simulate(admin, arguments.shadow, content, f"last-{since}")
                sections += ["", *policy_section(arguments.shadow.name, found["simulation"])]
            text = "\n".join([text, "", *sections])
        if arguments.badge is not None:
            _write(arguments.badge, badge(found).encode())
        if arguments.png is not None:
            _write(arguments.png, png(found, tiles))
        print_result(arguments, found, text)
        return GOOD

    return call_gateway(arguments, ask)


def _read(policy: Path) -> bytes:
    try:
        return policy.read_bytes()
    except OSError as error:
        raise CommandFailed(f"{policy}: cannot be read ({error.strerror}), expected a policy file") from None


async def _simulate(admin: AdminClient, policy: Path, content: bytes, traffic: str) -> dict[str, Any]:
    """Return the comparison of a policy with the one in force. Raise `CommandFailed` with each of its faults."""
    names = [each["name"] for each in (await admin.get("/admin/policy"))["files"]]
    if len(names) > 1 and policy.name not in names:
        raise CommandFailed(f"{policy}: the policy has several files, expected the name of one: {', '.join(names)}")
    name = policy.name if policy.name in names else names[0]
    path = f"/admin/simulate?traffic={traffic}&file={quote(name)}"
    status, found = await admin.submit(path, content, {"Content-Type": "text/yaml"})
    if status != 200:
        faults = [f"{policy}: {fault['message']}" for fault in found.get("faults", ())]
        raise CommandFailed("\n".join(faults) or str(found.get("error", "no reason given")))
    return found


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise StartupError(f"{path} cannot be written: {error.strerror}") from None
    print_warning(f"wrote {path}")
