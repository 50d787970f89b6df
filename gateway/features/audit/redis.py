"""The list of actions in the store: bounded, of all gateways that use the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.adapters.redis import replies
from gateway.adapters.redis.keyspace import PREFIX
from gateway.adapters.redis.store import RedisStore

AUDIT = PREFIX + "audit"
MAX_AUDIT = 1_000
TIMEOUT_S = 5.0  # an operator can wait longer than a request


@dataclass(frozen=True, slots=True)
class RedisAudit:
    """`RedisAudit` keeps the last `MAX_AUDIT` lines. Each method raises `StoreUnavailable`."""

    store: RedisStore

    async def add(self, line: bytes) -> None:
        async def write(client: Any) -> None:
            async with client.pipeline(transaction=True) as pipe:
                pipe.lpush(AUDIT, line)
                pipe.ltrim(AUDIT, 0, MAX_AUDIT - 1)
                await pipe.execute()

        await self.store.execute(write, TIMEOUT_S, read=replies.nothing)

    async def latest(self, limit: int) -> list[bytes]:
        """Return lines, youngest first."""
        lines = replies.list_of(replies.data)
        return await self.store.execute(lambda client: client.lrange(AUDIT, 0, limit - 1), TIMEOUT_S, read=lines)
