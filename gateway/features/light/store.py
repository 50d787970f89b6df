"""The rollouts in the store, so that all gateways agree: their state, the evidence, and questions for the training."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgpack

from gateway.adapters.redis import replies
from gateway.adapters.redis.store import RedisStore
from gateway.features.light.rows import AnsweredRow
from gateway.features.light.state import Rollout

TIMEOUT_S = 5.0
MAX_ROWS = 20_000  # of a route, some 200 bytes each
EVIDENCE_KEPT_S = 30 * 86_400
BATCH = 500  # rows that one command reads or removes

# KEYS: the rollout. ARGV: the revision that it must have, the record. A gateway that read an older one changes nothing.
REPLACE = """
local old = redis.call('GET', KEYS[1])
if old then
  local fine, value = pcall(cjson.decode, old)
  if fine and type(value) == 'table' and value['revision'] ~= tonumber(ARGV[1]) then return 0 end
end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""


def _page(key: str, first: int) -> Callable[[Any], Awaitable[Any]]:
    return lambda client: client.lrange(key, first, first + BATCH - 1)


class RolloutStore:
    """`RolloutStore` reads and writes the rollouts. Every failure is `StoreUnavailable`."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    async def read(self, route: str) -> Rollout:
        """Return the rollout of a route; an empty one if there is none."""
        key = self._key("state", route)
        found = await self._store.execute(
            lambda client: client.get(key), TIMEOUT_S, read=replies.optional(replies.data)
        )
        return Rollout.of(found)

    async def replace(self, route: str, old: Rollout, packed: bytes) -> bool:
        """Write a rollout in place of `old`. Return False if another gateway has changed it since."""
        key = self._key("state", route)
        return await self._store.execute(
            lambda client: client.eval(REPLACE, 1, key, old.revision, packed), TIMEOUT_S, read=replies.truth
        )

    async def claim(self, route: str, seconds: float) -> bool:
        """Return whether this gateway is the one that judges the rollout for that time."""
        key, read = self._key("turn", route), replies.optional(replies.truth)
        return bool(
            await self._store.execute(
                lambda client: client.set(key, b"1", nx=True, px=round(1e3 * seconds)), TIMEOUT_S, read=read
            )
        )

    async def release(self, route: str) -> None:
        """Give the turn back before its time."""
        key = self._key("turn", route)
        await self._store.execute(lambda client: client.delete(key), TIMEOUT_S, read=replies.nothing)

    async def count(self, route: str, epoch: int, counts: Mapping[str, int]) -> None:
        """Add to the evidence of an epoch."""
        key = self._key("evidence", f"{epoch}:{route}")

        async def add(client: Any) -> None:
            async with client.pipeline(transaction=False) as pipe:
                for name, count in counts.items():
                    pipe.hincrby(key, name, count)
                pipe.expire(key, EVIDENCE_KEPT_S)
                await pipe.execute()

        await self._store.execute(add, TIMEOUT_S, read=replies.nothing)

    async def evidence(self, route: str, epoch: int) -> dict[str, int]:
        """Return the counts of an epoch."""
        key = self._key("evidence", f"{epoch}:{route}")

        def read(reply: Any) -> dict[str, int]:
            return {replies.text(name): replies.count(value) for name, value in reply.items()}

        return await self._store.execute(lambda client: client.hgetall(key), TIMEOUT_S, read=read)

    async def add_rows(self, route: str, rows: Sequence[AnsweredRow]) -> None:
        """Add rows. The oldest of a route go when it has more than `MAX_ROWS`."""
        key, packed = self._key("rows", route), [msgpack.packb(row) for row in rows]

        async def add(client: Any) -> None:
            async with client.pipeline(transaction=False) as pipe:
                pipe.sadd(self._key("routes", "all"), route)
                pipe.rpush(key, *packed)
                pipe.ltrim(key, -MAX_ROWS, -1)
                await pipe.execute()

        await self._store.execute(add, TIMEOUT_S, read=replies.nothing)

    async def rows(self, route: str) -> list[AnsweredRow]:
        """Return all rows of a route, the oldest first. Rows that cannot be read are left out."""
        key = self._key("rows", route)
        found: list[AnsweredRow] = []
        for first in range(0, MAX_ROWS, BATCH):
            page = await self._store.execute(_page(key, first), TIMEOUT_S, read=replies.list_of(replies.data))
            found += [row for data in page if (row := AnsweredRow.of(data)) is not None]
            if len(page) < BATCH:
                break
        return found

    async def routes(self) -> list[str]:
        """Return the routes that have rows, those that no policy has any more included."""
        key = self._key("routes", "all")
        return await self._store.execute(
            lambda client: client.smembers(key), TIMEOUT_S, read=lambda reply: sorted(map(replies.text, reply))
        )

    async def remove_rows(self, route: str, rows: Sequence[AnsweredRow]) -> None:
        key = self._key("rows", route)

        async def remove(client: Any) -> None:
            async with client.pipeline(transaction=False) as pipe:
                for row in rows:
                    pipe.lrem(key, 0, msgpack.packb(row))
                await pipe.execute()

        await self._store.execute(remove, TIMEOUT_S, read=replies.nothing)

    def _key(self, kind: str, name: str) -> str:
        return self._store.names.key(f"rollout:{kind}:{name}")
