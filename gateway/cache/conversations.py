"""The port of conversations: a request continues the conversation whose answer a semantic hit has served."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from gateway.cache.links import Links
from gateway.calls import Call
from gateway.context import RequestContext
from gateway.entries import CacheKeys
from gateway.errors import StoreUnavailable
from gateway.messages import Response
from gateway.observability.telemetry import Telemetry
from gateway.ports import NearbyStore, TurnStore
from gateway.tasks import cancel_and_wait

NAME = "Conversations"  # in `nearhit_step_failures_total`
MODULE = "gateway.features.conversations.conversations"


LOG = logging.getLogger("nearhit.semantic")

MAX_WAITING = 1_024  # hits that are not noted yet; beyond it the oldest are forgotten
MAX_BATCH = 64  # notes in one write to the store


class TurnNotes:
    """Notes which entry answered which turn, behind the requests, and writes the notes to the store.

    A hit appends to `waiting` a function that returns the key of its turn, or None, and then sets `arrived`.
    """

    def __init__(self, links: Links, store: TurnStore, telemetry: Telemetry) -> None:
        self.waiting: deque[Callable[[], str | None]] = deque(maxlen=MAX_WAITING)
        self.arrived = asyncio.Event()
        self._links, self._store, self._telemetry = links, store, telemetry
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        await cancel_and_wait(self._task)

    async def _run(self) -> None:
        while True:
            await self.arrived.wait()
            self.arrived.clear()
            while self.waiting:
                batch = [self.waiting.popleft() for _ in range(min(MAX_BATCH, len(self.waiting)))]
                keys = [key for key in map(self._key, batch) if key is not None and self._links.is_new_turn(key)]
                self._links.add(keys)
                if keys:
                    await self._write(keys)

    def _key(self, note: Callable[[], str | None]) -> str | None:
        try:
            return note()
        except Exception as error:  # what a note reads is a client's
            self._telemetry.failures.record(NAME, error)
            return None

    async def _write(self, keys: Sequence[str]) -> None:
        try:
            await self._store.add_turns(keys)
        except StoreUnavailable as error:  # this gateway has them in memory
            self._telemetry.store_errors.add()
            self._telemetry.store_warnings.warn(LOG, "turns were not stored", {"error": str(error)})


@dataclass(frozen=True, slots=True)
class ContinuedRoute:
    """The parts that the conversations of a route need."""

    links: Links
    store: NearbyStore
    notes: TurnNotes
    telemetry: Telemetry


class Continuation(Protocol):
    """A request with turns that semantic hits may have answered."""

    async def keys(self) -> CacheKeys | None:
        """Return the keys of the request in the conversation that it continues, or None if no entry proves one."""


class RouteConversations(Protocol):
    """The conversations of one route."""

    links: Links
    """It has the turns that were noted. Without any there is nothing to find."""

    def find(self, request: RequestContext, call: Call) -> Continuation | None:
        """Return the turns of a request that hits may have answered, or None if there are none. It waits for
        nothing."""

    def note(self, request: RequestContext, hit: Response) -> None:
        """Note which entry a semantic hit has served for the last turn of a request."""


def conversations_of(parts: ContinuedRoute) -> RouteConversations:
    """Import the feature, and open it for a route."""
    conversations: RouteConversations = import_module(MODULE).open_conversations(parts)
    return conversations
