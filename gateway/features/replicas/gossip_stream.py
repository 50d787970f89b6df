"""Messages between gateways that are not about stored entries: a second, shorter stream, and lists for replies.

The stream is separate from the change log. Otherwise a thousand labels with their vectors could push out changes that
an index needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.exceptions import RedisError

from gateway.adapters.redis import replies
from gateway.adapters.redis.keyspace import PREFIX
from gateway.adapters.redis.store import RedisStore
from gateway.errors import StoreUnavailable
from gateway.features.replicas.change_log import GOSSIP_KEY, MAX_GOSSIP_ENTRIES, ChangeLogReader
from gateway.ports import ChangeKind

TIMEOUT_S = 2.0
REPLY_TTL_S = 10


class GossipStream(ChangeLogReader):
    """`GossipStream` implements `GossipLog`."""

    def __init__(self, store: RedisStore, client: Any, gateway: str) -> None:
        super().__init__(client, GOSSIP_KEY)
        self._store = store
        self._gateway = gateway

    async def append(self, values: Sequence[str]) -> str:
        async def write(client: Any) -> Any:
            async with client.pipeline(transaction=False) as pipe:
                for value in values:
                    fields = {"by": self._gateway, ChangeKind.GOSSIP.value: value}
                    pipe.xadd(GOSSIP_KEY, fields, maxlen=MAX_GOSSIP_ENTRIES, approximate=True)
                return await pipe.execute()

        return await self._store.execute(write, TIMEOUT_S, read=replies.last(replies.text))


class ReplyQueue:
    """`ReplyQueue` implements `Replies`: one list per question, which expires after some seconds."""

    def __init__(self, store: RedisStore, client: Any) -> None:
        self._store = store
        self._client = client

    async def reply(self, name: str, answer: bytes) -> None:
        async def write(client: Any) -> None:
            async with client.pipeline(transaction=True) as pipe:
                pipe.lpush(_key(name), answer)
                pipe.expire(_key(name), REPLY_TTL_S)
                await pipe.execute()

        await self._store.execute(write, TIMEOUT_S, read=replies.nothing)

    async def wait(self, name: str, seconds: float) -> bytes | None:
        """Wait on a separate connection, so that it takes none of the requests' permits."""
        try:
            async with asyncio.timeout(seconds + TIMEOUT_S):
                popped = await self._client.blpop(_key(name), timeout=seconds)
            return None if popped is None else replies.data(popped[1])
        except (RedisError, OSError, TimeoutError, *replies.UNREADABLE) as error:
            raise StoreUnavailable(f"the store failed: {type(error).__name__}") from None


def _key(name: str) -> str:
    return f"{PREFIX}reply:{name}"
