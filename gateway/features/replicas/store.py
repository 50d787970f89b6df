"""The parts of a store that several gateways use."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from gateway.adapters.redis.store import RedisStore
from gateway.config.store import StoreConfig
from gateway.features.replicas.change_log import ChangeLogReader, ChangeLogWriter
from gateway.features.replicas.cluster_leases import TTL_S
from gateway.features.replicas.gossip_stream import GossipStream, ReplyQueue
from gateway.features.replicas.lease_store import RedisLeases
from gateway.features.replicas.metrics_store import MetricsSnapshots
from gateway.features.replicas.policy_store import RedisPolicies
from gateway.ports import ChangeJournal


@dataclass(frozen=True, slots=True)
class ReplicaStore:
    """The clients of a shared store. `gateway` is the name of this gateway."""

    gateway: str
    leases: RedisLeases
    changes: ChangeLogReader
    gossip: GossipStream
    policies: RedisPolicies
    figures: MetricsSnapshots
    replies: ReplyQueue


def journal_of(store: StoreConfig) -> ChangeLogWriter:
    """Return the writer of the log of changes, under a new name of this gateway."""
    return ChangeLogWriter(secrets.token_hex(8), store.max_changes)


def open_shared(redis: RedisStore, client: Any, journal: ChangeJournal, timeout_s: float) -> ReplicaStore:
    """Return the clients of a shared store. `timeout_s` bounds each command for which a request waits, in seconds."""
    gateway = journal.gateway
    return ReplicaStore(
        gateway=gateway,
        leases=RedisLeases(redis, timeout_s=timeout_s, ttl_s=TTL_S),
        changes=ChangeLogReader(client),
        gossip=GossipStream(redis, client, gateway),
        policies=RedisPolicies(redis, client),
        figures=MetricsSnapshots(redis, client, gateway),
        replies=ReplyQueue(redis, client),
    )
