"""Waits until what was written is on the store's disk, for many at once."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.exceptions import RedisError

from gateway.adapters.redis_store import PREFIX
from gateway.errors import StoreUnavailable

MARK = PREFIX + "jobs:synced"
# A file that is written through every second is on the disk within it.
DISK_MS = 2_500


class Syncing:
    """On a connection of its own, which WAITAOF blocks for up to a second: nothing of a request waits behind it. Who
    comes while a round is under way waits for the next: his own writes came after that one's mark."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._lock = asyncio.Lock()
        self._next: asyncio.Future[None] | None = None

    async def synced(self) -> None:
        """Returns once all that the server had acknowledged before is on its disk. Raises `StoreUnavailable`."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._round())
            self._next.add_done_callback(_looked_at)
        await asyncio.shield(self._next)

    async def _round(self) -> None:
        async with self._lock:
            self._next = None
            try:
                async with asyncio.timeout(2 * DISK_MS / 1000), self._client.pipeline(transaction=False) as pipe:
                    pipe.set(MARK, "1")  # WAITAOF waits for what its own connection has written
                    pipe.execute_command("WAITAOF", 1, 0, DISK_MS)
                    _, waited = await pipe.execute()
            except (RedisError, OSError, TimeoutError) as error:
                raise StoreUnavailable(
                    f"the store cannot say that the job is on its disk ({type(error).__name__}): jobs.fsync needs an "
                    "append-only file, and Redis 7.2 or Valkey"
                ) from None
            if int(waited[0]) < 1:
                raise StoreUnavailable("the store's disk did not take the job in time (jobs.fsync)")


def _looked_at(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()  # who waited was told; nobody may have
