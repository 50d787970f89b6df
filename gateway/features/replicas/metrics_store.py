"""Snapshots of the metrics of all gateways on a store."""

from __future__ import annotations

from typing import Any

from gateway.adapters.redis import replies
from gateway.adapters.redis.cluster import key_space_of
from gateway.adapters.redis.store import RedisStore

TIMEOUT_S = 2.0

MAX_GATEWAYS = 256  # maximum read at once, because other programs may have written anything

# One step, on the store's clock: a gateway silent for the given seconds is removed by the next one that publishes.
# KEYS: metrics, publication times; ARGV: name, metrics, seconds.
PUBLISH = """
local now = tonumber(redis.call('TIME')[1])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], now, ARGV[1])
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now - ARGV[3])) do
  redis.call('HDEL', KEYS[1], gone)
  redis.call('ZREM', KEYS[2], gone)
end
redis.call('EXPIRE', KEYS[1], ARGV[3])
redis.call('EXPIRE', KEYS[2], ARGV[3])
"""


class MetricsSnapshots:
    """`MetricsSnapshots` implements `MetricsStore`. `gateway` is the name of this gateway."""

    def __init__(self, store: RedisStore, client: Any, gateway: str) -> None:
        self._store = store
        self._gateway = gateway
        names = key_space_of(client)
        self._keys = names.key("figures"), names.key("figures:spoken")

    async def publish(self, figures: bytes, keep_s: int) -> None:
        async def write(client: Any) -> None:
            await client.eval(PUBLISH, 2, *self._keys, self._gateway, figures, keep_s)

        await self._store.execute(write, TIMEOUT_S, read=replies.nothing)

    async def others(self) -> list[bytes]:
        metrics = replies.map_of(replies.data, replies.data)
        all_figures = await self._store.execute(lambda client: client.hgetall(self._keys[0]), TIMEOUT_S, read=metrics)
        own = self._gateway.encode()
        return [figures for name, figures in all_figures.items() if name != own][:MAX_GATEWAYS]
