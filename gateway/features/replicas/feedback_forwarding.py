"""Feedback on an answer that another gateway gave: the gateway that remembers the answer applies the feedback."""

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

REPLY_TIMEOUT_S = 1.0  # seconds; the others hear of it within a tenth of that

MAX_CONCURRENT = 16  # forwarded at once, and also answered at once for others; beyond it nothing is forwarded


class FeedbackForwarding:
    """`FeedbackForwarding` passes feedback to the other gateways on the store.

    `publish` sends them tenant, request id, verdict and the name of the reply. They pass these to `on_request`, which
    looks the hit up with `apply_feedback`.
    """

    def __init__(
        self,
        publish: Callable[..., None],
        replies: Replies,
        apply_feedback: Callable[[str, str, str], Awaitable[dict[str, Any] | None]],
    ) -> None:
        self._publish = publish
        self._replies = replies
        self._apply_feedback = apply_feedback
        self._limiter = asyncio.Semaphore(MAX_CONCURRENT)
        self._answers = Background(MAX_CONCURRENT)

    async def request(self, tenant: str, request_id: str, verdict: str) -> dict[str, Any] | None:
        """Forward feedback and return the result, or None if no gateway knows the hit or none replied in time."""
        if self._limiter.locked():
            return None
        async with self._limiter:
            name = secrets.token_hex(16)
            self._publish(tenant, request_id, verdict, name)
            try:
                answer = await self._replies.wait(name, REPLY_TIMEOUT_S)
            except StoreUnavailable:
                return None
        result: dict[str, Any] | None = None if answer is None else orjson.loads(answer)
        return result

    def on_request(self, tenant: str, request_id: str, verdict: str, name: str) -> None:
        """Handle feedback from another gateway. Reply only if the hit is known here."""
        self._answers.start(name, self._answer(tenant, request_id, verdict, name))

    async def close(self) -> None:
        await self._answers.close()

    async def _answer(self, tenant: str, request_id: str, verdict: str, name: str) -> None:
        result = await self._apply_feedback(tenant, request_id, verdict)
        if result is None:
            return
        try:
            await self._replies.reply(name, orjson.dumps(result))
        except StoreUnavailable as error:
            LOG.warning("feedback was applied, but the reply was lost", extra={"fields": {"error": str(error)}})
