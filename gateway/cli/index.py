"""`nearhit index` manages the index of question vectors."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack

from gateway.adapters.system.clock import SystemClock
from gateway.cache.index_checkpoints import FILE
from gateway.cache.index_factory import count_filled, open_index
from gateway.cache.model_factory import build_embedder
from gateway.cache.recovery import RETRY_S, ReconcileResult, reconcile
from gateway.cache.stores import open_stores
from gateway.cli.output import FAULT, print_result
from gateway.cli.parser import Command
from gateway.cli.progress import Advance, progress_bar
from gateway.config import Config
from gateway.config.fields import milvus_lite_path
from gateway.config.load import load_config
from gateway.errors import StartupError, StoreUnavailable
from gateway.http_server.listening import DataDirLock
from gateway.ports import ResponseStore, VectorIndex

MAX_STALLED_ATTEMPTS = 5  # consecutive attempts


def register(command: Command) -> None:
    text = "Fill the configured index from the store, whatever index was in use before."
    command.add_command(
        "migrate",
        text,
        run_migrate,
        "",
        "--config next.yaml --json",
        about="The command works from faiss to milvus and back. It reads the stored vectors and writes those that the "
        "index of index.adapter lacks. It then removes vectors that the store does not have, and compares the counts. "
        "Existing vectors are not written again: after an interruption, run it again. Stop the gateway first if you "
        "use the embedded store, faiss or a Milvus Lite file. (Faiss also fills itself when a gateway starts.)",
    )


def run_migrate(arguments: argparse.Namespace) -> int:
    """Fill the index, and print the counts. Raises `ConfigInvalid` or `StartupError`."""
    config, begun = load_config(arguments.config, os.environ), time.perf_counter()
    compared, size = asyncio.run(_migrate(config, os.environ, quiet=arguments.json))
    expected = compared.retained + compared.added
    figures = {
        "index": config.index.adapter,
        "in_store": expected,
        "in_index": size,
        "added": compared.added,
        "removed": compared.removed,
        "seconds": round(time.perf_counter() - begun, 1),
    }
    text = (
        f"{config.index.adapter} holds {size} vectors, the store {expected}: "
        f"{compared.added} added, {compared.removed} removed in {figures['seconds']} s"
    )
    if size == expected:
        return print_result(arguments, figures, text)
    print_result(
        arguments, figures, text + "; gateways may have stored or removed some meanwhile, otherwise run it again"
    )
    return FAULT


async def _migrate(config: Config, environ: Mapping[str, str], *, quiet: bool) -> tuple[ReconcileResult, int]:
    clock = SystemClock()
    async with AsyncExitStack() as life:
        if _needs_exclusive_access(config):
            lock = DataDirLock(config.data_dir)
            life.callback(lock.release)
        encoder, embedder = await asyncio.to_thread(build_embedder, config.embedder, config.data_dir)
        life.callback(embedder.close)
        stores = await open_stores(config, environ, clock, encoder.fingerprint)
        life.push_async_callback(stores.close)
        index, checkpoints = open_index(life, config, environ, embedder, clock, FILE)
        if checkpoints is not None:
            await checkpoints.load()
        try:
            total = (await stores.redis.stats()).entries
        except StoreUnavailable as error:
            raise StartupError(f"the store cannot be read, nothing was migrated: {error}") from None
        with progress_bar(f"into {config.index.adapter}", total, "entries", quiet=quiet) as advance:
            compared = await _reconcile(stores.redis, index, clock, advance)
        size = await count_filled(index)
        if checkpoints is not None:
            checkpoints.complete = True
            await checkpoints.save()
        return compared, size


def _needs_exclusive_access(config: Config) -> bool:
    """Whether the store or the index cannot be shared with a running gateway."""
    return config.store.url == "embedded" or config.index.adapter == "faiss" or milvus_lite_path(config.index.url or "")


async def _reconcile(store: ResponseStore, index: VectorIndex, clock: SystemClock, advance: Advance) -> ReconcileResult:
    """Reconcile the index with the store, with retries.

    Existing vectors are not written again, so that each attempt resumes where the last one ended.
    """
    furthest = failures = 0
    while True:
        done = 0

        def advance_by(more: int) -> None:
            nonlocal done, furthest
            done += more
            advance(max(0, done - furthest))
            furthest = max(furthest, done)

        before = furthest
        try:
            compared = await reconcile(store, index, clock, advance_by)
        except StoreUnavailable as error:
            failures = failures + 1 if furthest == before else 0
            if failures == MAX_STALLED_ATTEMPTS:
                why = f"stopped after {furthest} entries: {error}; run it again to resume"
                raise StartupError(why) from None
            await asyncio.sleep(RETRY_S)
            continue
        return compared
