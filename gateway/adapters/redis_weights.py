"""What each entry of the store weighs; and the list of entries made true where the server has let some go by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from gateway.adapters.redis_store import ENTRIES, SCAN_BATCH, RedisStore, entry_key
from gateway.ports import Clock, Weight

TIMEOUT_S = 10.0  # of a page; nobody waits for it
# In one step, so that what is stored anew in the same moment stays listed. KEYS: the list, then each entry; ARGV: the
# members of the list.
WEIGH = """
local found = {}
for i = 2, #KEYS do
  local size = redis.call('HSTRLEN', KEYS[i], 'record')
  if size == 0 then
    redis.call('ZREM', KEYS[1], ARGV[i - 1])
  else
    size = size + redis.call('HSTRLEN', KEYS[i], 'vector') + redis.call('HSTRLEN', KEYS[i], 'former')
  end
  found[2 * i - 3] = size
  found[2 * i - 2] = redis.call('HGET', KEYS[i], 'worth') or ''
end
return found
"""


class RedisWeights:
    def __init__(self, store: RedisStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def weights(self) -> AsyncIterator[Sequence[Weight]]:
        cursor = 0
        while True:
            scan = partial(_page, cursor)
            cursor, members = await self._store.execute(scan, TIMEOUT_S)
            if members:
                yield await self._weighed([(name.decode(), expires) for name, expires in members])
            if cursor == 0:
                return

    async def _weighed(self, members: Sequence[tuple[str, float]]) -> Sequence[Weight]:
        names = [name for name, _ in members]
        keys = [ENTRIES, *map(entry_key, names)]
        found = await self._store.execute(lambda client: client.eval(WEIGH, len(keys), *keys, *names), TIMEOUT_S)
        now = self._clock.wall()
        return [
            Weight(name, int(size), float(worth or 1e-6), expires <= now)
            for (name, expires), size, worth in zip(members, found[::2], found[1::2], strict=True)
        ]


async def _page(cursor: int, client: Any) -> tuple[int, list[tuple[bytes, float]]]:
    cursor, members = await client.zscan(ENTRIES, cursor, count=SCAN_BATCH)
    return cursor, members
