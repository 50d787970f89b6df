"""Connects the gateways on one store, so that they share events as well as stored answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from functools import partial

from gateway.cache.embedding_spaces import Spaces
from gateway.cache.feedback import FeedbackForwarding
from gateway.cache.gossip import RETRY_S, TRAFFIC_INTERVAL_S, Gossip
from gateway.cache.learned_state import StateKeeper
from gateway.cache.stores import Stores
from gateway.cache.stream_consumer import StreamConsumer
from gateway.cache.threshold.route_control import LearningEvent
from gateway.errors import StoreUnavailable
from gateway.ports import Clock, number_of
from gateway.routing.tier_learning import TierLearning
from gateway.steps.embedder_announcements import EmbedderAnnouncements
from gateway.steps.feedback import ApplyFeedback
from gateway.tasks import run_in
from gateway.upstream.backend import UpstreamPool

START = "0-0"
MAX_PAGES = 20  # read before a snapshot: a bound, in case others publish faster than this gateway reads


class Fleet:
    """Publishes events to the other gateways on the store, and applies theirs. Without other gateways it does
    nothing."""

    def __init__(self, stores: Stores, clock: Clock) -> None:
        self._replies = stores.replies
        self._policy: str | None = None
        self._gossip: Gossip | None = None
        self._consumer: StreamConsumer | None = None
        if stores.gossip is not None and stores.journal is not None:
            self._gossip = Gossip(stores.gossip, stores.journal.gateway)
            self._consumer = StreamConsumer(
                stores.gossip, clock, apply=self._gossip.apply, missed=_ignore, on_lag=_ignore
            )

    @property
    def is_following(self) -> bool:
        """Whether this gateway has begun to follow the events of the others."""
        return self._consumer is not None and self._consumer.position is not None

    async def position(self) -> str | None:
        """Publish all that this gateway has learnt, then return the position up to which events were applied. None: no
        event was read yet. Raise `StoreUnavailable`."""
        if self._gossip is None or self._consumer is None or self._consumer.position is None:
            return None
        said = await self._gossip.flush()
        for _ in range(MAX_PAGES):
            if said is None or number_of(self._consumer.position) >= number_of(said):
                break
            await self._consumer.step()
        return self._consumer.position

    def publisher(self, topic: str) -> Callable[..., None]:
        """Return a function that publishes events of a topic."""
        gossip = self._gossip
        if gossip is None:
            return _ignore
        return lambda *words: gossip.publish(topic, *words)

    def on(self, topic: str, apply_event: Callable[..., None]) -> None:
        """Register a function for the events of a topic; see `Gossip.on`."""
        if self._gossip is not None:
            self._gossip.on(topic, apply_event)

    def share_breaker_hints(self, pools: Mapping[str, UpstreamPool]) -> None:
        """Publish when a breaker opens here, and hint the breaker here when one opens on another gateway."""
        publish, endpoints = (
            self.publisher("opened"),
            {(p.name, endpoint.upstream.address): endpoint for p in pools.values() for endpoint in p.endpoints},
        )
        for name, endpoint in endpoints.items():
            endpoint.on_breaker_open = partial(publish, *name)

        def apply_event(backend: str, address: str) -> None:
            endpoint = endpoints.get((backend, address))
            if endpoint is not None:
                endpoint.breaker.hint()

        if self._gossip is not None:
            self._gossip.on("opened", apply_event)

    def policy(self, policy_hash: str) -> None:
        """Publish the hash of the policy in force. Called each time that the files were read."""
        if policy_hash != self._policy:  # else two gateways with different files would reload each other forever
            self._policy = policy_hash
            self.publisher("policy")(policy_hash)

    def announce_embedder(self, stack: AsyncExitStack, spaces: Spaces, clock: Clock) -> EmbedderAnnouncements:
        """Announce this gateway's embedder to the others, and note theirs."""
        announcements = EmbedderAnnouncements(spaces, self.publisher("embedder"), clock)
        if self._gossip is not None:
            self._gossip.on("embedder", announcements.apply_event)
            run_in(stack, announcements.run())
        return announcements

    def feedback(self, stack: AsyncExitStack, apply_feedback: ApplyFeedback) -> ApplyFeedback:
        """Return a function that forwards feedback to the others; apply theirs with `apply_feedback`."""
        if self._gossip is None:
            return _no_feedback
        forwarding = FeedbackForwarding(self.publisher("feedback"), self._replies, apply_feedback)
        stack.push_async_callback(forwarding.close)
        self._gossip.on("feedback", forwarding.on_request)
        return forwarding.request

    def share_learning(
        self, stack: AsyncExitStack, spaces: Spaces, escalations: TierLearning, routing: StateKeeper
    ) -> None:
        """Start to publish what is learnt, and to apply the events of the others once the saved state was read."""
        gossip, consumer = self._gossip, self._consumer
        if gossip is None or consumer is None:
            return

        def apply_event(basis: str, route: str, said: LearningEvent) -> None:
            for space in spaces.all:
                space.controls.apply_event(basis, route, said)

        def apply_decoy(embedder: str, fingerprint: str, vector: bytes) -> None:
            for space in spaces.all:
                space.decoys.apply_event(embedder, fingerprint, vector)

        gossip.on("decoy", apply_decoy)
        gossip.on("quality", apply_event, lambda route: spaces.serving.learning.positions.get(route))
        gossip.on("routing", escalations.apply_event, routing.positions.get)
        run_in(stack, _follow_gossip(consumer, lambda: (spaces.serving.learning, routing)))
        run_in(stack, gossip.run())
        run_in(stack, _publish_traffic(spaces))


async def _follow_gossip(consumer: StreamConsumer, learnings: Callable[[], Iterable[StateKeeper]]) -> None:
    for learning in learnings():
        await learning.restored.wait()
    positions = [learning.positions.get(route, START) for learning in learnings() for route in learning.routes]
    while consumer.position is None:
        try:
            # Events before the oldest line that is left are in the snapshots, except for their last minute.
            if not await consumer.resume(min(positions, key=number_of, default=START)):
                await consumer.start_from_oldest()
        except StoreUnavailable:
            await asyncio.sleep(RETRY_S)
    await consumer.run()


async def _publish_traffic(spaces: Spaces) -> None:
    while True:
        await asyncio.sleep(TRAFFIC_INTERVAL_S)
        for space in spaces.all:
            space.controls.publish_traffic()


async def _no_feedback(*_: str) -> None:
    return None


def _ignore(*_: object) -> None:
    return None
