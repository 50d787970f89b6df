"""What commands have in common: where a gateway that runs is, how it is asked, how is said what came of it."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import orjson

from gateway.cli.admin_client import AdminClient, CommandFailed, Place, connected, place_of
from gateway.config.units import Address, parse_address, parse_duration

T = TypeVar("T")
GOOD, FAULT, USAGE = 0, 1, 2
Run = Callable[[argparse.Namespace], int]
Add = Callable[[str, Run, str], argparse.ArgumentParser]


class WrongUsage(CommandFailed):
    """What was given does not go together, which the parser cannot see: exit code 2."""


def group(commands: Any, shared: argparse.ArgumentParser, name: str, text: str) -> Add:
    """Adds a command that has commands of its own. `commands`: argparse's subparsers. -> what adds one to it."""
    inner = commands.add_parser(name, help=text, description=text).add_subparsers(
        title="commands", metavar="COMMAND", required=True
    )
    reached = reaching(shared)

    def add(name: str, run: Run, text: str) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = inner.add_parser(name, parents=[reached], help=text, description=text)
        command.set_defaults(command=run)
        return command

    return add


def reaching(shared: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The options that say where the gateway is, beside the shared ones."""
    reached = argparse.ArgumentParser(add_help=False, parents=[shared])
    add_place(reached)
    return reached


def add_place(command: argparse.ArgumentParser) -> None:
    """The options that `place_given` reads beside --config."""
    command.add_argument("--admin", metavar="URL", help="of the gateway's admin port; default: server.admin")
    command.add_argument("--token-env", metavar="VARIABLE", help="where its token is; default: auth.admin_token_env")
    text = "for a gateway that is still starting, such as 30s; default: 0s"
    command.add_argument("--wait", metavar="DURATION", type=duration, default=0.0, help=text)


def place_given(arguments: argparse.Namespace) -> Place:
    """Raises `ConfigInvalid` or `StartFailed`."""
    place = place_of(arguments.config, os.environ, arguments.admin, arguments.token_env)
    return replace(place, wait_s=getattr(arguments, "wait", 0.0))


def asked(arguments: argparse.Namespace, ask: Callable[[AdminClient], Coroutine[Any, Any, T]]) -> T:
    """What `ask` makes of the gateway that the arguments name. Raises what it and `place_given` raise."""

    async def work() -> T:
        async with connected(place_given(arguments)) as admin:
            return await ask(admin)

    return asyncio.run(work())


def answer(
    arguments: argparse.Namespace,
    ask: Callable[[AdminClient], Coroutine[Any, Any, dict[str, Any]]],
    text: Callable[[dict[str, Any]], str],
) -> int:
    """Prints what the gateway says, as JSON or as `text` has it."""
    said = asked(arguments, ask)
    return tell(arguments, said, text(said))


def tell(arguments: argparse.Namespace, value: Mapping[str, Any], text: str) -> int:
    """Prints the one with --json, and else the other. -> the exit code of what is good."""
    return say(orjson.dumps(value).decode() if arguments.json else text)


def say(text: str) -> int:
    sys.stdout.write(text + "\n")
    return GOOD


def address(text: str) -> Address:
    """HOST:PORT, for argparse."""
    try:
        return parse_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_addresses(command: argparse.ArgumentParser) -> None:
    """The options that `addressed` reads."""
    command.add_argument("--listen", metavar="HOST:PORT", type=address, help="instead of server.listen")
    command.add_argument("--admin", metavar="HOST:PORT", type=address, help="instead of server.admin")


def addressed(environ: Mapping[str, str], listen: Address | None, admin: Address | None) -> dict[str, str]:
    """The environment with the addresses of the command line in it: they are checked like every other setting."""
    given = {"NEARHIT_SERVER__LISTEN": listen, "NEARHIT_SERVER__ADMIN": admin}
    return {**environ, **{name: str(value) for name, value in given.items() if value is not None}}


def duration(text: str) -> float:
    """Seconds, for argparse."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def several(count: int, one: str, more: str = "") -> str:
    """`1 file`, `2 files`."""
    return f"{count} {one if count == 1 else more or one + 's'}"


def time_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
