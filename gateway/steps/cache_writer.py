"""Puts an answer where it is found again: into the store and the index, and into the books of those who keep them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gateway.cache.hit_for_miss import Unstorable
from gateway.config.policy.model import Route
from gateway.context import RequestContext
from gateway.errors import StoreUnavailable
from gateway.messages import Admission, Entry, Vector
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock, NearStore, VectorIndex
from gateway.tasks import held

LOG = logging.getLogger("nearhit.store")


class CacheWriter:
    """`stored` hears of every answer that has been stored. `unstorable`: fingerprints whose answers may not be; one
    whose answer was stored is none of them any more."""

    def __init__(
        self,
        store: NearStore,
        index: VectorIndex,
        clock: Clock,
        telemetry: Telemetry,
        route: Route,
        unstorable: Unstorable,
        stored: Callable[[RequestContext, Entry], None],
    ) -> None:
        self._store = store
        self._index = index
        self._clock = clock
        self._telemetry = telemetry
        self._route = route.name
        self._semantic = route.semantic is not None
        self._unstorable = unstorable
        self._stored = stored
        self._puts: set[asyncio.Task[bool]] = set()

    async def put(self, request: RequestContext, entry: Entry) -> bool:
        """Whether it can be found from now on."""
        vector = self._vector(request)
        if self._banned(entry, vector):
            return False
        began = self._clock.monotonic()
        try:
            return await self._put(request, entry, vector)
        except asyncio.CancelledError:
            # Its client has left, the store may have it, and the index has not: it would never be found in other words.
            # To put it twice leaves what once does.
            held(self._puts, self._put(request, entry, vector))
            raise
        finally:
            request.since("store", began)

    async def _put(self, request: RequestContext, entry: Entry, vector: Vector | None) -> bool:
        try:
            stored = await self._store.put(entry, vector, request.lease)
            stored = stored and await self._made_findable(entry, vector)
        except StoreUnavailable as error:
            self._telemetry.store_errors.add()
            fields = {**request.log_fields, "error": str(error)}
            self._telemetry.store_warnings.warn(LOG, "an answer was not stored", fields)
            return False
        if stored:
            request.stored = entry
            self._unstorable.discard(entry.fingerprint)
            self._stored(request, entry)
        elif request.lease:
            self._telemetry.crowds.add("superseded")
        return stored

    async def _made_findable(self, entry: Entry, vector: Vector | None) -> bool:
        """What the store has. A removal that came while it took it has not seen it there, and means it all the same."""
        if self._store.banned(entry, vector):
            await self._store.delete([entry.fingerprint])
            return False
        if vector is not None:
            await self._index.add(entry.fingerprint, entry.scope, vector, entry.expires)
        return True

    def _vector(self, request: RequestContext) -> Vector | None:
        """What the entry is found by in other words; None where it is not."""
        embedding = request.embedding
        if embedding is None or embedding.partial or not self._semantic:
            return None
        return embedding.vector

    def _banned(self, entry: Entry, vector: Vector | None) -> bool:
        banned = self._store.banned(entry, vector, self._clock.monotonic() - entry.upstream_s)
        self._telemetry.admissions.add(self._route, Admission.PURGED if banned else Admission.STORED)
        return banned
