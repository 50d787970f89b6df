"""Leases on the server that stores the answers. The key `nearhit:1:lease:FINGERPRINT` has the holder's token, and
expires.

Tokens grow with the server's clock as well as one by one. So a later lease has a higher token even if the counter was
lost by a restart or an eviction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.adapters.redis import replies
from gateway.adapters.redis.connection import Word
from gateway.adapters.redis.store import RedisStore
from gateway.adapters.redis.store_client import Script
from gateway.entries import Entry
from gateway.ports import Claim

# KEYS: the lease, the entry, the counter. ARGV: the duration of a lease in ms.
HOLDER = """
local holder = redis.call('GET', KEYS[1])
if holder then return {0, tonumber(holder)} end
"""
GRANT = """
local now = redis.call('TIME')
local token = math.max(tonumber(redis.call('GET', KEYS[3]) or '0') + 1, now[1] * 1000 + math.floor(now[2] / 1000))
local said = string.format('%.0f', token)
redis.call('SET', KEYS[3], said)
redis.call('SET', KEYS[1], said, 'PX', ARGV[1])
return {token, 0}
"""
# ARGV: also the token since which an entry prevents the lease; empty: no entry does.
ACQUIRE = Script(
    HOLDER
    + """
if ARGV[2] ~= '' then
  local entry = redis.call('HMGET', KEYS[2], 'expires', 'lease')
  if entry[1] and tonumber(entry[2] or '0') >= tonumber(ARGV[2]) then return {0, 0} end
end
"""
    + GRANT
)
LOOK_UP = Script(
    """
local record = redis.call('HGET', KEYS[2], 'record')
if record then return record end
"""
    + HOLDER
    + GRANT
)
RENEW = Script("""
local lost = {}
for i, key in ipairs(KEYS) do
  if redis.call('GET', key) == ARGV[i + 1] then redis.call('PEXPIRE', key, ARGV[1]) else lost[#lost + 1] = i end
end
return lost
""")
RELEASE = Script("""
for i, key in ipairs(KEYS) do
  if redis.call('GET', key) == ARGV[i] then redis.call('DEL', key) end
end
""")


class RedisLeases:
    """`RedisLeases` implements `Leases`, with `timeout_s` per operation, behind the breaker of `store`. A lease lasts
    `ttl_s` from its last renewal."""

    def __init__(self, store: RedisStore, *, timeout_s: float, ttl_s: float) -> None:
        self._store = store
        self._timeout_s = timeout_s
        self._ttl_ms = round(ttl_s * 1000)

    async def acquire(self, fingerprint: str, since: int | None) -> Claim:
        arguments: list[Word] = [self._ttl_ms, "" if since is None else since]
        reply = await self._store.run(ACQUIRE, self._keys_of(fingerprint), arguments, self._timeout_s)
        return self._claim_of(reply)

    async def look_up(self, fingerprint: str) -> Entry | Claim:
        reply = await self._store.run(LOOK_UP, self._keys_of(fingerprint), [self._ttl_ms], self._timeout_s)
        if isinstance(reply, bytes):
            entry = self._store.read_record(fingerprint, reply)
            return Claim(0, 0) if entry is None else entry
        return self._claim_of(reply)

    def _claim_of(self, reply: Any) -> Claim:
        with self._store.reading():
            token, holder = reply
            return Claim(int(token), int(holder))

    async def renew(self, leases: Mapping[str, int]) -> list[str]:
        lost: list[str] = []
        for names in self._store.names.group_by_list(leases).values():
            keys, arguments = self._keys(names), [self._ttl_ms, *(leases[name] for name in names)]
            gone = await self._store.run(RENEW, keys, arguments, self._timeout_s)
            with self._store.reading():
                lost += [names[int(at) - 1] for at in gone]
        return lost

    async def release(self, leases: Mapping[str, int]) -> None:
        for names in self._store.names.group_by_list(leases).values():
            keys, tokens = self._keys(names), [leases[name] for name in names]
            await self._store.run(RELEASE, keys, tokens, self._timeout_s)

    async def holders(self, fingerprints: Sequence[str]) -> list[int]:
        async def read(client: Any) -> Any:
            async with client.pipeline(transaction=False) as pipe:
                for key in self._keys(fingerprints):
                    pipe.get(key)
                return await pipe.execute()

        tokens = replies.list_of(replies.optional(replies.number), len(fingerprints))
        return [token or 0 for token in await self._store.execute(read, self._timeout_s, read=tokens)]

    def _keys_of(self, fingerprint: str) -> list[str]:
        names = self._store.names
        return [names.lease(fingerprint), names.entry(fingerprint), names.counter(fingerprint)]

    def _keys(self, fingerprints: Sequence[str]) -> list[str]:
        return list(map(self._store.names.lease, fingerprints))
