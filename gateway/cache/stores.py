"""Builds what lies in the store: its client, what asks it, and what makes room in it."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from gateway.adapters.redis.api_keys import RedisKeys
from gateway.adapters.redis.batches import RedisBatches
from gateway.adapters.redis.change_log import Journal, RedisChanges
from gateway.adapters.redis.client import CONNECT_S, Access, connect
from gateway.adapters.redis.durability import Syncing
from gateway.adapters.redis.embedded_valkey import KeptValkey
from gateway.adapters.redis.entry_sizes import RedisWeights
from gateway.adapters.redis.gossip_stream import RedisReplies, RedisSpoken
from gateway.adapters.redis.jobs import RedisJobs
from gateway.adapters.redis.leases import RedisLeases
from gateway.adapters.redis.metrics import RedisFigures
from gateway.adapters.redis.policy import RedisPolicies
from gateway.adapters.redis.purge import RedisRemovals
from gateway.adapters.redis.quotas import RedisQuotas
from gateway.adapters.redis.store import RedisStore
from gateway.cache.bans import Bans
from gateway.cache.cluster_leases import TTL_S as LEASE_TTL_S
from gateway.cache.embedding_spaces import Spaces
from gateway.cache.eviction import OF_INDEX, OF_MEMORY, Evictions
from gateway.cache.memory_cache import FrontStore
from gateway.config import Config
from gateway.config.environment import secret
from gateway.config.store import Store
from gateway.errors import StartFailed
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock

# On a shared store another gateway may remove an entry: what is kept in process is asked for again after this.
SHARED_FRONT_MAX_AGE_S = 5.0


@dataclass(frozen=True, slots=True)
class Stores:
    front: FrontStore
    redis: RedisStore
    removals: RedisRemovals
    keys: RedisKeys
    leases: RedisLeases | None  # None: no other gateway is on this store
    quotas: RedisQuotas
    jobs: RedisJobs
    batches: RedisBatches
    server: KeptValkey | None
    changes: RedisChanges | None  # as `leases`
    journal: Journal | None
    spoken: RedisSpoken | None
    policies: RedisPolicies | None
    figures: RedisFigures | None
    replies: RedisReplies

    async def close(self) -> None:
        await self.redis.close()
        if self.server is not None:
            await self.server.stop()


def access_of(store: Store, environ: Mapping[str, str]) -> Access:
    """Raises `StartFailed`."""
    password = secret(environ, store.password_env, "store.password_env")
    sentinels = secret(environ, store.sentinel_password_env, "store.sentinel_password_env")
    tls = store.tls
    if tls is None:
        return Access(store.username, password, sentinels)
    try:  # the client would find out with each connection, and every request would be a miss
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.key, password="")  # else it asks the terminal for one
    except OSError as error:  # ssl.SSLError included
        raise StartFailed(f"store.tls: the files cannot be used: {error.strerror or error}") from None
    return Access(store.username, password, sentinels, context)


async def open_stores(config: Config, environ: Mapping[str, str], embedder: str, clock: Clock) -> Stores:
    """`embedder`: the fingerprint of the vectors in use. Raises `ChildFailed` where the embedded server cannot start,
    and `StartFailed`; an outside server that is absent is no failure: its requests are misses until it is there."""
    server = None
    url, access = config.store.url, access_of(config.store, environ)
    if url == "embedded":
        server = await KeptValkey.start(config.data_dir, max_memory=config.store.max_memory, fsync=config.jobs.fsync)
        url = server.url
    # Whoever may wait for a reply may wait for the connection: an answer that comes first would not be stored.
    client = connect(url, max(CONNECT_S, config.store.timeout), access)
    shared = server is None
    journal = Journal(secrets.token_hex(8), config.store.max_changes) if shared else None
    redis = RedisStore(client, embedder=embedder, timeout_s=config.store.timeout, clock=clock, journal=journal)
    max_age_s = SHARED_FRONT_MAX_AGE_S if shared else None
    front = FrontStore(
        redis, max_bytes=config.store.front_size, max_age_s=max_age_s, clock=clock, bans=Bans(), embedder=embedder
    )
    leases = RedisLeases(redis, timeout_s=config.store.timeout, ttl_s=LEASE_TTL_S) if shared else None
    quotas = RedisQuotas(redis, timeout_s=config.store.timeout)
    sync = Syncing(client) if config.jobs.fsync else None
    jobs, batches = RedisJobs(redis, client, sync), RedisBatches(redis, client, sync)
    changes = RedisChanges(client) if shared else None
    spoken = None if journal is None else RedisSpoken(redis, client, journal.gateway)
    return Stores(
        front=front,
        redis=redis,
        removals=RedisRemovals(redis),
        keys=RedisKeys(redis),
        leases=leases,
        quotas=quotas,
        jobs=jobs,
        batches=batches,
        server=server,
        changes=changes,
        journal=journal,
        spoken=spoken,
        policies=RedisPolicies(redis, client) if shared else None,
        figures=None if journal is None else RedisFigures(redis, client, journal.gateway),
        replies=RedisReplies(redis, client),
    )


def evictions_of(config: Config, stores: Stores, spaces: Spaces, telemetry: Telemetry, clock: Clock) -> Evictions:
    """Within what the configuration says; the index need never evict by itself. Told when an embedded store was
    started again."""
    store = config.store
    own = int(OF_MEMORY * store.max_memory) if stores.server is not None else None
    evictions = Evictions(
        stores.front,
        RedisWeights(stores.redis, clock),
        spaces,
        telemetry,
        clock,
        max_entries=min(store.max_entries, max(1, int(OF_INDEX * config.index.max_entries))),
        max_bytes=own if store.max_bytes is None else store.max_bytes,
        alone=stores.server is not None,
    )
    if stores.server is not None:
        stores.server.told = partial(_returned, evictions, telemetry)
    return evictions


def _returned(evictions: Evictions, telemetry: Telemetry) -> None:
    telemetry.store_restarts.add()
    evictions.returned()
