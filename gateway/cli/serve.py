"""`nearhit serve` runs the gateway until a signal ends it."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import uvloop

from gateway.adapters.onnx.model_files import MANIFEST_FILE, MODEL, model_dir_of
from gateway.adapters.system.memory import GarbageCollection, collecting
from gateway.admin.policy_manager import check_folder, recover_pending_change
from gateway.app import Gateway, running
from gateway.cli.output import GOOD, print_warning
from gateway.cli.parser import Command, add_addresses, with_addresses
from gateway.cli.signals import on_hangup, stop_event
from gateway.config import Config
from gateway.config.errors import ConfigError
from gateway.config.load import load_config
from gateway.config.policy.model import Policy
from gateway.config.schema import EmbeddingModel
from gateway.http_server.listening import allow_files
from gateway.observability import json_logging
from gateway.observability.access_log import AccessLog
from gateway.private_files import UMASK
from gateway.tasks import cancel_and_wait, start_task
from gateway.worker import WorkerEnvironment


def register(command: Command) -> None:
    command.define(
        run,
        "",
        "--upstream https://api.openai.com/v1 --listen 127.0.0.1:8080",
        about="The gateway runs until SIGINT or SIGTERM; requests in flight then have server.drain_timeout to finish. "
        "Saved policies take effect at once, and SIGHUP reloads them. With --upstream it needs no file: it serves one "
        "endpoint, with both caches on.\n"
        "Each request writes one JSON line to standard error; --log-level warning turns these lines off.",
    )
    command.add_argument("--upstream", metavar="URL", help="serve this one endpoint, without a configuration file")
    add_addresses(command)
    command.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")


def run(arguments: argparse.Namespace) -> int:
    environ = with_addresses(os.environ, arguments)
    doubts: list[ConfigError] = []
    if arguments.upstream is not None:
        single_backend = import_module("gateway.config.policy.single_backend")  # most gateways have a configuration
        config, policy = single_backend.upstream_config(arguments.upstream, environ, doubts.append)
        build_missing_model(config.embedder)
        os.umask(UMASK)
        uvloop.run(serve_upstream(config, policy, environ, arguments.log_level, doubts))
    else:
        config = load_config(arguments.config, environ, doubts.append)
        build_missing_model(config.embedder)
        os.umask(UMASK)  # after the model, which other users may share; also for the embedded store
        uvloop.run(serve(config, arguments.config, environ, arguments.log_level, doubts))
    return GOOD


def log_doubts(doubts: Iterable[ConfigError]) -> None:
    """Log the warnings of a configuration, which `nearhit check` lists too."""
    for doubt in doubts:
        fields = {"warning": str(doubt)}
        logging.getLogger("nearhit").warning("the configuration has a doubtful setting", extra={"fields": fields})


def build_missing_model(embedder: EmbeddingModel) -> None:
    """Build the default embedding model at the first start, so that `pip install` and `serve` are enough.

    It runs before the event loop, so that Ctrl-C ends it. Raises `FetchFailed`.
    """
    if embedder.adapter != "onnx" or embedder.model != MODEL:
        return
    folder = model_dir_of(embedder)
    if (folder / MANIFEST_FILE).exists():
        return
    import_module("gateway.cli.first_build").build_model(folder.parent)  # most starts need no build


async def serve(
    config: Config, path: Path, environ: Mapping[str, str], log_level: str, doubts: Iterable[ConfigError]
) -> None:
    """Serve `config`, read from `path` with `doubts`. Follow changes of its policies, and reload them on SIGHUP."""
    json_logging.configure_logging(log_level)
    worker_environment = WorkerEnvironment.of(environ)
    allow_files(config)
    if worker_environment is None:  # the supervisor has logged those of its workers
        log_doubts(doubts)
    if worker_environment is not None:
        config = worker_environment.apply_to(config)
    elif config.server.workers > 1:
        check_folder(config.policies, config)  # so that its faults are reported once, and not by each worker
        arguments = ["serve", "--config", str(path), "--log-level", log_level]
        async with scheduled(config, path, environ):
            await supervise(config, environ, arguments)
        return
    recover_pending_change(config, time.time)
    policy = check_folder(config.policies, config)
    log = access_log(log_level)
    async with (
        running(
            config, policy, environ, access_log=log, policies=config.policies, worker_environment=worker_environment
        ) as gateway,
        follow_policy(gateway),
        nullcontext() if worker_environment is not None else scheduled(config, path, environ),
    ):
        # The handlers come before the announcement: a caller may send a signal as soon as it reads that.
        with freeze_startup(gateway), stop_event(tolerate_repeats=worker_environment is not None) as stop:
            if worker_environment is None:
                announce(config.server.scheme, gateway.data_address, gateway.admin_address)
            else:
                worker_environment.notify_supervisor("ready")
                gateway.parts.background.start("warm", warm(gateway, worker_environment))
            await stop.wait()
        logging.getLogger("nearhit").info("stopping")


async def warm(gateway: Gateway, worker_environment: WorkerEnvironment) -> None:
    """Notify the supervisor when the index is complete."""
    await gateway.recovery.complete.wait()
    worker_environment.notify_supervisor("warm")


async def supervise(config: Config, environ: Mapping[str, str], arguments: list[str]) -> None:
    """Run the workers, and replace them on SIGHUP. A gateway in one process does not import their supervisor."""
    workers: Any = import_module("gateway.features.workers.supervisor")
    async with (
        workers.run_supervisor(config, arguments, environ) as supervisor,
        on_hangup(supervisor.restart_workers, cancel=True),
    ):
        with stop_event() as stop:
            announce(config.server.scheme, supervisor.data_address, supervisor.admin_address)
            await stop.wait()


@asynccontextmanager
async def scheduled(config: Config, path: Path, environ: Mapping[str, str]) -> AsyncIterator[None]:
    """Run `tune` and `light` as often as the configuration says, until the context ends. Only then their schedule is
    imported."""
    async with AsyncExitStack() as stack:
        if config.tune.every is not None or config.light.every is not None:
            schedule: Any = import_module("gateway.cli.schedule")
            for command, every_s in ((schedule.TUNE, config.tune.every), (schedule.LIGHT, config.light.every)):
                if every_s is not None:
                    await stack.enter_async_context(schedule.repeating(command, every_s, path, environ))
        yield


@asynccontextmanager
async def follow_policy(gateway: Gateway) -> AsyncIterator[None]:
    """Reload the policy when its files change, and on SIGHUP."""
    watcher = start_task(gateway.policies.watch())
    try:
        async with on_hangup(gateway.policies.reload):
            yield
    finally:
        await cancel_and_wait(watcher)


async def serve_upstream(
    config: Config, policy: Policy, environ: Mapping[str, str], log_level: str, doubts: Iterable[ConfigError]
) -> None:
    """Serve one endpoint, with both caches on and without any file."""
    json_logging.configure_logging(log_level)
    log_doubts(doubts)
    allow_files(config)
    async with running(config, policy, environ, access_log=access_log(log_level)) as gateway:
        with freeze_startup(gateway), stop_event() as stop:
            announce(config.server.scheme, gateway.data_address, gateway.admin_address)
            await stop.wait()
        logging.getLogger("nearhit").info("stopping")


def access_log(level: str) -> AccessLog | None:
    """Return the access log if `level` includes info, or else None."""
    return AccessLog(sys.stderr) if level in ("debug", "info") else None


@contextmanager
def freeze_startup(gateway: Gateway) -> Iterator[None]:
    """Exclude start-up from garbage collection, since its objects live on, and from the event-loop monitor."""
    with collecting(GarbageCollection()):
        gateway.parts.loop_monitor.reset()
        yield


def announce(scheme: str, data: tuple[str, int], admin: tuple[str, int]) -> None:
    """Print one line when both ports are open. Scripts wait for it."""
    print_warning(f"nearhit serves {scheme}://{data[0]}:{data[1]}, admin http://{admin[0]}:{admin[1]}")
