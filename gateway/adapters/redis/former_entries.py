"""Move entries with the names of a former version to those of this version, in the store of one gateway.

A shared store keeps both: gateways of the former version may still use theirs, until they expire.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from gateway.adapters.redis import replies
from gateway.adapters.redis.store import SCAN_BATCH, RedisStore

TIMEOUT_S = 10.0  # per command; nobody waits for it
# KEYS: the former list, the list, then former and present name of each entry. ARGV: the expiry and the fingerprint of
# each. An entry that was stored since stays. The expiry of a key moves with it.
MOVE = """
for i = 3, #KEYS, 2 do
  local expires, name = ARGV[i - 2], ARGV[i - 1]
  if redis.call('EXISTS', KEYS[i]) == 1 then
    if redis.call('RENAMENX', KEYS[i], KEYS[i + 1]) == 1 then redis.call('ZADD', KEYS[2], expires, name)
    else redis.call('UNLINK', KEYS[i]) end
  end
  redis.call('ZREM', KEYS[1], name)
end
return 1
"""


async def adopt_former(store: RedisStore) -> None:
    """Move all entries. A run that was cut off is repeated. Raise `StoreUnavailable`."""
    for former in store.former():
        async for members in former.listed(SCAN_BATCH, TIMEOUT_S):
            await store.execute(partial(_move, former, store, dict(members)), TIMEOUT_S, read=replies.nothing)


async def _move(former: RedisStore, store: RedisStore, members: dict[str, float], client: Any) -> None:
    async with client.pipeline(transaction=False) as pipe:
        for former_list, names in former.names.group_by_list(members).items():
            keys = [former_list, store.names.list_key(names[0])]
            arguments: list[Any] = []
            for name in names:
                keys += [former.names.entry(name), store.names.entry(name)]
                arguments += [repr(members[name]), name]
            pipe.eval(MOVE, len(keys), *keys, *arguments)
        await pipe.execute()
