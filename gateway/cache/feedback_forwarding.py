"""A client's word on an answer that another gateway on the store has given: whoever remembers it learns of it."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from gateway.errors import StoreUnavailable
from gateway.ports import Replies
from gateway.tasks import Background

LOG = logging.getLogger("nearhit.replication")
WAIT_S = 1.0  # for the others: they hear within a tenth of it
AT_ONCE = 16  # questions of this gateway, and likewise of others that it looks up; beyond it nobody is asked


class Elsewhere:
    """`say` tells all others tenant, request id, verdict and the name of the reply; what they say of that is given to
    `asked`, which looks it up in `heed`."""

    def __init__(
        self,
        say: Callable[..., None],
        replies: Replies,
        heed: Callable[[str, str, str], Awaitable[dict[str, Any] | None]],
    ) -> None:
        self._say = say
        self._replies = replies
        self._heed = heed
        self._places = asyncio.Semaphore(AT_ONCE)
        self._answering = Background(AT_ONCE)

    async def ask(self, tenant: str, request_id: str, verdict: str) -> dict[str, Any] | None:
        """None: nobody remembers it, or nobody could say in time."""
        if self._places.locked():
            return None
        async with self._places:
            name = secrets.token_hex(16)
            self._say(tenant, request_id, verdict, name)
            try:
                answer = await self._replies.wait(name, WAIT_S)
            except StoreUnavailable:
                return None
        heard: dict[str, Any] | None = None if answer is None else orjson.loads(answer)
        return heard

    def asked(self, tenant: str, request_id: str, verdict: str, name: str) -> None:
        """By another gateway. Answered if it is known here."""
        self._answering.start(name, self._answer(tenant, request_id, verdict, name))

    async def close(self) -> None:
        await self._answering.close()

    async def _answer(self, tenant: str, request_id: str, verdict: str, name: str) -> None:
        heard = await self._heed(tenant, request_id, verdict)
        if heard is None:
            return
        try:
            await self._replies.reply(name, orjson.dumps(heard))
        except StoreUnavailable as error:
            LOG.warning("feedback was heeded, its client is not told", extra={"fields": {"error": str(error)}})
