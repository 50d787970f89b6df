"""Build the store's clients and the evictor."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Protocol

from gateway.adapters.redis.append_only_file import AppendOnlyFile
from gateway.adapters.redis.client import CONNECT_S, StoreAccess, connect
from gateway.adapters.redis.embedded_valkey import ValkeySupervisor
from gateway.adapters.redis.entry_sizes import RedisEntrySizes
from gateway.adapters.redis.former_entries import adopt_former
from gateway.adapters.redis.purge import RedisPurges
from gateway.adapters.redis.records import PLAIN
from gateway.adapters.redis.store import RedisStore
from gateway.cache.bans import Bans
from gateway.cache.embedding_spaces import Spaces
from gateway.cache.eviction import INDEX_SHARE, MEMORY_SHARE, Evictor
from gateway.cache.memory_cache import TieredStore
from gateway.config import Config
from gateway.config.environment import read_secret
from gateway.config.store import StoreConfig
from gateway.errors import StartupError
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock, MetricsStore

# Seconds. On a shared store another gateway may remove an entry, so memory is refreshed after this time.
SHARED_FRONT_MAX_AGE_S = 5.0


class SharedStore(Protocol):
    """The parts of a store that several gateways use (`gateway.features.replicas`)."""

    @property
    def figures(self) -> MetricsStore:
        """The metrics of the other gateways."""


@dataclass(frozen=True, slots=True)
class Stores:
    """The clients of the store, by what they read and write."""

    front: TieredStore
    redis: RedisStore
    client: Any  # of the same server, for the scripts of features
    file: AppendOnlyFile
    removals: RedisPurges
    server: ValkeySupervisor | None
    shared: SharedStore | None  # None if no other gateway is on this store

    async def adopt_former(self) -> None:
        """Give the entries of former versions their present names, if no gateway of such a version can be on the store.
        Raise `StoreUnavailable`."""
        if self.file.owned:
            await adopt_former(self.redis)

    async def close(self) -> None:
        await self.redis.close()
        if self.server is not None:
            await self.server.stop()


def access_of(store: StoreConfig, environ: Mapping[str, str]) -> StoreAccess:
    """Return the access settings. Raise `StartupError`."""
    password = read_secret(environ, store.password_env, "store.password_env")
    sentinels = read_secret(environ, store.sentinel_password_env, "store.sentinel_password_env")
    tls = store.tls
    if tls is None:
        return StoreAccess(store.username, password, sentinels)
    try:  # checked here, as otherwise each connection fails and every request is a miss
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.certificate is not None:
            # without a password the library prompts on the terminal
            context.load_cert_chain(tls.certificate, tls.key, password="")
    except OSError as error:  # includes ssl.SSLError
        raise StartupError(f"store.tls: the files cannot be used: {error.strerror or error}") from None
    return StoreAccess(store.username, password, sentinels, context)


async def open_stores(config: Config, environ: Mapping[str, str], clock: Clock, embedder: str = "") -> Stores:
    """Open the store. `embedder` is the fingerprint of the vectors in use, empty if none are read.

    Raise `ChildFailed` where the embedded server cannot start, and `StartupError`. An external server that is down is
    no failure: requests are misses until it answers.
    """
    server = None
    codec, encryption = PLAIN, config.store.encryption
    if encryption is not None:
        codec = import_module("gateway.features.encryption.record_keys").codec_of(encryption, environ)
    url, access = config.store.url, access_of(config.store, environ)
    if url == "embedded":
        server = await ValkeySupervisor.start(
            config.data_dir, max_memory=config.store.max_memory, fsync=config.jobs.fsync
        )
        url = server.url
    # The connect timeout is at least the reply timeout: otherwise the first answer would not be stored.
    client = connect(url, max(CONNECT_S, config.store.timeout), access)
    shared = server is None
    replicas = import_module("gateway.features.replicas.store") if shared else None
    journal = None if replicas is None else replicas.journal_of(config.store)
    redis = RedisStore(
        client, embedder=embedder, timeout_s=config.store.timeout, clock=clock, journal=journal, codec=codec
    )
    max_age_s = SHARED_FRONT_MAX_AGE_S if shared else None
    front = TieredStore(
        redis, max_bytes=config.store.front_size, max_age_s=max_age_s, clock=clock, bans=Bans(), embedder=embedder
    )
    return Stores(
        front=front,
        redis=redis,
        client=client,
        file=AppendOnlyFile(redis, owned=url.startswith("unix://")),  # also that of the supervisor of workers
        removals=RedisPurges(redis),
        server=server,
        shared=None if replicas is None else replicas.open_shared(redis, client, journal, config.store.timeout),
    )


def build_evictor(config: Config, stores: Stores, spaces: Spaces, telemetry: Telemetry, clock: Clock) -> Evictor:
    """Build the evictor with the configured bounds. They keep the index from dropping entries on its own.

    The evictor is notified when an embedded store restarts.
    """
    store = config.store
    own = int(MEMORY_SHARE * store.max_memory) if stores.server is not None else None
    evictions = Evictor(
        stores.front,
        RedisEntrySizes(stores.redis, clock),
        spaces,
        telemetry,
        clock,
        max_entries=min(store.max_entries, max(1, int(INDEX_SHARE * config.index.max_entries))),
        max_bytes=own if store.max_bytes is None else store.max_bytes,
        is_exclusive=stores.server is not None,
    )
    if stores.server is not None:
        stores.server.on_restart = partial(_on_store_restart, evictions, telemetry)
    return evictions


def _on_store_restart(evictions: Evictor, telemetry: Telemetry) -> None:
    telemetry.store_restarts.add()
    evictions.on_server_restart()
