"""Builds what goes round between gateways on one store beside what they store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from functools import partial

from gateway.cache.embedding_spaces import Spaces
from gateway.cache.feedback import FeedbackForwarding
from gateway.cache.gossip import RETRY_S, TRAFFIC_S, Gossip
from gateway.cache.learned_state import StateKeeper
from gateway.cache.stores import Stores
from gateway.cache.stream_consumer import StreamConsumer
from gateway.cache.threshold.route_control import Said
from gateway.errors import StoreUnavailable
from gateway.ports import Clock, number_of
from gateway.routing.tier_learning import TierLearning
from gateway.steps.feedback import Heed
from gateway.tasks import run_within
from gateway.upstream.backend import UpstreamPool

START = "0-0"
PAGES = 20  # to be heard before a snapshot: a bound, where others say more than can be read


class Fleet:
    """What this gateway says to the others on its store, and what it hears of them; with none of them, nothing."""

    def __init__(self, stores: Stores, clock: Clock) -> None:
        self._replies = stores.replies
        self._policy: str | None = None
        self._sharing: Gossip | None = None
        self._tail: StreamConsumer | None = None
        if stores.spoken is not None and stores.journal is not None:
            self._sharing = Gossip(stores.spoken, stores.journal.gateway)
            self._tail = StreamConsumer(stores.spoken, clock, apply=self._sharing.apply, missed=_nothing, told=_nothing)

    @property
    def hears(self) -> bool:
        """Whether it has begun to."""
        return self._tail is not None and self._tail.position is not None

    async def position(self) -> str | None:
        """Up to where the others have been heard; all that this gateway has learnt by now is said before that. None:
        nowhere. Raises `StoreUnavailable`."""
        if self._sharing is None or self._tail is None or self._tail.position is None:
            return None
        said = await self._sharing.flush()
        for _ in range(PAGES):
            if said is None or number_of(self._tail.position) >= number_of(said):
                break
            await self._tail.step()
        return self._tail.position

    def teller(self, topic: str) -> Callable[..., None]:
        """What tells the others of that topic."""
        sharing = self._sharing
        if sharing is None:
            return _nothing
        return lambda *words: sharing.tell(topic, *words)

    def on(self, topic: str, hear: Callable[..., None]) -> None:
        """See `Gossip.on`."""
        if self._sharing is not None:
            self._sharing.on(topic, hear)

    def hints(self, pools: Mapping[str, UpstreamPool]) -> None:
        """An upstream whose breaker opens here is doubted by the others, and likewise."""
        tell, lanes = (
            self.teller("opened"),
            {(p.name, lane.upstream.address): lane for p in pools.values() for lane in p.lanes},
        )
        for name, lane in lanes.items():
            lane.opened = partial(tell, *name)

        def hear(backend: str, address: str) -> None:
            lane = lanes.get((backend, address))
            if lane is not None:
                lane.breaker.hint()

        if self._sharing is not None:
            self._sharing.on("opened", hear)

    def policy(self, hash_of_it: str) -> None:
        """Of the one that is in force here, each time that the files were read."""
        if hash_of_it != self._policy:  # or two that differ would have each other read their files for ever
            self._policy = hash_of_it
            self.teller("policy")(hash_of_it)

    def feedback(self, stack: AsyncExitStack, heed: Heed) -> Heed:
        """Asks the others, and answers what they ask by `heed`."""
        if self._sharing is None:
            return _nobody
        elsewhere = FeedbackForwarding(self.teller("feedback"), self._replies, heed)
        stack.push_async_callback(elsewhere.close)
        self._sharing.on("feedback", elsewhere.asked)
        return elsewhere.ask

    def learns(self, stack: AsyncExitStack, spaces: Spaces, escalations: TierLearning, routing: StateKeeper) -> None:
        """Begins to hear, once what was learnt before has been read, and to say."""
        sharing, tail = self._sharing, self._tail
        if sharing is None or tail is None:
            return

        def hear(basis: str, route: str, said: Said) -> None:
            for space in spaces.all:
                space.controls.hear(basis, route, said)

        sharing.on("quality", hear, lambda route: spaces.serving.learning.positions.get(route))
        sharing.on("routing", escalations.hear, routing.positions.get)
        run_within(stack, _hearing(tail, lambda: (spaces.serving.learning, routing)))
        run_within(stack, sharing.run())
        run_within(stack, _traffic(spaces))


async def _hearing(tail: StreamConsumer, learnings: Callable[[], Iterable[StateKeeper]]) -> None:
    for learning in learnings():
        await learning.restored.wait()
    known = [learning.positions.get(route, START) for learning in learnings() for route in learning.routes]
    while tail.position is None:
        try:
            # What was said before the oldest line that is left is in the snapshots, but for the last minute of it.
            if not await tail.resume(min(known, key=number_of, default=START)):
                await tail.from_oldest()
        except StoreUnavailable:
            await asyncio.sleep(RETRY_S)
    await tail.run()


async def _traffic(spaces: Spaces) -> None:
    while True:
        await asyncio.sleep(TRAFFIC_S)
        for space in spaces.all:
            space.controls.say_traffic()


async def _nobody(*_: str) -> None:
    return None


def _nothing(*_: object) -> None:
    return None
