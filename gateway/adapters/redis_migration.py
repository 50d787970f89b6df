"""Entries whose vector is another embedding model's, and how each is given one of the model in use."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from gateway.adapters.redis_store import ENTRIES, SCAN_BATCH, RedisStore, entry_key
from gateway.cache.records import RecordInvalid, decode
from gateway.messages import Vector
from gateway.ports import Foreign

TIMEOUT_S = 10.0  # of one command; nobody waits for it
# In one step: what has been deleted, has expired or was answered anew meanwhile has no such record any more, and is
# left as it is. The expiry of the key stays. KEYS: the entry; ARGV: the SHA-1 of the record that was read, the
# vector, the embedder.
REPLACE = """
local record = redis.call('HGET', KEYS[1], 'record')
if not record or redis.sha1hex(record) ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'vector', ARGV[2], 'embedder', ARGV[3])
return 1
"""


class RedisMigration:
    """Implements `MigrationStore`. `embedder`: the fingerprint of the model in use."""

    def __init__(self, store: RedisStore, *, embedder: str) -> None:
        self._store = store
        self._embedder = embedder.encode()

    async def foreign(self) -> AsyncIterator[Sequence[str]]:
        cursor = 0
        while True:
            cursor, members = await self._store.execute(partial(_page, cursor), TIMEOUT_S)
            names = list(dict.fromkeys(name.decode() for name, _ in members))
            made_by = await self._store.execute(partial(_embedders, names), TIMEOUT_S) if names else []
            yield [name for name, by in zip(names, made_by, strict=True) if by is not None and by != self._embedder]
            if cursor == 0:
                return

    async def read(self, fingerprint: str) -> Foreign | None:
        key = entry_key(fingerprint)
        data: bytes | None = await self._store.execute(lambda client: client.hget(key, "record"), TIMEOUT_S)
        if data is None:
            return None
        try:
            entry = decode(data)
        except RecordInvalid:  # nobody is served it either
            entry = None
        if entry is not None and entry.fingerprint != fingerprint:
            entry = None
        return Foreign(entry, hashlib.sha1(data, usedforsecurity=False).hexdigest())

    async def replace(self, fingerprint: str, version: str, vector: Vector) -> bool:
        arguments = [entry_key(fingerprint), version, vector.astype("<f4").tobytes(), self._embedder]
        return bool(await self._store.execute(lambda client: client.eval(REPLACE, 1, *arguments), TIMEOUT_S))


async def _page(cursor: int, client: Any) -> tuple[int, list[tuple[bytes, float]]]:
    cursor, members = await client.zscan(ENTRIES, cursor, count=SCAN_BATCH)
    return cursor, members


async def _embedders(names: Sequence[str], client: Any) -> list[bytes | None]:
    async with client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.hget(entry_key(name), "embedder")
        return list(await pipe.execute())
