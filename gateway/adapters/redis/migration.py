"""Migration of entries to another embedding model.

It finds entries with a vector of another model, and gives each one a vector of the model in use. The former vectors
stay until lookups have switched.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from gateway.adapters.redis import replies
from gateway.adapters.redis.keyspace import PREFIX
from gateway.adapters.redis.records import RecordInvalid
from gateway.adapters.redis.store import SCAN_BATCH, RedisStore
from gateway.entries import Vector
from gateway.ports import ChangeKind, ForeignEntry

# a hash: the embedder that lookups use (`serving`), and the one for which the others' vectors were dropped (`tidied`)
SPACE = PREFIX + "space"
TIMEOUT_S = 10.0  # per command; nobody waits for it
OPTIONAL = replies.optional(replies.data)
# One step: an entry that was deleted, has expired or was fetched again does not have this record any more, and stays
# unchanged. The expiry of the key stays. KEYS: the entry; ARGV: the SHA-1 of the record that was read, the vector, the
# embedder, the embedder whose vector is kept as well, and the change log command.
REPLACE = """
local record = redis.call('HGET', KEYS[1], 'record')
if not record or redis.sha1hex(record) ~= ARGV[1] then return 0 end
local before = redis.call('HGET', KEYS[1], 'embedder')
if before and before == ARGV[4] then
  redis.call('HSET', KEYS[1], 'former', redis.call('HGET', KEYS[1], 'vector'), 'former_embedder', before)
end
redis.call('HSET', KEYS[1], 'vector', ARGV[2], 'embedder', ARGV[3])
if ARGV[5] then redis.call(unpack(ARGV, 5)) end
return 1
"""
# KEYS: entries; ARGV: the embedder in use. If an operator went back to the former embedder, its vector is the one that
# stays.
DROP_FORMER = """
for _, key in ipairs(KEYS) do
  local former = redis.pcall('HGET', key, 'former_embedder')  -- an error if the key has another type: it is no entry
  if type(former) == 'string' then
    if former == ARGV[1] then
      redis.call('HSET', key, 'vector', redis.call('HGET', key, 'former'), 'embedder', former)
    end
    redis.call('HDEL', key, 'former', 'former_embedder')
  end
end
return 1
"""


class RedisMigration:
    """`RedisMigration` implements `MigrationStore`. `embedder` is the fingerprint of the model in use."""

    def __init__(self, store: RedisStore, *, embedder: str) -> None:
        self._store = store
        self._embedder = embedder.encode()

    async def foreign(self) -> AsyncIterator[Sequence[str]]:
        async for names in self._pages():
            made_by = await self._store.fields_of(names, ("embedder", "former_embedder"), TIMEOUT_S)
            yield [name for name, by in zip(names, made_by, strict=True) if self._needs_embedding(by)]

    def _needs_embedding(self, made_by: Sequence[bytes | None]) -> bool:
        """Return whether the entry needs a vector. Entries without any vector, from routes without a semantic cache,
        get none."""
        return made_by[0] is not None and self._embedder not in made_by

    async def _pages(self) -> AsyncIterator[list[str]]:
        async for members in self._store.listed(SCAN_BATCH, TIMEOUT_S):
            yield list(dict.fromkeys(name for name, _ in members))

    async def read(self, fingerprint: str) -> ForeignEntry | None:
        fields = ("record", "embedder", "former_embedder")
        data, *made_by = await self._store.execute(
            lambda client: client.hmget(self._store.names.entry(fingerprint), *fields),
            TIMEOUT_S,
            read=replies.list_of(OPTIONAL, len(fields)),
        )
        if data is None or not self._needs_embedding(made_by):
            return None
        try:
            entry = self._store.codec.decode(data, fingerprint)
        except RecordInvalid:  # no client is served it either
            entry = None
        if entry is not None and entry.fingerprint != fingerprint:
            entry = None
        return ForeignEntry(entry, hashlib.sha1(data, usedforsecurity=False).hexdigest())

    async def replace(self, fingerprint: str, version: str, vector: Vector, keep: str = "") -> bool:
        arguments: list[Any] = [version, vector.astype("<f4").tobytes(), self._embedder, keep]
        arguments += self._store.change_command(ChangeKind.VECTORS, fingerprint)

        async def replace(client: Any) -> Any:
            async with client.pipeline(transaction=False) as pipe:
                if keep:  # the kept vector has to be dropped later
                    pipe.hdel(SPACE, "tidied")
                pipe.eval(REPLACE, 1, self._store.names.entry(fingerprint), *arguments)
                return await pipe.execute()

        replaced = await self._store.execute(replace, TIMEOUT_S, read=replies.last(replies.truth))
        if replaced:
            await self._store.publish_change(ChangeKind.VECTORS, fingerprint)
        return replaced

    async def is_settled(self) -> bool:
        serving = await self._store.execute(lambda client: client.hget(SPACE, "serving"), TIMEOUT_S, read=OPTIONAL)
        return serving == self._embedder

    async def settle(self) -> None:
        serving, tidied = await self._store.execute(
            lambda client: client.hmget(SPACE, "serving", "tidied"), TIMEOUT_S, read=replies.list_of(OPTIONAL, 2)
        )
        if serving != self._embedder:  # first of all: drop nothing that a restart would still use
            await self._mark("serving")
        if serving == tidied == self._embedder:
            return
        async for names in self._pages():
            for group in self._store.names.group_by_list(names).values():
                keys = list(map(self._store.names.entry, group))
                await self._store.execute(partial(_drop_former, keys, self._embedder), TIMEOUT_S, read=replies.nothing)
        await self._mark("tidied")

    async def _mark(self, field: str) -> None:
        await self._store.execute(
            lambda client: client.hset(SPACE, field, self._embedder), TIMEOUT_S, read=replies.nothing
        )


async def _drop_former(keys: Sequence[str], embedder: bytes, client: Any) -> None:
    await client.eval(DROP_FORMER, len(keys), *keys, embedder)
