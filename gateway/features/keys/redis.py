"""API keys on the server that stores the answers: records by id, and ids by the SHA-256 of a key.

They have no expiry, so a server that evicts only keys with an expiry (`volatile-lru`, as the embedded one) keeps them.
"""

from __future__ import annotations

from typing import Any

from gateway.adapters.redis import replies
from gateway.adapters.redis.cluster import client_for_key
from gateway.adapters.redis.durability import is_durable, replicas_of, request_durability
from gateway.adapters.redis.store import RedisStore
from gateway.adapters.redis.store_client import Script
from gateway.errors import StoreUnavailable
from gateway.features.keys.records import KeyChange, VersionConflict

TIMEOUT_S = 5.0  # an operator can wait longer than a request
POLL_TIMEOUT_S = 0.25
OPTIONAL = replies.optional(replies.data)
# KEYS: the digests, the records. ARGV: a digest.
FIND = Script("""
local id = redis.call('HGET', KEYS[1], ARGV[1])
return id and redis.call('HGET', KEYS[2], id)
""")
# KEYS: the records, the digests, the version. ARGV: the id; the old record and the new one, each empty for none; the
# number of digests that map to the id; those digests, and then the digests to remove.
SWAP = """
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then return 0 end
if ARGV[3] == '' then redis.call('HDEL', KEYS[1], ARGV[1]) else redis.call('HSET', KEYS[1], ARGV[1], ARGV[3]) end
for i = 5, #ARGV do
  if i < 5 + ARGV[4] then redis.call('HSET', KEYS[2], ARGV[i], ARGV[1]) else redis.call('HDEL', KEYS[2], ARGV[i]) end
end
redis.call('INCR', KEYS[3])
return 1
"""


class RedisApiKeys:
    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._keys, self._digests, self._version = map(store.names.key, ("keys", "keys:digests", "keys:version"))

    async def version(self) -> bytes:
        """Return the version. Like that of purges, it bypasses the breaker (`gateway.adapters.redis.purge`)."""
        version = self._bytes_of(await self._store.poll("GET", self._version, timeout_s=POLL_TIMEOUT_S))
        return version or b""

    async def by_digest(self, digest: str) -> bytes | None:
        return self._bytes_of(await self._store.run(FIND, [self._digests, self._keys], [digest], POLL_TIMEOUT_S))

    async def by_id(self, identity: str) -> bytes | None:
        return await self._store.execute(lambda client: client.hget(self._keys, identity), TIMEOUT_S, read=OPTIONAL)

    def _bytes_of(self, reply: Any) -> bytes | None:
        with self._store.reading():
            return OPTIONAL(reply)

    async def listed(self) -> list[bytes]:
        values = replies.list_of(replies.data)
        return await self._store.execute(lambda client: client.hvals(self._keys), TIMEOUT_S, read=values)

    async def swap(self, change: KeyChange, *, synced: bool = False) -> bool:
        arguments = [change.id, change.old or b"", change.new or b"", len(change.digests)]
        arguments += [*change.digests, *change.gone]

        async def write(client: Any) -> tuple[bool, bool]:
            async with client_for_key(client, self._keys) as owner:
                return await write_there(owner)

        async def write_there(client: Any) -> tuple[bool, bool]:
            replicas = await replicas_of(client) if synced else 0
            async with client.pipeline(transaction=False) as pipe:
                pipe.eval(SWAP, 3, self._keys, self._digests, self._version, *arguments)
                if synced:
                    request_durability(pipe, replicas)
                outcomes = await pipe.execute(raise_on_error=False)
            if isinstance(outcomes[0], Exception):
                raise StoreUnavailable(f"the store refused: {outcomes[0]}"[:300])
            return replies.truth(outcomes[0]), synced and is_durable(outcomes[1:], replicas)

        swapped, durable = await self._store.execute(write, TIMEOUT_S, read=tuple[bool, bool])
        if not swapped:
            raise VersionConflict
        return durable
