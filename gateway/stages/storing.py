"""Puts an answer where it is found again: into the store and the index, and into the books of those who keep them."""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future
from collections.abc import Callable
from functools import partial
from typing import Any

from gateway.background import held
from gateway.errors import StoreUnavailable
from gateway.flights.unstorable import Unstorable
from gateway.messages import Admission, Entry, Request, Vector
from gateway.observing.telemetry import Telemetry
from gateway.policy.model import Route
from gateway.ports import Clock, NearStore, VectorIndex

LOG = logging.getLogger("nearhit.store")
Then = Callable[[bool], None]
"""Told, once, whether an answer can be found from now on."""


class Storing:
    """`told` hears of every answer that has been stored. `unstorable`: what was not; an answer that was is none of it
    any more."""

    def __init__(
        self,
        store: NearStore,
        index: VectorIndex,
        clock: Clock,
        telemetry: Telemetry,
        route: Route,
        unstorable: Unstorable,
        told: Callable[[Request, Entry], None] | None = None,
    ) -> None:
        self._store = store
        self._index = index
        self._clock = clock
        self._telemetry = telemetry
        self._route = route.name
        self._semantic = route.semantic is not None
        self._unstorable = unstorable
        self._resting = set[asyncio.Task[None]]()
        self._told = told

    async def put(self, request: Request, entry: Entry) -> bool:
        """Whether it can be found from now on."""
        vector = self._vector(request)
        if self._banned(entry, vector):
            return False
        began = self._clock.monotonic()
        try:
            stored = await self._placed(entry, vector, request.lease)
        except StoreUnavailable as error:
            self._failed(request, error)
            return False
        finally:
            request.trace.since("store", began)
        if stored:
            self._stored(request, entry)
        elif request.lease:
            self._telemetry.crowds.add("superseded")
        return stored

    def begin(self, request: Request, entry: Entry, then: Then) -> None:
        """As `put`, for who has no lease, and no task to wait in. Goes on also where nobody waits any more."""
        vector = self._vector(request)
        if self._banned(entry, vector):
            then(False)
            return
        began = self._clock.monotonic()
        try:
            reply = self._store.begin_put(entry, vector)
        except Exception as error:
            self._over(request, entry, began, then, failed=error)
            return
        reply.add_done_callback(partial(self._replied, request, entry, vector, began, then))

    def _replied(
        self, request: Request, entry: Entry, vector: Vector | None, began: float, then: Then, reply: Future[Any]
    ) -> None:
        try:
            stored = self._store.was_put(entry, vector, reply)
            kept = stored and not self._store.banned(entry, vector)
            over = kept and (vector is None or self._index.add_at_hand(entry.fingerprint, entry.scope, vector))
        except Exception as error:
            self._over(request, entry, began, then, failed=error)
            return
        if over:
            self._over(request, entry, began, then)
            return
        held(self._resting, self._rest(request, entry, vector, began, then, stored=stored))

    async def _rest(
        self, request: Request, entry: Entry, vector: Vector | None, began: float, then: Then, *, stored: bool
    ) -> None:
        """Where the store is to be asked once more, or the index waited for."""
        failed: Exception | None = None
        try:
            stored = await (self._findable(entry, vector) if stored else self._placed(entry, vector, 0))
        except Exception as error:
            failed = error
        self._over(request, entry, began, then, failed=failed, stored=stored)

    async def _placed(self, entry: Entry, vector: Vector | None, lease: int) -> bool:
        return await self._store.put(entry, vector, lease) and await self._findable(entry, vector)

    async def _findable(self, entry: Entry, vector: Vector | None) -> bool:
        """What the store has. A removal that came while it took it has not seen it there, and means it all the same."""
        if self._store.banned(entry, vector):
            await self._store.delete([entry.fingerprint])
            return False
        if vector is not None:
            await self._index.add(entry.fingerprint, entry.scope, vector, entry.expires)
        return True

    def _over(
        self,
        request: Request,
        entry: Entry,
        began: float,
        then: Then,
        *,
        failed: Exception | None = None,
        stored: bool = True,
    ) -> None:
        """`stored` False: it was removed before it was put."""
        request.trace.since("store", began)
        try:
            if isinstance(failed, StoreUnavailable):
                self._failed(request, failed)
            elif failed is not None:
                raise failed
            elif stored:
                self._stored(request, entry)
        except Exception:  # there is no stage around this: who waits is told whatever is wrong with us
            LOG.exception("internal error", extra={"fields": request.named})
        then(stored and failed is None)

    def _vector(self, request: Request) -> Vector | None:
        """What the entry is found by in other words; None where it is not."""
        embedding = request.embedding
        if embedding is None or embedding.partial or not self._semantic:
            return None
        return embedding.vector

    def _banned(self, entry: Entry, vector: Vector | None) -> bool:
        banned = self._store.banned(entry, vector, self._clock.monotonic() - entry.upstream_s)
        self._telemetry.admissions.add(self._route, Admission.PURGED if banned else Admission.STORED)
        return banned

    def _failed(self, request: Request, error: StoreUnavailable) -> None:
        self._telemetry.store_errors.add()
        self._telemetry.store_warnings.warn(LOG, "an answer was not stored", {**request.named, "error": str(error)})

    def _stored(self, request: Request, entry: Entry) -> None:
        request.trace.stored = entry
        self._unstorable.discard(entry.fingerprint)
        if self._told is not None:
            self._told(request, entry)
