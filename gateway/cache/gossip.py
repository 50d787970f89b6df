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
MAX_UNSAID = 2_000
PAGE = 200
GATHER_S = 0.1
TRAFFIC_S = 2.0  # between two sayings of what has come by: a line a route
RETRY_S = 1.0
NEWS_S = 30.0  # after which what is no knowledge is none for who hears it

Hearer = Callable[..., None]


class Gossip:
    """`gateway` names this one: what it says itself it need not hear."""

    def __init__(self, log: GossipLog, gateway: str) -> None:
        self._log = log
        self._gateway = gateway
        self._unsaid: deque[str] = deque(maxlen=MAX_UNSAID)
        self._saying = asyncio.Lock()
        self._last: str | None = None
        self._some = asyncio.Event()
        self._hearers: dict[str, Hearer] = {}
        self._since: dict[str, Callable[[str], str | None] | None] = {}

    def tell(self, topic: str, *words: Any) -> None:
        """Soon. `words`: what msgpack can carry."""
        packed = msgpack.packb((topic, *words))
        self._unsaid.append(base64.b64encode(packed).decode())
        self._some.set()

    def on(self, topic: str, hear: Hearer, since: Callable[[str], str | None] | None = None) -> None:
        """`hear` is given the words of that topic which another gateway has said; what it raises as `ValueError` or
        `TypeError` is a line of another version. `since`: of what the second word names, the position up to which it is
        known already. Without it only what is said now is heard: a start goes through what was said before, too."""
        self._hearers[topic] = hear
        self._since[topic] = since

    async def apply(self, changes: Sequence[StoreChange], now: float) -> None:
        """`now`: by the store's clock."""
        for change in changes:
            if change.kind is ChangeKind.SAID and change.by != self._gateway:
                try:
                    self._hear(change, now)
                except (ValueError, TypeError, LookupError, msgpack.UnpackException) as error:
                    LOG.debug("not understood", extra={"fields": {"by": change.by, "error": type(error).__name__}})

    def _hear(self, change: StoreChange, now: float) -> None:
        topic, *words = msgpack.unpackb(base64.b64decode(change.value), use_list=False, strict_map_key=False)
        hear = self._hearers.get(topic)
        if hear is None:
            return
        since = self._since[topic]
        if since is None:
            if now - change.at < NEWS_S:
                hear(*words)
            return
        known = since(words[1])
        if known is None or number_of(change.position) > number_of(known):
            hear(*words)

    async def flush(self) -> str | None:
        """-> the position of the last line that was ever said. Raises `StoreUnavailable`; what is not said then is said
        later."""
        async with self._saying:
            while self._unsaid:
                some = [self._unsaid.popleft() for _ in range(min(PAGE, len(self._unsaid)))]
                try:
                    self._last = await self._log.say(some)
                except StoreUnavailable:
                    self._unsaid.extendleft(reversed(some[: MAX_UNSAID - len(self._unsaid)]))
                    raise
        return self._last

    async def run(self) -> None:
        """Says what there is to say, for ever."""
        while True:
            await self._some.wait()
            self._some.clear()
            await asyncio.sleep(GATHER_S)
            try:
                await self.flush()
            except StoreUnavailable:
                self._some.set()
                await asyncio.sleep(RETRY_S)
