"""The store's client for a single server, for servers with sentinels, or for a cluster. redis-py finds the primary,
also after a failover.

No client sends anything before the first command, so an absent server means misses and does not prevent a start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from ssl import SSLContext
from typing import Any

from redis import DriverInfo
from redis import asyncio as redis
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import SSLConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel, SentinelManagedSSLConnection
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.maint_notifications import MaintNotificationsConfig

from gateway.adapters.redis.cluster import Cluster
from gateway.config.store_url import StoreKind, StoreTarget, parse_store_url

# For one call of a sentinel, including the connection.
SENTINEL_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """Credentials for the servers, and trust in them. Without `tls` the URL decides."""

    username: str | None = None
    password: str | None = None
    sentinel_password: str | None = None
    tls: SSLContext | None = None


DEFAULT_ACCESS = StoreAccess()
CONNECT_S = 1.0


def connect(url: str, connect_timeout_s: float = CONNECT_S, access: StoreAccess = DEFAULT_ACCESS) -> Any:
    """Return a client. `url` is `store.url` or `unix://`. `connect_timeout_s` covers a connection with its handshakes.

    The pool is not bounded, because at its bound redis-py fails instead of waiting. The return type is `Any`, because
    redis-py's annotations mix synchronous and asynchronous results.
    """
    options: dict[str, Any] = {
        # Callers limit the time of every operation. A timeout here would use `asyncio.wait_for`. On Python 3.11 that
        # can swallow the cancellation of a request, or of the gateway itself.
        "socket_timeout": None,
        "socket_connect_timeout": connect_timeout_s,
        "health_check_interval": 0,
        "retry": None,
        # One for all connections: otherwise each searches the installed packages for the client's version, 1 ms.
        "driver_info": DriverInfo(),
    }
    target = None if url.startswith("unix://") else parse_store_url(url)
    user: dict[str, Any] = {"username": access.username, "password": access.password}
    if target is None or target.kind is StoreKind.SERVER:
        credentials: dict[str, Any] = {name: value for name, value in user.items() if value is not None}
        return _with_tls(redis.Redis.from_url(url, **options, **credentials), TlsConnection, access)
    user = {"username": target.username or access.username, "password": target.password or access.password}
    if target.kind is StoreKind.CLUSTER:
        return _cluster(target, options | user, access)
    sentinels = Sentinels(target.addresses, {**options, "password": access.sentinel_password}, access)
    client = sentinels.master_for(target.service, redis_class=SentinelConnection, db=target.database, **options, **user)
    return _with_tls(client, TlsSentinelConnection, access)


def _cluster(target: StoreTarget, options: dict[str, Any], access: StoreAccess) -> Cluster:
    nodes = [ClusterNode(host, port) for host, port in target.addresses]
    cluster_options: dict[str, Any] = {
        "retry": Retry(NoBackoff(), 2),  # before each retry it reads the slot map again
        "reinitialize_steps": 0,  # otherwise it closes all connections after so many redirections, even those in use
        # Notices of hosted servers: each connection would have to subscribe.
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }
    cluster = Cluster(startup_nodes=nodes, ssl=access.tls is not None, **{**options, **cluster_options})
    nodes_manager = cluster.nodes_manager
    if access.tls is not None:
        secured: dict[str, Any] = {"connection_class": TlsConnection, "context": access.tls}
        nodes_manager.connection_kwargs |= secured
        nodes_manager.startup_nodes = {
            name: ClusterNode(node.host, node.port, node.server_type, **nodes_manager.connection_kwargs)
            for name, node in nodes_manager.startup_nodes.items()
        }
    return cluster


def _with_tls(client: Any, connection: type[SSLConnection], access: StoreAccess) -> Any:
    """Use one TLS context for all connections. redis-py would read the files for each, and trust the system's CAs as
    well."""
    if access.tls is not None:
        client.connection_pool.connection_class = connection
        client.connection_pool.connection_kwargs["context"] = access.tls
    return client


class TlsConnection(SSLConnection):
    def __init__(self, context: SSLContext, **options: Any) -> None:
        super().__init__(**options)
        self.ssl_context.context = context


class TlsSentinelConnection(SentinelManagedSSLConnection):
    def __init__(self, context: SSLContext, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self.ssl_context.context = context


class SentinelConnection(redis.Redis):
    """The client of the primary. Each new connection asks the sentinels for its address."""

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await super().aclose(close_connection_pool)
        pool: Any = self.connection_pool  # a `SentinelConnectionPool`
        await pool.sentinel_manager.aclose()


class Sentinels(Sentinel):
    """`Sentinels` moves a sentinel that answers to the front of its list, and one that times out to the end. Sentinels
    on an unreachable machine do not answer."""

    def __init__(self, addresses: Sequence[tuple[str, int]], options: dict[str, Any], access: StoreAccess) -> None:
        super().__init__([])  # type: ignore[no-untyped-call]
        clients = [SentinelClient(host=host, port=port, **options) for host, port in addresses]
        self._clients: list[SentinelClient] = [_with_tls(client, TlsConnection, access) for client in clients]
        self.sentinels = [*self._clients]
        self._discovery_lock = asyncio.Lock()

    async def discover_master(self, service_name: str) -> Any:
        async with self._discovery_lock:  # two at once would lose a sentinel when they reorder the list (redis-py 8.1)
            try:
                return await super().discover_master(service_name)
            except MasterNotFoundError as error:
                raise error from next(
                    (client.last_error for client in self._clients if client.last_error is not None), None
                )
            except asyncio.CancelledError:  # the caller's timeout is shorter than the sentinel's
                self.sentinels.append(self.sentinels.pop(0))
                raise


class SentinelClient(redis.Redis):
    """A sentinel that must answer within `SENTINEL_TIMEOUT_S`. `last_error` is its last error, or None."""

    last_error: Exception | None = None

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        self.last_error = None
        try:
            async with asyncio.timeout(SENTINEL_TIMEOUT_S):
                return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        except TimeoutError:
            self.last_error = RedisTimeoutError(f"nothing within {SENTINEL_TIMEOUT_S:g} s")
            raise self.last_error from None
        except RedisError as error:
            self.last_error = error
            raise
