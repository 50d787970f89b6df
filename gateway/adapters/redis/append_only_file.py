"""Rewrite the append-only file of the embedded store, which has the text of deleted entries until then.

The server rewrites it by itself only once it has doubled and has 64 MB, so that of a small gateway never.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from gateway.adapters.redis import replies
from gateway.adapters.redis.store import RedisStore
from gateway.errors import StoreUnavailable

REWRITE_S = 120.0  # a file of 1 GB takes some 10 s on an idle machine
POLL_S = 0.05
TIMEOUT_S = 5.0  # per command; the server forks, which takes some 10 ms for each GB

OUTSIDE = (
    "not reached: the append-only file, snapshots, replicas and backups of the store. After BGREWRITEAOF and BGSAVE on "
    "its servers, its files have no erased text; replace older backups"
)


@dataclass(frozen=True, slots=True)
class _RewriteState:
    running: bool
    begun: int  # rewrites since the server's start
    succeeded: bool  # the last one


@dataclass(slots=True, eq=False)
class AppendOnlyFile:
    """`AppendOnlyFile` belongs to the store of a gateway. Unless `owned`, the server is the operator's, and stays as it
    is."""

    store: RedisStore
    owned: bool = field(kw_only=True)

    async def drop_deleted(self) -> list[str]:
        """Rewrite the file, and wait until it holds nothing that was deleted before. Return a sentence for each thing
        that was not reached."""
        if not self.owned:
            return [OUTSIDE]
        try:
            async with asyncio.timeout(REWRITE_S):
                await self._rewrite()
        except TimeoutError:
            why = f"its rewrite did not end within {REWRITE_S:g} s"
        except StoreUnavailable as error:
            why = str(error)
        else:
            return []
        return [f"not reached: the append-only file of the embedded store ({why}): repeat the command"]

    async def _rewrite(self) -> None:
        """Rewrite the file. Raise `StoreUnavailable`.

        A rewrite in progress may have read the entries before they were deleted, so another one follows it.
        """
        former: int | None = None
        while True:
            state = await self._state()
            if not state.running:
                if former is not None and state.begun > former:
                    if not state.succeeded:
                        raise StoreUnavailable("the rewrite failed, see store/valkey.log in the data folder")
                    return
                former = state.begun
                await self._begin()
            await asyncio.sleep(POLL_S)

    async def _begin(self) -> None:
        try:
            await self.store.execute(
                lambda client: client.execute_command("BGREWRITEAOF"), TIMEOUT_S, read=replies.nothing
            )
        except StoreUnavailable as error:
            if "already in progress" not in str(error):  # another gateway has begun one since
                raise

    async def _state(self) -> _RewriteState:
        return await self.store.execute(lambda client: client.info("persistence"), TIMEOUT_S, read=_state_of)


def _state_of(info: Any) -> _RewriteState:
    running = info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"]
    return _RewriteState(bool(running), int(info["aof_rewrites"]), info["aof_last_bgrewrite_status"] == "ok")
