"""Exchange messages between the gateways on one store, by topic: learned labels, and other news.

Everything that a route learns is a sum of observations. So the gateways send observations rather than sums. Each adds
those of the others to its own, and all reach the state of a single process (docs/decisions/0022). Messages go out in
pages with a short delay. While the store does not answer they wait, up to a bound; the oldest are dropped first.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from gateway.errors import StoreUnavailable
from gateway.ports import ChangeKind, GossipLog, StoreChange, number_of

LOG = logging.getLogger("nearhit.replication")
MAX_OUTBOX = 2_000
PAGE = 200
BATCH_DELAY_S = 0.1
TRAFFIC_INTERVAL_S = 2.0  # seconds between two traffic reports: one line per route
RETRY_S = 1.0
MAX_NEWS_AGE_S = 30.0  # seconds; older messages of topics without `known_position` are ignored

TopicHandler = Callable[..., None]


class Gossip:
    """The messages to and from other gateways. `gateway` names this one, whose own messages it ignores."""

    def __init__(self, log: GossipLog, gateway: str) -> None:
        self._log = log
        self._gateway = gateway
        self._outbox: deque[str] = deque(maxlen=MAX_OUTBOX)
        self._flush_lock = asyncio.Lock()
        self._last_position: str | None = None
        self._has_outgoing = asyncio.Event()
        self._handlers: dict[str, TopicHandler] = {}
        self._known_positions: dict[str, Callable[[str], str | None] | None] = {}

    def publish(self, topic: str, *words: Any) -> None:
        """Queue a message. Its `words` are values that msgpack can carry."""
        packed = msgpack.packb((topic, *words))
        self._outbox.append(base64.b64encode(packed).decode())
        self._has_outgoing.set()

    def on(self, topic: str, handler: TopicHandler, known_position: Callable[[str], str | None] | None = None) -> None:
        """Call `handler` with the words of each message of a topic from another gateway.

        A `ValueError` or `TypeError` from the handler marks a message of another version. `known_position` returns, for
        the second word, the position up to which its messages are known. Without it only recent messages count, as a
        start also reads the old ones.
        """
        self._handlers[topic] = handler
        self._known_positions[topic] = known_position

    async def apply(self, changes: Sequence[StoreChange], now: float) -> None:
        """Dispatch the messages among the changes. `now` is by the store's clock."""
        for change in changes:
            if change.kind is ChangeKind.GOSSIP and change.by != self._gateway:
                try:
                    self._dispatch(change, now)
                except (ValueError, TypeError, LookupError, msgpack.UnpackException) as error:
                    LOG.debug(
                        "a message from another gateway was not understood",
                        extra={"fields": {"by": change.by, "error": type(error).__name__}},
                    )

    def _dispatch(self, change: StoreChange, now: float) -> None:
        topic, *words = msgpack.unpackb(base64.b64decode(change.value), use_list=False, strict_map_key=False)
        handler = self._handlers.get(topic)
        if handler is None:
            return
        known_position = self._known_positions[topic]
        if known_position is None:
            if now - change.at < MAX_NEWS_AGE_S:
                handler(*words)
            return
        known = known_position(words[1])
        if known is None or number_of(change.position) > number_of(known):
            handler(*words)

    async def flush(self) -> str | None:
        """Send all queued messages. Return the position of the last line ever sent.

        Raise `StoreUnavailable`; unsent messages stay queued.
        """
        async with self._flush_lock:
            while self._outbox:
                page = [self._outbox.popleft() for _ in range(min(PAGE, len(self._outbox)))]
                try:
                    self._last_position = await self._log.append(page)
                except StoreUnavailable:
                    self._outbox.extendleft(reversed(page[: MAX_OUTBOX - len(self._outbox)]))
                    raise
        return self._last_position

    async def run(self) -> None:
        """Send queued messages, forever."""
        while True:
            await self._has_outgoing.wait()
            self._has_outgoing.clear()
            await asyncio.sleep(BATCH_DELAY_S)
            try:
                await self.flush()
            except StoreUnavailable:
                self._has_outgoing.set()
                await asyncio.sleep(RETRY_S)
