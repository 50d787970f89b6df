"""The policy that the gateways on one store share: the last one, complete, and the hashes of earlier ones."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import orjson

from gateway.adapters.redis import replies
from gateway.adapters.redis.cluster import key_space_of
from gateway.adapters.redis.store import RedisStore
from gateway.ports import Lineage, PublishedPolicy

TIMEOUT_S = 2.0
MAX_LINEAGE = 200  # hashes; a gateway that has missed more changes keeps its own policy, and logs that


class RedisPolicies:
    """`RedisPolicies` implements `PublishedPolicies`."""

    def __init__(self, store: RedisStore, client: Any) -> None:
        self._store = store
        names = key_space_of(client)
        self._last, self._lineage = names.key("policy"), names.key("policy:lineage")

    async def publish(self, policy: PublishedPolicy, previous: str) -> None:
        async def write(client: Any) -> None:
            async with client.pipeline(transaction=True) as pipe:
                pipe.set(self._last, orjson.dumps(asdict(policy)))
                pipe.rpush(self._lineage, previous, policy.hash)
                pipe.ltrim(self._lineage, -MAX_LINEAGE, -1)
                await pipe.execute()

        await self._store.execute(write, TIMEOUT_S, read=replies.nothing)

    async def read(self) -> tuple[PublishedPolicy | None, Lineage]:
        async def fetch(client: Any) -> Any:
            async with client.pipeline(transaction=True) as pipe:
                pipe.get(self._last)
                pipe.lrange(self._lineage, 0, -1)
                return await pipe.execute()

        return await self._store.execute(fetch, TIMEOUT_S, read=_published_with_lineage)


def _published_with_lineage(reply: Any) -> tuple[PublishedPolicy | None, Lineage]:
    last, lineage = reply
    return _published(replies.optional(replies.data)(last)), frozenset(replies.list_of(replies.text)(lineage))


def _published(record: bytes | None) -> PublishedPolicy | None:
    """Return None if there is no policy, or one of another version."""
    if record is None:
        return None
    try:
        return PublishedPolicy(**orjson.loads(record))
    except (orjson.JSONDecodeError, TypeError):
        return None
