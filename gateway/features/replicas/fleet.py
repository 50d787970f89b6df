"""The gateways on one store, which share events as well as stored answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from gateway.cache.embedding_spaces import Space, Spaces
from gateway.cache.learned_state import StateKeeper
from gateway.cache.memory_cache import TieredStore
from gateway.cache.purge import Purge
from gateway.cache.stores import Stores
from gateway.cache.threshold.route_control import LearningEvent
from gateway.errors import StoreUnavailable
from gateway.features.replicas.cluster_leases import ClusterLeases
from gateway.features.replicas.embedder_announcements import EmbedderAnnouncements
from gateway.features.replicas.feedback_forwarding import FeedbackForwarding
from gateway.features.replicas.gossip import RETRY_S, TRAFFIC_INTERVAL_S, Gossip
from gateway.features.replicas.lease_step import RouteLeasing
from gateway.features.replicas.replication import Replication
from gateway.features.replicas.store import ReplicaStore
from gateway.features.replicas.stream_consumer import StreamConsumer
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock, number_of
from gateway.routing.tier_learning import TierLearning
from gateway.steps.feedback import ApplyFeedback, FeedbackState
from gateway.steps.fleet import Fleet, ignore
from gateway.tasks import run_in
from gateway.upstream.backend import UpstreamPool

START = "0-0"
MAX_PAGES = 20  # read before a snapshot: a bound, in case others publish faster than this gateway reads


class SharedFleet(Fleet):
    """Publishes events to the other gateways on the store, and applies theirs."""

    def __init__(self, store: ReplicaStore, clock: Clock) -> None:
        self.store = store
        self._policy: str | None = None
        self._gossip = Gossip(store.gossip, store.gateway)
        self._consumer = StreamConsumer(store.gossip, clock, apply=self._gossip.apply, missed=ignore, on_lag=ignore)
        self._announcements: EmbedderAnnouncements | None = None
        self._leases: ClusterLeases | None = None
        self._replication: Replication | None = None

    @property
    def is_following(self) -> bool:
        """Whether this gateway has begun to follow the events of the others."""
        return self._consumer.position is not None

    @property
    def other_embedders(self) -> Sequence[str]:  # type: ignore[override]
        return () if self._announcements is None else self._announcements.others

    @property
    def work(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        return [part.run for part in (self._leases, self._replication) if part is not None]

    async def position(self) -> str | None:
        if self._consumer.position is None:
            return None
        end = await self._gossip.flush()
        for _ in range(MAX_PAGES):
            if end is None or number_of(self._consumer.position) >= number_of(end):
                break
            await self._consumer.step()
        return self._consumer.position

    def publisher(self, topic: str) -> Callable[..., None]:
        return partial(self._gossip.publish, topic)

    def on(self, topic: str, apply_event: Callable[..., None]) -> None:
        self._gossip.on(topic, apply_event)

    def share_breaker_hints(self, pools: Mapping[str, UpstreamPool]) -> None:
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

        self._gossip.on("opened", apply_event)

    def policy(self, policy_hash: str) -> None:
        if policy_hash != self._policy:  # else two gateways with different files would reload each other forever
            self._policy = policy_hash
            self.publisher("policy")(policy_hash)

    def announce_embedder(self, stack: AsyncExitStack, spaces: Spaces, clock: Clock) -> None:
        self._announcements = EmbedderAnnouncements(spaces, self.publisher("embedder"), clock)
        self._gossip.on("embedder", self._announcements.apply_event)
        run_in(stack, self._announcements.run())

    def feedback(self, stack: AsyncExitStack, apply_feedback: ApplyFeedback) -> ApplyFeedback:
        forwarding = FeedbackForwarding(self.publisher("feedback"), self.store.replies, apply_feedback)
        stack.push_async_callback(forwarding.close)
        self._gossip.on("feedback", forwarding.on_request)
        return forwarding.request

    def open_leases(self, stack: AsyncExitStack, telemetry: Telemetry) -> None:
        self._leases = ClusterLeases(self.store.leases, telemetry)
        self.leasing = RouteLeasing(self._leases, telemetry)
        stack.push_async_callback(self._leases.close)  # once no call is in flight any more

    def replicate(
        self,
        stores: Stores,
        spaces: Spaces,
        front: TieredStore,
        memory: FeedbackState,
        telemetry: Telemetry,
        clock: Clock,
        removal: Purge,
    ) -> Replication:
        async def reread() -> None:
            memory.counterexamples.add(await stores.redis.counterexamples())
            memory.links.add(await stores.redis.links())
            await removal.refresh()

        self._replication = replication = Replication(
            self.store.changes,
            spaces,
            front,
            memory.counterexamples,
            memory.links,
            telemetry,
            clock,
            gateway=self.store.gateway,
            reread=reread,
            on_removal=removal.wake,
        )
        spaces.follow(partial(_note_position, replication))
        return replication

    def share_learning(
        self, stack: AsyncExitStack, spaces: Spaces, escalations: TierLearning, routing: StateKeeper
    ) -> None:
        gossip, consumer = self._gossip, self._consumer

        def apply_event(basis: str, route: str, event: LearningEvent) -> None:
            for space in spaces.all:
                space.controls.apply_event(basis, route, event)

        def apply_decoy(embedder: str, fingerprint: str, vector: bytes) -> None:
            for space in spaces.all:
                space.decoys.apply_event(embedder, fingerprint, vector)

        gossip.on("decoy", apply_decoy)

        def quality_position(route: str) -> str | None:
            return spaces.serving.learning.positions.get(route) if spaces.is_open else None

        def learnings() -> list[StateKeeper]:
            return [spaces.serving.learning, routing] if spaces.is_open else [routing]

        gossip.on("quality", apply_event, quality_position)
        gossip.on("routing", escalations.apply_event, routing.positions.get)
        run_in(stack, _follow_gossip(consumer, learnings))
        run_in(stack, gossip.run())
        run_in(stack, _publish_traffic(spaces))


def _note_position(replication: Replication, space: Space) -> None:
    if space.checkpoints is not None:
        space.checkpoints.position = lambda: replication.position


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
