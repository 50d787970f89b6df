"""Bans and the scan of all entries, on the server that stores the answers.

The limits here suit an operator, who can wait a little longer than a request.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from gateway.adapters.redis import replies
from gateway.adapters.redis.cluster import client_for_key
from gateway.adapters.redis.durability import is_durable, replicas_of, request_durability
from gateway.adapters.redis.entry_pages import read_entries
from gateway.adapters.redis.records import VERSION, RecordInvalid
from gateway.adapters.redis.store import VECTOR_FIELDS, RedisStore, stored_vector
from gateway.entries import EmbeddedVector, Entry
from gateway.errors import StoreUnavailable
from gateway.ports import ChangeKind

TIMEOUT_S = 5.0
POLL_TIMEOUT_S = 0.25
# Maximum step of the version. Steps are random: after a failover that lost the last steps, a new version must not equal
# one seen before.
MAX_STEP = 2**20
STEP = 50  # entries decoded at once: each takes 100 us of CPU, or 200 for an export, before the event loop continues
Record = tuple[Entry, EmbeddedVector | None]


class RedisPurges:
    record_version = VERSION

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._has_former = False  # whether entries of former versions were ever seen; a removal reads them first
        self._bans, self._version = store.names.key("bans"), store.names.key("bans:version")

    async def version(self) -> bytes:
        """Return the version of the bans. This bypasses the breaker: it polls all the time, and would take the probe of
        a half-open breaker from a request."""
        reply = await self._store.poll("GET", self._version, timeout_s=POLL_TIMEOUT_S)
        with self._store.reading():
            return b"" if reply is None else replies.data(reply)

    async def bans(self) -> list[bytes]:
        values = replies.list_of(replies.data)
        return await self._store.execute(lambda client: client.hvals(self._bans), TIMEOUT_S, read=values)

    async def write_bans(self, bans: Mapping[str, bytes], drop: Sequence[str]) -> bool:
        async def write(client: Any) -> bool:
            async with client_for_key(client, self._bans) as owner:
                durable = await write_there(owner)
            await self._store.publish_change(ChangeKind.BANS)
            return durable

        async def write_there(client: Any) -> bool:
            replicas = await replicas_of(client)
            # Add new bans before dropping those that they replace, and change the version last.
            async with client.pipeline(transaction=False) as pipe:
                pipe.hset(self._bans, mapping=dict(bans))
                if drop:
                    pipe.hdel(self._bans, *drop)
                pipe.incrby(self._version, 1 + secrets.randbelow(MAX_STEP))
                if command := self._store.change_command(ChangeKind.BANS):
                    pipe.execute_command(*command)
                written = len(pipe)
                request_durability(pipe, replicas)
                outcomes = await pipe.execute(raise_on_error=False)
            for outcome in outcomes[:written]:
                if isinstance(outcome, Exception):
                    raise StoreUnavailable(f"the store refused: {outcome}"[:300])
            return is_durable(outcomes[written:], replicas)

        return await self._store.execute(write, TIMEOUT_S, read=bool)

    async def latest_expiry(self) -> float:
        async def read(client: Any) -> Any:
            async with client.pipeline(transaction=False) as pipe:
                for names in (self._store.names, *self._store.names.former):
                    for key in names.list_keys:
                        pipe.zrange(key, -1, -1, withscores=True)
                return await pipe.execute()

        ends = replies.list_of(replies.list_of(lambda member: float(member[1])))
        return max((last[0] for last in await self._store.execute(read, TIMEOUT_S, read=ends) if last), default=0.0)

    async def records(
        self, embedder: str, *, unreadable: Callable[[str], None] | None = None
    ) -> AsyncIterator[list[Record]]:
        # the former ones first: a start may move them to the others meanwhile (`former_entries`)
        for store in (*(self._store.former() if unreadable is not None else ()), self._store):
            async for rows in read_entries(store, ("record", *VECTOR_FIELDS), TIMEOUT_S):
                self._has_former = self._has_former or store is not self._store
                for at in range(0, len(rows), STEP):
                    items = []
                    for name, row in rows[at : at + STEP]:
                        record = self._record(name, row, embedder)
                        if record is not None:
                            items.append(record)
                        elif unreadable is not None:
                            unreadable(name)
                    yield items
                    await asyncio.sleep(0)

    async def delete(self, fingerprints: Sequence[str]) -> int:
        former = [await store.delete(fingerprints) for store in self._store.former()] if self._has_former else []
        return await self._store.delete(fingerprints) + sum(former)

    def _record(self, name: str, row: Sequence[bytes | None], embedder: str) -> Record | None:
        data, *rest = row
        if data is None:
            return None
        try:
            entry = self._store.codec.decode(data, name)
        except RecordInvalid:  # no client is served it either
            return None
        wanted = embedder.encode() or rest[2] or b""  # without an embedder of its own, a gateway takes the entry's
        stored = stored_vector(name, rest, wanted)
        return entry, None if stored is None else EmbeddedVector(stored.vector, wanted.decode(errors="replace"))
