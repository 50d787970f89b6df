"""`nearhit serve`: the gateway until a signal ends it."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import uvloop

from gateway.adapters.system.memory import GarbageCollection, collected_briefly
from gateway.admin.policy_manager import resume, staged_folder
from gateway.app import Gateway, running
from gateway.cli.output import GOOD, warn
from gateway.cli.parser import Command, add_addresses, with_addresses
from gateway.cli.signals import on_hangup, told_to_stop
from gateway.cli.workers import supervising
from gateway.config import Config
from gateway.config.load import load_config
from gateway.config.policy.single_backend import upstream_config
from gateway.listening import allow_files
from gateway.observability import json_logging
from gateway.observability.access_log import AccessLog
from gateway.tasks import begun, cancelled
from gateway.worker import WorkerEnvironment


def register(command: Command) -> None:
    command.define(
        run,
        "",
        "--upstream https://api.openai.com/v1 --listen 127.0.0.1:8080",
        about="Serves the configuration until SIGINT or SIGTERM; requests in flight are then given "
        "server.drain_timeout. Saved policies are in force at once; SIGHUP has them read again. With --upstream there "
        "is no file: one endpoint, both caches on.\n"
        "A line a request goes to standard error, as JSON; --log-level warning leaves them out.",
    )
    command.add_argument("--upstream", metavar="URL", help="no config file: put the gateway before this one endpoint")
    add_addresses(command)
    command.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")


def run(arguments: argparse.Namespace) -> int:
    environ = with_addresses(os.environ, arguments)
    if arguments.upstream is not None:
        uvloop.run(serve_upstream(arguments.upstream, environ, arguments.log_level))
    else:
        uvloop.run(serve(arguments.config, environ, arguments.log_level))
    return GOOD


async def serve(path: Path, environ: Mapping[str, str], log_level: str) -> None:
    """Serves the configuration in `path`; its policies are followed as they change, and read again on SIGHUP."""
    json_logging.set_up(log_level)
    config, hired = load_config(path, environ), WorkerEnvironment.of(environ)
    allow_files(config)
    if hired is not None:
        config = hired.applied(config)
    elif config.server.workers > 1:
        staged_folder(config.policies, config)  # its faults are told once, and not by each worker
        arguments = ["serve", "--config", str(path), "--log-level", log_level]
        await supervise(config, environ, arguments)
        return
    resume(config, time.time)
    policy = staged_folder(config.policies, config)
    log = access_log(log_level)
    async with (
        running(config, policy, environ, access_log=log, policies=config.policies, hired=hired) as gateway,
        following(gateway),
    ):
        # Before anybody is told that it serves: who is may stop it at once.
        with settled(gateway), told_to_stop(patiently=hired is not None) as stop:
            if hired is None:
                announce(config.server.scheme, gateway.data_address, gateway.admin_address)
            else:
                hired.say("ready")
                gateway.parts.background.start("warm", warm(gateway, hired))
            await stop.wait()
        logging.getLogger("nearhit").info("stopping")


async def warm(gateway: Gateway, hired: WorkerEnvironment) -> None:
    """Tells the supervisor once the index is complete."""
    await gateway.recovery.complete.wait()
    hired.say("warm")


async def supervise(config: Config, environ: Mapping[str, str], arguments: list[str]) -> None:
    """Workers serve, and hand over to others on SIGHUP."""
    async with supervising(config, arguments, environ) as supervisor, on_hangup(supervisor.hand_over, cancel=True):
        with told_to_stop() as stop:
            announce(config.server.scheme, supervisor.data_address, supervisor.admin_address)
            await stop.wait()


@asynccontextmanager
async def following(gateway: Gateway) -> AsyncIterator[None]:
    """Keeps the gateway's policy that of the files, as they change and on SIGHUP."""
    watcher = begun(gateway.policies.watch())
    try:
        async with on_hangup(gateway.policies.reload):
            yield
    finally:
        await cancelled(watcher)


async def serve_upstream(url: str, environ: Mapping[str, str], log_level: str) -> None:
    """Serves one endpoint, with both caches on and no file at all."""
    json_logging.set_up(log_level)
    config, policy = upstream_config(url, environ)
    allow_files(config)
    async with running(config, policy, environ, access_log=access_log(log_level)) as gateway:
        with settled(gateway), told_to_stop() as stop:
            announce(config.server.scheme, gateway.data_address, gateway.admin_address)
            await stop.wait()
        logging.getLogger("nearhit").info("stopping")


def access_log(level: str) -> AccessLog | None:
    """A line a request is of level info."""
    return AccessLog(sys.stderr) if level in ("debug", "info") else None


@contextmanager
def settled(gateway: Gateway) -> Iterator[None]:
    """What start-up has made stays, and took long: neither the collector nor the watch of the loop looks at it."""
    with collected_briefly(GarbageCollection()):
        gateway.parts.loop_watch.forgive()
        yield


def announce(scheme: str, data: tuple[str, int], admin: tuple[str, int]) -> None:
    """One line for people, when both ports are open: scripts wait for it."""
    warn(f"nearhit serves {scheme}://{data[0]}:{data[1]}, admin http://{admin[0]}:{admin[1]}")
