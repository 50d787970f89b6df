"""One policy for all gateways on a store: what the admin port of one of them puts in force is in force at all of them.

What is written into the files by hand stays with the gateway whose files they are; docs/decisions/0022.
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
from gateway.ports import Lineage, Published
from gateway.steps.fleet import Fleet
from gateway.tasks import run_in

LOG = logging.getLogger("nearhit")
RETRY_S = 1.0
MAX_BYTES = 4 * 2**20  # of all files of a policy: more than a page of a store's traffic ought to be


class PublishedPolicies(Protocol):
    """Where the gateways on a store keep what they have in common. Both raise `StoreUnavailable`."""

    async def publish(self, policy: Published, previous: str) -> None:
        """Puts it in place of the one that was there. `previous`: the hash of what it replaced at its gateway."""

    async def read(self) -> tuple[Published | None, Lineage]:
        """The last one, and the hashes of those before it."""


def should_adopt(published: Published, lineage: Lineage, own: str, last_manual_change_at: float | None) -> bool:
    """Whether a gateway whose policy is `own` follows. `last_manual_change_at`: seconds since 1970 at which its files
    were last changed, None where it was not a hand that made them what they are.

    It follows from what the fleet has left behind, and not from a policy of its own; nor does it write over what
    somebody has put into its files since."""
    if own == published.hash or own not in lineage:
        return False
    return last_manual_change_at is None or last_manual_change_at < published.at


class PolicySync:
    """Publishes what is put in force here by the admin port, follows what was elsewhere. `run` does both; nobody waits
    for it: a gateway whose store is away has its policy in force, and tells the others later."""

    def __init__(self, store: PublishedPolicies, manager: PolicyManager, notify: Callable[[str], None]) -> None:
        """`notify`: the others the hash of what is there for them."""
        self._store = store
        self._manager = manager
        self._notify = notify
        self._unpublished: tuple[Published, str] | None = None
        self._notified: str | None = None
        self._pending = asyncio.Event()

    def changed(self, policy: Policy, previous: str, author: Author, at: float) -> None:
        """By the admin port of this gateway."""
        if sum(len(text.content) for text in policy.texts) > MAX_BYTES:
            LOG.warning("the policy is too large to be told to other gateways", extra={"fields": {"hash": policy.hash}})
            return
        files = dict(file_contents(policy.texts))
        self._unpublished = Published(policy.hash, files, author.name, author.comment, at), previous
        self._pending.set()

    def told(self, other: str) -> None:
        """Another gateway has the policy of this hash in force."""
        if other != self._manager.current.hash:
            self._notified = other
            self._pending.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        self._pending.set()  # what was put in force while this gateway was away
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
        told, self._notified = self._notified, None
        if told is not None:
            with suppress(GatewayError):  # there are no files
                await self._manager.reload()  # which may say it already: workers have one folder
        published, lineage = await self._store.read()
        own = self._manager.current.hash
        if published is not None and should_adopt(published, lineage, own, await self._manager.last_manual_change_at()):
            await self._adopt(published)
        elif told is not None and told != own:
            fields = {"own": own, "other": told}
            LOG.warning("another gateway on this store has another policy in force", extra={"fields": fields})

    async def _adopt(self, published: Published) -> None:
        try:
            await self._manager.adopt(published)
        except ConfigInvalid as invalid:
            fields = {"hash": published.hash, "faults": [str(fault) for fault in invalid.faults]}
            LOG.error("the policy of the other gateways does not fit this one", extra={"fields": fields})
        except GatewayError as refused:
            fields = {"hash": published.hash, "error": refused.message}
            LOG.error("the policy of the other gateways cannot be written here", extra={"fields": fields})


def sync_policy(stack: AsyncExitStack, manager: PolicyManager, fleet: Fleet, store: PublishedPolicies | None) -> None:
    """Begins to tell the others what the admin port puts in force, and to follow what theirs did. `store` None: no
    other gateway is there."""
    if store is None:
        return
    common = PolicySync(store, manager, fleet.publisher("policy"))
    manager.changed = common.changed
    fleet.on("policy", common.told)
    run_in(stack, common.run())
