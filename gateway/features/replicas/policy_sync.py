"""`PolicySync` shares policies between all gateways on a store.

A policy that the admin port of one gateway puts in force is put in force at all of them. Manual changes of the files
stay with their gateway. See docs/decisions/0022.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Protocol

from gateway.admin.policy_manager import PolicyManager, file_contents
from gateway.config.errors import ConfigInvalid
from gateway.config.policy.history import Author
from gateway.config.policy.model import Policy
from gateway.errors import GatewayError, StoreUnavailable
from gateway.features.replicas.fleet import SharedFleet
from gateway.ports import Lineage, PublishedPolicy
from gateway.tasks import run_in

LOG = logging.getLogger("nearhit")
RETRY_S = 1.0
MAX_BYTES = 4 * 2**20  # all files of a policy together; bounds the traffic of the store


class PublishedPolicies(Protocol):
    """The shared policy in the store. Both methods raise `StoreUnavailable`."""

    async def publish(self, policy: PublishedPolicy, previous: str) -> None:
        """Replace the shared policy. `previous` is the hash of the policy that it replaced at its gateway."""

    async def read(self) -> tuple[PublishedPolicy | None, Lineage]:
        """Return the shared policy, and the hashes of its predecessors."""


def should_adopt(published: PublishedPolicy, lineage: Lineage, own: str, last_manual_change_at: float | None) -> bool:
    """Return whether a gateway adopts the shared policy. `own` is the hash of its policy in force.

    It does so only if `own` is a predecessor of the shared policy, and if its files have no newer manual change.
    `last_manual_change_at` is in seconds since 1970, or None if the last change was not manual.
    """
    if own == published.hash or own not in lineage:
        return False
    return last_manual_change_at is None or last_manual_change_at < published.at


class PolicySync:
    """`PolicySync` publishes the policies of this gateway's admin port and adopts those of others. `run` does both.

    No request waits for it. If the store does not answer, the policy is in force here and is published later.
    """

    def __init__(self, store: PublishedPolicies, manager: PolicyManager, notify: Callable[[str], None]) -> None:
        """`notify` sends the hash of a published policy to the other gateways."""
        self._store = store
        self._manager = manager
        self._notify = notify
        self._unpublished: tuple[PublishedPolicy, str] | None = None
        self._notified: str | None = None
        self._pending = asyncio.Event()

    def changed(self, policy: Policy, previous: str, author: Author, at: float) -> None:
        """Publish a policy that the admin port of this gateway has put in force."""
        if sum(len(text.content) for text in policy.texts) > MAX_BYTES:
            LOG.warning(
                "the policy is too large to be shared with other gateways", extra={"fields": {"hash": policy.hash}}
            )
            return
        files = dict(file_contents(policy.texts))
        self._unpublished = PublishedPolicy(policy.hash, files, author.name, author.comment, at), previous
        self._pending.set()

    def on_published(self, other: str) -> None:
        """Note that another gateway has the policy of this hash in force."""
        if other != self._manager.current.hash:
            self._notified = other
            self._pending.set()

    async def run(self) -> None:
        """Publish and adopt policies until cancelled."""
        self._pending.set()  # a policy may have been published while this gateway was stopped
        while True:
            await self._pending.wait()
            self._pending.clear()
            try:
                await self._publish()
                await self._pull()
            except StoreUnavailable:
                await asyncio.sleep(RETRY_S)
                self._pending.set()

    async def _publish(self) -> None:
        while self._unpublished is not None:
            mine = self._unpublished
            await self._store.publish(*mine)
            if self._unpublished is mine:
                self._unpublished = None
            self._notify(mine[0].hash)

    async def _pull(self) -> None:
        notified, self._notified = self._notified, None
        if notified is not None:
            with suppress(GatewayError):  # the policy has no files
                await self._manager.reload()  # the files may have the new policy already: workers share one folder
        published, lineage = await self._store.read()
        own = self._manager.current.hash
        if published is not None and should_adopt(published, lineage, own, await self._manager.last_manual_change_at()):
            await self._adopt(published)
        elif notified is not None and notified != own:
            fields = {"own": own, "other": notified}
            LOG.warning("another gateway on this store has another policy in force", extra={"fields": fields})

    async def _adopt(self, published: PublishedPolicy) -> None:
        try:
            await self._manager.adopt(published)
        except ConfigInvalid as invalid:
            fields = {"hash": published.hash, "faults": [str(fault) for fault in invalid.faults]}
            LOG.error("the policy of the other gateways does not fit this one", extra={"fields": fields})
        except GatewayError as refused:
            fields = {"hash": published.hash, "error": refused.message}
            LOG.error("the policy of the other gateways cannot be written here", extra={"fields": fields})


def sync_policy(stack: AsyncExitStack, manager: PolicyManager, fleet: SharedFleet) -> None:
    """Start to publish and adopt policies, until `stack` closes."""
    common = PolicySync(fleet.store.policies, manager, fleet.publisher("policy"))
    manager.changed = common.changed
    fleet.on("policy", common.on_published)
    run_in(stack, common.run())
