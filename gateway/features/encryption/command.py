"""`nearhit cache rekey`."""

from __future__ import annotations

import argparse

from gateway.cli.admin_client import AdminClient, call_gateway
from gateway.cli.output import print_result, printable
from gateway.cli.parser import Command
from gateway.cli.progress import spinner


def register(command: Command) -> None:
    command.add_command(
        "rekey", "Rewrite all stored answers with the first key of store.encryption.", run_rekey, "",
        asks_gateway=True,
        about="The gateway serves meanwhile. A run that was cut off is repeated, and does what is left. After a "
        "complete run, former keys can be removed from the configuration.",
        fault="some records were not rewritten",
    )  # fmt: skip


def run_rekey(arguments: argparse.Namespace) -> int:
    async def ask(admin: AdminClient) -> int:
        with spinner("rewriting the records", quiet=arguments.json):
            summary = await admin.post("/admin/cache/rekey", {})
        text = (
            f"{summary['rewritten']} rewritten with the key {summary['key']}, {summary['current']} had it, "
            f"{summary['replaced']} were replaced meanwhile, {summary['unreadable']} cannot be read"
        )
        return print_result(arguments, summary, "\n".join([text, *map(printable, summary.get("notes", ()))]))

    return call_gateway(arguments, ask)
