"""What gateways on one store tell each other beside what they store: what they learn, and whatever else has a topic.

Everything a route learns is a sum of observations. So the observations go round, not the sums: each gateway adds what
it hears to what it has seen, and all come to what one process would know (docs/decisions/0022). What is said goes out
in pages, some of a second later; while the store is away it waits, up to a bound, and the oldest is forgotten first.
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
TRAFFIC_INTERVAL_S = 2.0  # between two sayings of what has come by: a line a route
RETRY_S = 1.0
MAX_NEWS_AGE_S = 30.0  # after which what is no knowledge is none for who hears it

TopicHandler = Callable[..., None]


class Gossip:
    """`gateway` names this one: what it says itself it need not hear."""

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
        """Soon. `words`: what msgpack can carry."""
        packed = msgpack.packb((topic, *words))
        self._outbox.append(base64.b64encode(packed).decode())
        self._has_outgoing.set()

    def on(self, topic: str, handler: TopicHandler, known_position: Callable[[str], str | None] | None = None) -> None:
        """`handler` is given the words of that topic which another gateway has said; what it raises as `ValueError` or
        `TypeError` is a line of another version. `known_position`: of what the second word names, the position up to
        which it is known already. Without it only what is said now is heard: a start goes through what was said before,
        too."""
        self._handlers[topic] = handler
        self._known_positions[topic] = known_position

    async def apply(self, changes: Sequence[StoreChange], now: float) -> None:
        """`now`: by the store's clock."""
        for change in changes:
            if change.kind is ChangeKind.GOSSIP and change.by != self._gateway:
                try:
                    self._dispatch(change, now)
                except (ValueError, TypeError, LookupError, msgpack.UnpackException) as error:
                    LOG.debug("not understood", extra={"fields": {"by": change.by, "error": type(error).__name__}})

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
        """-> the position of the last line that was ever said. Raises `StoreUnavailable`; what is not said then is said
        later."""
        async with self._flush_lock:
            while self._outbox:
                page = [self._outbox.popleft() for _ in range(min(PAGE, len(self._outbox)))]
                try:
                    self._last_position = await self._log.say(page)
                except StoreUnavailable:
                    self._outbox.extendleft(reversed(page[: MAX_OUTBOX - len(self._outbox)]))
                    raise
        return self._last_position

    async def run(self) -> None:
        """Says what there is to say, for ever."""
        while True:
            await self._has_outgoing.wait()
            self._has_outgoing.clear()
            await asyncio.sleep(BATCH_DELAY_S)
            try:
                await self.flush()
            except StoreUnavailable:
                self._has_outgoing.set()
                await asyncio.sleep(RETRY_S)
