"""The port to the other gateways on the store. A gateway that has its store to itself has a `Fleet` that does nothing.

`gateway.features.replicas` implements it for a shared store.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from gateway.cache.admission import HitForMiss
from gateway.cache.embedding_spaces import Spaces
from gateway.cache.learned_state import StateKeeper
from gateway.cache.memory_cache import TieredStore
from gateway.cache.purge import Purge
from gateway.cache.recovery import ChangeConsumer
from gateway.cache.stores import Stores
from gateway.context import Handler
from gateway.entries import Lifetime
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock, NearbyStore
from gateway.routing.tier_learning import TierLearning
from gateway.steps.exact_cache import LeasedLookup
from gateway.steps.feedback import ApplyFeedback, FeedbackState
from gateway.upstream.backend import UpstreamPool

if TYPE_CHECKING:  # features bring them
    from gateway.cache.placement import Placement


class Leasing(Protocol):
    """The leases by which all gateways on a store make one call for the same request."""

    def lookup(self, store: NearbyStore, unstorable: HitForMiss, placement: Placement | None) -> LeasedLookup:
        """Return the lookup of the exact cache that also asks for the lease."""

    def step(
        self,
        inner: Handler,
        store: NearbyStore,
        clock: Clock,
        unstorable: HitForMiss,
        lifetime: Lifetime,
        placement: Placement | None,
        *,
        exact: bool,
    ) -> Handler:
        """Return the step around the call. `exact` says whether the route has an exact cache."""


class ChangeFollower(Protocol):
    """The changes of the other gateways, which memory and index follow."""

    @property
    def consumer(self) -> ChangeConsumer:
        """The reader of the changes."""


class Fleet:
    """The other gateways on the store. This one has none: it publishes nothing and shares nothing."""

    leasing: Leasing | None = None
    """The leases on calls, or None if no other gateway makes them."""
    other_embedders: Sequence[str] = ()
    """The fingerprints of other embedders that gateways on the store have now."""

    @property
    def work(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        """The functions that run as long as the gateway."""
        return ()

    async def position(self) -> str | None:
        """Publish all that this gateway has learnt, and return the position up to which events were applied. Return
        None if no event was read yet. Raise `StoreUnavailable`."""
        return None

    def publisher(self, topic: str) -> Callable[..., None]:
        """Return a function that publishes events of a topic."""
        return ignore

    def on(self, topic: str, apply_event: Callable[..., None]) -> None:
        """Register a function for the events of a topic."""

    def policy(self, policy_hash: str) -> None:
        """Publish the hash of the policy in force. Called each time that the files were read."""

    def share_breaker_hints(self, pools: Mapping[str, UpstreamPool]) -> None:
        """Publish when a breaker opens here, and hint the breaker here when one opens on another gateway."""

    def announce_embedder(self, stack: AsyncExitStack, spaces: Spaces, clock: Clock) -> None:
        """Announce this gateway's embedder to the others, and note theirs."""

    def feedback(self, stack: AsyncExitStack, apply_feedback: ApplyFeedback) -> ApplyFeedback:
        """Return a function that forwards feedback to the others, and apply theirs with `apply_feedback`."""
        return _no_feedback

    def share_learning(
        self, stack: AsyncExitStack, spaces: Spaces, escalations: TierLearning, routing: StateKeeper
    ) -> None:
        """Start to publish what is learnt, and to apply the events of the others once the saved state was read."""

    def open_leases(self, stack: AsyncExitStack, telemetry: Telemetry) -> None:
        """Open `leasing`. `stack` closes it."""

    def replicate(
        self,
        stores: Stores,
        spaces: Spaces,
        front: TieredStore,
        memory: FeedbackState,
        telemetry: Telemetry,
        clock: Clock,
        removal: Purge,
    ) -> ChangeFollower | None:
        """Return what follows the changes of the other gateways, or None."""
        return None


def fleet_of(stores: Stores, clock: Clock) -> Fleet:
    """Return the other gateways on the store. The code for them is imported only for a shared store."""
    if stores.shared is None:
        return Fleet()
    fleet: Fleet = import_module("gateway.features.replicas.fleet").SharedFleet(stores.shared, clock)
    return fleet


async def _no_feedback(*_: str) -> None:
    return None


def ignore(*_: object) -> None:
    """Do nothing with an event."""
