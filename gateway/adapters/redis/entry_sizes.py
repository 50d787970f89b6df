"""The size of each entry in the store. Reading the sizes also removes evicted entries from the list."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gateway.adapters.redis import replies
from gateway.adapters.redis.store import SCAN_BATCH, RedisStore
from gateway.ports import Clock, EntrySize

TIMEOUT_S = 10.0  # per page; nobody waits for it
# One step, so that an entry stored at the same moment stays listed. KEYS: the list, then each entry; ARGV: the members
# of the list.
WEIGH = """
local found = {}
for i = 2, #KEYS do
  local size = redis.pcall('HSTRLEN', KEYS[i], 'record')  -- an error if the key has another type: it is no entry then
  local worth = ''
  if type(size) ~= 'number' or size == 0 then
    size = 0
    redis.call('ZREM', KEYS[1], ARGV[i - 1])
  else
    size = size + redis.call('HSTRLEN', KEYS[i], 'vector') + redis.call('HSTRLEN', KEYS[i], 'former')
    worth = redis.call('HGET', KEYS[i], 'worth') or ''
  end
  found[2 * i - 3] = size
  found[2 * i - 2] = worth
end
return found
"""


LEAST_WORTH = 1e-6  # dollars; for an entry whose worth is missing or no number


def _worth(text: bytes) -> float:
    try:
        worth = float(replies.data(text))
    except ValueError:
        return LEAST_WORTH
    return worth if 0.0 < worth < math.inf else LEAST_WORTH


@dataclass(slots=True, eq=False)
class RedisEntrySizes:
    store: RedisStore
    clock: Clock

    async def weights(self) -> AsyncIterator[Sequence[EntrySize]]:
        async for members in self.store.listed(SCAN_BATCH, TIMEOUT_S):
            yield await self._sizes_of(dict(members))

    async def _sizes_of(self, members: Mapping[str, float]) -> Sequence[EntrySize]:
        groups = self.store.names.group_by_list(members)
        now = self.clock.wall()

        def read(weighed: Any) -> list[EntrySize]:
            weights = []
            for names, reply in zip(groups.values(), weighed, strict=True):
                for name, size, worth in zip(names, reply[::2], reply[1::2], strict=True):
                    weights.append(EntrySize(name, replies.count(size), _worth(worth), members[name] <= now))
            return weights

        return await self.store.execute(partial(self._weigh, groups), TIMEOUT_S, read=read)

    async def _weigh(self, groups: Mapping[str, Sequence[str]], client: Any) -> Any:
        async with client.pipeline(transaction=False) as pipe:
            for listed, names in groups.items():
                keys = [listed, *map(self.store.names.entry, names)]
                pipe.eval(WEIGH, len(keys), *keys, *names)
            return await pipe.execute()
