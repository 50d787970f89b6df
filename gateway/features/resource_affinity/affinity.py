"""Remember which backend made a resource, so that a request that names its id goes there.

The ids are in memory and in the store: other gateways know them, and so does this one after a restart. They are kept as
digests with the tenant. So no client can find out, or change, where another tenant's id leads, unless both get the same
answers from a cache.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Protocol

from gateway.bounded_cache import BoundedCache
from gateway.errors import StoreUnavailable
from gateway.messages import Affinity

LOG = logging.getLogger("nearhit.affinity")

SHARED = ""  # in place of the tenant: all tenants may get the answer with this id from a cache that they share
MAX_IDS = 20_000  # in memory, 200 bytes each; the store keeps more
MAX_UNWRITTEN = 10_000  # while the store is slow or away
MAX_BATCH = 500  # ids of one write


class AffinityStore(Protocol):
    """The makers of resources, by a digest of the resource's id and its tenant: a bounded number, for 30 days."""

    async def find(self, keys: Sequence[bytes]) -> list[Affinity | None]:
        """Return the maker of each. Raise `StoreUnavailable`."""

    async def add(self, affinities: Mapping[bytes, Affinity]) -> None:
        """Raise `StoreUnavailable`."""


class ResourceAffinity:
    """`ResourceAffinity` finds and keeps the makers of resources. All routes share it.

    Without the store it works from memory. Ids that are written no more than 30 days ago are known, and at most as many
    as the store keeps.
    """

    def __init__(self, store: AffinityStore) -> None:
        self._store = store
        self._known: BoundedCache[bytes, Affinity] = BoundedCache(MAX_IDS)
        self._unwritten: dict[bytes, Affinity] = {}
        self._writer: asyncio.Task[None] | None = None

    async def find(self, tenant: str, ids: Sequence[str]) -> Affinity | None:
        """Return the maker of the first known id, or None if none of them is known. Never raise."""
        keys = [affinity_key(owner, each) for each in ids for owner in (tenant, SHARED)]
        for key in keys:
            maker = self._known.get(key)
            if maker is not None:
                return maker
        if not keys:
            return None
        try:
            affinities = await self._store.find(keys)
        except StoreUnavailable:
            return None
        for key, affinity in zip(keys, affinities, strict=True):
            if affinity is not None:
                self._known.put(key, affinity)
                return affinity
        return None

    def remember(self, tenant: str, ids: Sequence[str], affinity: Affinity) -> None:
        """Remember who made the resources with these ids. The write to the store is waited for by nobody."""
        for each in ids:
            key = affinity_key(tenant, each)
            if self._known.get(key) == affinity:
                continue
            self._known.put(key, affinity)
            if len(self._unwritten) < MAX_UNWRITTEN:
                self._unwritten[key] = affinity
        if self._unwritten and self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write())

    async def close(self) -> None:
        """Return when the last ids are written."""
        if self._writer is not None:
            await self._writer

    async def _write(self) -> None:
        try:
            while self._unwritten:
                batch = dict(list(self._unwritten.items())[:MAX_BATCH])
                for key in batch:
                    del self._unwritten[key]
                await self._store.add(batch)
        except StoreUnavailable as error:  # these ids stay in memory
            LOG.warning("the makers of resources were not stored", extra={"fields": {"error": str(error)}})
        finally:
            self._writer = None


def affinity_key(tenant: str, resource: str) -> bytes:
    """Return the digest under which a tenant's id is kept, 16 bytes."""
    digest = blake2b(len(tenant).to_bytes(4), digest_size=16)
    digest.update(tenant.encode("utf-8", "surrogatepass"))
    digest.update(resource.encode("utf-8", "surrogatepass"))
    return digest.digest()
