"""The client for Redis Cluster. redis-py handles the slot map, redirections and failovers.

This module adds two things. Transactions run as scripts, because redis-py's asynchronous client (8.1) uses a thread and
an event loop for each command of one. A node that does not answer in time leads to a new slot map, like one that
refuses connections.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from redis import asyncio as redis
from redis.asyncio.cluster import ClusterNode, ClusterPipeline, RedisCluster
from redis.commands.core import AsyncCoreCommands
from redis.crc import key_slot
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException

from gateway.adapters.redis.keyspace import CLUSTERED, ONE_SERVER, KeySpace

# Commands, each preceded by its number of words. As in a transaction, a failed command does not stop the next one.
STEPS = """
local said, at = {}, 1
while at <= #ARGV do
  local words = tonumber(ARGV[at])
  said[#said + 1] = redis.pcall(unpack(ARGV, at + 1, at + words)) or false
  at = at + words + 1
end
return said
"""


class Cluster(RedisCluster):
    async def initialize(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().initialize(*args, **options)
        except RedisClusterException as error:  # unlike all others, it is not a `RedisError`
            raise RedisConnectionError(str(error)) from error

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().execute_command(*args, **options)
        except RedisClusterException as error:
            raise RedisConnectionError(str(error)) from error

    def refresh_topology(self) -> None:
        """Let the next command read the slot map again.

        A node did not answer in time, so another one may have taken over. redis-py does this only for failed
        connections.
        """
        self._initialize = True

    def pipeline(self, transaction: Any = None, shard_hint: Any = None) -> Any:
        return NodeTransaction(self) if transaction else NodePipeline(self, transaction)  # type: ignore[abstract]


class NodePipeline(ClusterPipeline):
    """Commands for any nodes; each node gets its commands in order."""

    async def execute(self, raise_on_error: bool = True, allow_redirections: bool = True) -> list[Any]:
        try:
            return await super().execute(raise_on_error, allow_redirections)
        except RedisClusterException as error:
            raise RedisConnectionError(str(error)) from error


class NodeTransaction(AsyncCoreCommands):
    """The equivalent of `pipeline(transaction=True)` on one server: the commands of each slot are one step. Those of
    the slot named last run after all others, so that a line in the change log comes after its change."""

    def __init__(self, client: Cluster) -> None:
        self._client = client
        self._commands: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._slots: dict[int, list[int]] = {}  # -> the commands by their place
        self._keys: dict[int, str] = {}
        self._slot: int | None = None

    async def __aenter__(self) -> NodeTransaction:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._commands.clear()

    def __len__(self) -> int:
        return len(self._commands)

    def execute_command(self, *args: Any, **options: Any) -> NodeTransaction:
        """Queue a command. The key is the first argument; a command without a key belongs to the slot of the one before
        it."""
        if len(args) > 1:
            key = args[1].decode() if isinstance(args[1], bytes) else str(args[1])
            self._slot = key_slot(key.encode())
            self._keys.setdefault(self._slot, key)
        assert self._slot is not None
        self._slots.setdefault(self._slot, []).append(len(self._commands))
        self._commands.append((args, options))
        return self

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        results: list[Any] = [None] * len(self._commands)
        slots = [*self._slots]
        for batch in (slots[:-1], slots[-1:]):
            for slot, replies in zip(batch, await self._run(batch), strict=True):
                for position, answer in zip(self._slots[slot], replies, strict=True):
                    results[position] = self._read(position, answer)
        failed = next((result for result in results if isinstance(result, Exception)), None)
        if raise_on_error and failed is not None:
            raise failed
        return results

    async def _run(self, slots: list[int]) -> list[list[Any]]:
        if len(slots) == 1:  # redirections are followed
            return [await self._client.eval(STEPS, 1, self._keys[slots[0]], *self._arguments(slots[0]))]
        async with self._client.pipeline(transaction=False) as pipe:
            for slot in slots:
                pipe.eval(STEPS, 1, self._keys[slot], *self._arguments(slot))
            return list(await pipe.execute()) if slots else []

    def _arguments(self, slot: int) -> list[Any]:
        words: list[Any] = []
        for position in self._slots[slot]:
            (name, *rest), _ = self._commands[position]
            command = [*str(name).split(), *rest]
            words += [len(command), *command]
        return words

    def _read(self, position: int, answer: Any) -> Any:
        (name, *_), options = self._commands[position]
        if isinstance(answer, Exception) or name not in self._client.response_callbacks:
            return answer
        return self._client.response_callbacks[name](answer, **options)


def key_space_of(client: Any) -> KeySpace:
    return CLUSTERED if isinstance(client, Cluster) else ONE_SERVER


def refresh_topology(client: Any) -> None:
    """Note that a call timed out, so that a cluster client reads its slot map again."""
    if isinstance(client, Cluster):
        client.refresh_topology()


async def used_memory(client: Any) -> int:
    """Return the used memory in bytes, over all servers that store answers."""
    if not isinstance(client, Cluster):
        return int((await client.info("memory"))["used_memory"])
    info = await client.info("memory", target_nodes=Cluster.PRIMARIES)
    nodes = [info] if "used_memory" in info else list(info.values())
    return sum(int(node["used_memory"]) for node in nodes)


@asynccontextmanager
async def primary_clients(client: Any) -> AsyncIterator[dict[str, Any]]:
    """Yield a client for each primary, by its address; for a single server under an empty name."""
    if not isinstance(client, Cluster):
        yield {"": client}
        return
    await client.initialize()
    async with AsyncExitStack() as stack:
        yield {node.name: await stack.enter_async_context(_connect_node(node)) for node in client.get_primaries()}


@asynccontextmanager
async def client_for_key(client: Any, key: str) -> AsyncIterator[Any]:
    """Yield a client of the server that has `key`, for commands on one connection or about the server itself."""
    if not isinstance(client, Cluster):
        yield client
        return
    await client.exists(key)  # follows the key if it has moved
    node = client.get_node_from_key(key)
    assert node is not None
    async with _connect_node(node) as owner:
        yield owner


def _connect_node(node: ClusterNode) -> redis.Redis:
    pool = redis.ConnectionPool(connection_class=node.connection_class, **node.connection_kwargs)
    return redis.Redis.from_pool(pool)
