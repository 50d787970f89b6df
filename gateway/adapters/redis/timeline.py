"""The dashboard's history in the store: a hash for each slot, with a field for each process.

A repeated write changes nothing. The parts of several gateways, or of one before and after a restart, add up.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import msgpack

from gateway.adapters.redis import replies
from gateway.adapters.redis.keyspace import PREFIX
from gateway.adapters.redis.store import RedisStore
from gateway.ports import Slot

TIMEOUT_S = 5.0  # per batch; nobody waits for it

BATCH = 100  # slots
STARTING = 1_008  # slots that a start reads at once; a new store has none of them

# maximum read from a slot and from a part, because other programs may have written anything
MAX_PARTS, MAX_SERIES = 64, 512


class RedisTimeline:
    """The history of the dashboard in the store."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self.name = secrets.token_hex(8)

    async def write(self, parts: Mapping[Slot, Mapping[str, float]], keep: Mapping[int, int]) -> None:
        async def write(client: Any) -> None:
            async with client.pipeline(transaction=False) as pipe:
                for (step_s, number), part in parts.items():
                    pipe.hset(_key((step_s, number)), self.name, msgpack.packb(dict(part)))
                    pipe.expireat(_key((step_s, number)), number * step_s + keep[step_s])
                await pipe.execute()

        await self._store.execute(write, TIMEOUT_S, read=replies.nothing)

    async def read(self, slots: Iterable[Slot]) -> Mapping[Slot, Mapping[str, Mapping[str, float]]]:
        wanted, found = list(slots), {}
        if len(wanted) > BATCH and not await self._any_exists(wanted[:STARTING]):
            wanted = wanted[STARTING:]
        for at in range(0, len(wanted), BATCH):
            some = wanted[at : at + BATCH]
            for slot, values in zip(some, await self._read(some), strict=True):
                if parts := _parts(values):
                    found[slot] = parts
        return found

    async def _any_exists(self, slots: Sequence[Slot]) -> bool:
        keys = list(map(_key, slots))
        return await self._store.execute(lambda client: client.exists(*keys), TIMEOUT_S, read=replies.truth)

    async def _read(self, slots: Sequence[Slot]) -> list[dict[bytes, bytes]]:
        keys = [_key(slot) for slot in slots]

        async def read(client: Any) -> list[dict[bytes, bytes]]:
            # One command for each key takes 20 ms of a start, and a new store has none of them.
            if not await client.exists(*keys):
                return [{} for _ in keys]
            async with client.pipeline(transaction=False) as pipe:
                for key in keys:
                    pipe.hgetall(key)
                return list(await pipe.execute())

        hashes = replies.list_of(replies.map_of(replies.data, replies.data), len(keys))
        return await self._store.execute(read, TIMEOUT_S, read=hashes)


def _key(slot: Slot) -> str:
    step_s, number = slot
    return f"{PREFIX}timeline:{step_s}:{number}"


def _parts(values: Mapping[bytes, bytes]) -> dict[str, Mapping[str, float]]:
    """Return the parts of a slot by the names of their processes, without malformed ones."""
    parts = ((name, _part(value)) for name, value in islice(values.items(), MAX_PARTS))
    return {name.decode(errors="replace"): part for name, part in parts if part is not None}


def _part(data: bytes) -> Mapping[str, float] | None:
    """Return None for malformed data."""
    try:
        value = msgpack.unpackb(data)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    if not isinstance(value, dict) or len(value) > MAX_SERIES:
        return None
    whole = all(isinstance(k, str) and isinstance(v, int | float) for k, v in value.items())
    return value if whole else None
