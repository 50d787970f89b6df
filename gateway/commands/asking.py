"""What commands share that ask the admin port of a gateway that runs."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import orjson

from gateway.commands.admin_client import AdminClient, connected, place_of

GOOD = 0
Work = Callable[[AdminClient], Coroutine[Any, Any, dict[str, Any]]]


def reaching(shared: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The options that say where the gateway is, beside the shared ones."""
    reached = argparse.ArgumentParser(add_help=False, parents=[shared])
    reached.add_argument("--admin", metavar="URL", help="of the gateway's admin port; default: server.admin")
    reached.add_argument("--token-env", metavar="VARIABLE", help="where its token is; default: auth.admin_token_env")
    return reached


def asked(arguments: argparse.Namespace, work: Work, text: Callable[[dict[str, Any]], str]) -> int:
    """Prints what the gateway says, as JSON or as `text` has it."""
    place = place_of(arguments.config, os.environ, arguments.admin, arguments.token_env)

    async def ask() -> dict[str, Any]:
        async with connected(place) as admin:
            return await work(admin)

    said = asyncio.run(ask())
    sys.stdout.write((orjson.dumps(said).decode() if arguments.json else text(said)) + "\n")
    return GOOD


def time_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
