"""Keep in the store which backend made a resource: a hash by the digest of its id, and the digests by age."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgpack

from gateway.adapters.redis.connection import Word
from gateway.adapters.redis.store import RedisStore
from gateway.adapters.redis.store_client import Script
from gateway.messages import Affinity

TTL_S = 30 * 86_400  # OpenAI keeps responses for 30 days
MAX_IDS = 200_000  # some 250 bytes each
MAX_EXPIRED = 200  # removed by one write

# KEYS: the hash, the digests by age. ARGV: the lifetime in seconds, the maximum number, then digests with their values.
ADD = Script(f"""
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function number(microseconds) return string.format('%.0f', microseconds) end
for i = 3, #ARGV, 2 do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  redis.call('ZADD', KEYS[2], number(now), ARGV[i])
end
local expired = number(now - ARGV[1] * 1000000)
local old = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', expired, 'LIMIT', 0, {MAX_EXPIRED})
local over = redis.call('ZCARD', KEYS[2]) - #old - tonumber(ARGV[2])
if over > 0 then old = redis.call('ZRANGE', KEYS[2], 0, #old + over - 1) end
for _, digest in ipairs(old) do
  redis.call('HDEL', KEYS[1], digest)
  redis.call('ZREM', KEYS[2], digest)
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[2], ARGV[1])
""")


class RedisAffinity:
    """`RedisAffinity` implements `AffinityStore`. The oldest ids go first once there are `max_ids`."""

    def __init__(self, store: RedisStore, *, timeout_s: float, max_ids: int = MAX_IDS) -> None:
        self._store = store
        self._timeout_s = timeout_s
        self._max_ids = max_ids
        self._keys = [store.names.key("affinity:makers"), store.names.key("affinity:ages")]

    async def find(self, keys: Sequence[bytes]) -> list[Affinity | None]:
        replies = await self._store.send("HMGET", self._keys[0], *keys, timeout_s=self._timeout_s)
        with self._store.reading():
            return [None if reply is None else _affinity_of(reply) for _, reply in zip(keys, replies, strict=True)]

    async def add(self, affinities: Mapping[bytes, Affinity]) -> None:
        arguments: list[Word] = [TTL_S, self._max_ids]
        for key, affinity in affinities.items():
            arguments += [key, msgpack.packb([affinity.backend, affinity.upstream])]
        await self._store.run(ADD, self._keys, arguments, self._timeout_s)


def _affinity_of(packed: bytes) -> Affinity | None:
    """Return None if a later version wrote something else."""
    try:
        backend, upstream = msgpack.unpackb(packed)
    except (ValueError, TypeError):
        return None
    return Affinity(backend, upstream) if isinstance(backend, str) and isinstance(upstream, str | None) else None
