"""One embedding model follows another: lookups stay with the old one until the new one knows every stored question.

Then one reference is swapped. Requests that are under way keep to the model that they met; what they store after the
swap is embedded anew as it comes, so that nothing is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from gateway.cache.embedding_migration import RETRY_S, Migration
from gateway.cache.embedding_spaces import Spaces
from gateway.cache.recovery import Recovery
from gateway.errors import StoreUnavailable

LOG = logging.getLogger("nearhit.migration")
# For requests that met the old model and have not looked up yet: embedder and index answer within a second or not at
# all. Who comes later, from a wait for another question, finds it closed, which is a miss.
GRACE_S = 5.0


class Succession:
    """`recovery` fills the index of the space that is coming; `swapped` is called once lookups are to go by it, and
    builds what requests pass on it; `former` ends the space before."""

    def __init__(
        self,
        spaces: Spaces,
        migration: Migration,
        recovery: Recovery,
        swapped: Callable[[], None],
        former: AsyncExitStack,
        former_file: Callable[[], None],
    ) -> None:
        self._spaces = spaces
        self._migration = migration
        self.recovery = recovery
        self._swapped = swapped
        self._former = former
        self._former_file = former_file
        self.done = False  # nothing of another model is left that was to be carried over

    async def run(self) -> None:
        """To be run once the serving index holds what the store has for it, and removals are known. For ever."""
        if self._spaces.coming is None:
            await self._migration.run()
            await until_it_answers(self._migration.settle)
            self.done = True
            return
        await self._fill()
        self._swap()
        await until_it_answers(self._spaces.serving.learning.restore)
        await until_it_answers(self._migration.settle)
        await asyncio.sleep(GRACE_S)
        await self._former.aclose()
        self._former_file()
        self.done = True
        await self._migration.follow()

    async def _fill(self) -> None:
        """A method of its own: what runs for ever must not keep the former space in memory."""
        await self.recovery.run()  # what a process before this one has done
        complete = False
        while not complete:
            await self._migration.run()
            await until_it_answers(self.recovery.reconcile)  # what other gateways have done
            await self._spaces.serving.learning.save()
            await self._migration.catch_up()
            complete = not self._spaces.newcomers.overflowed

    def _swap(self) -> None:
        """Without a pause in it: every request is either before it or after."""
        former = self._spaces.serving
        former.learning.retire()
        if former.checkpoints is not None:
            former.checkpoints.complete = False  # its file goes: nothing more is to be written there
        serving = self._spaces.swap()
        self._swapped()
        LOG.info(
            "lookups go by the new embedding model from now on",
            extra={"fields": {"former": former.embedder.fingerprint, "embedder": serving.embedder.fingerprint}},
        )


async def until_it_answers(step: Callable[[], Awaitable[None]]) -> None:
    """What needs the store is tried again until it is there."""
    while True:
        try:
            return await step()
        except StoreUnavailable:
            await asyncio.sleep(RETRY_S)
