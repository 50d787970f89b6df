"""The vector index in Milvus: one collection per embedding model, common to all gateways on the store.

The scope is the collection's partition key, and the filter of every search. This process keeps only counts. The gateway
that stores an answer writes its vector once, and the other gateways find it there.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from pymilvus import DataType, MilvusClient

from gateway.bounded_cache import BoundedCache
from gateway.circuit_breaker import BreakerState
from gateway.entries import Neighbour, Vector
from gateway.errors import IndexUnavailable
from gateway.features.milvus.server import MilvusServer
from gateway.ports import Clock, StoredVector
from gateway.tasks import Background

LOG = logging.getLogger("nearhit.index")
BATCH = 500  # vectors per call: 0.8 MB at 384 dimensions
PAGE = 1000  # entries per page of a listing
BACKGROUND_TIMEOUT_S = 30.0  # for calls that no request waits for
FLUSH_TIMEOUT_S = 300.0  # for the end of a bulk load
SWEEP_S = 60.0  # interval between removals of expired entries
COUNT_S = 60.0  # how long a scope's count is valid
MAX_SCOPES = 10_000  # scopes with a cached count: 2 MB
MAX_COUNTS = 4  # scopes counted concurrently
FOREVER = 2**53
METRIC = "IP"  # inner product of unit vectors: the cosine, as with FAISS
# A search may miss entries of the last seconds, or find one just removed. That is harmless, because the record is
# always read from the store. A purge needs complete results.
BOUNDED_CONSISTENCY, STRONG_CONSISTENCY = "Bounded", "Strong"
Row = Mapping[str, Any]


def collection_name(embedder: str) -> str:
    """Return the collection name for an embedder's fingerprint."""
    return "nearhit_1_" + hashlib.sha256(embedder.encode()).hexdigest()[:16]


class MilvusIndex:
    """`MilvusIndex` implements `VectorIndex` in Milvus. It has no size limit: entries that the store evicts also leave
    this index. `timeout_s` is for a search or an addition."""

    shared = True
    entries_on_device = None

    def __init__(
        self, url: str, *, dimension: int, collection: str, clock: Clock, timeout_s: float, token: str = ""
    ) -> None:
        self._dimension = dimension
        self._collection = collection
        self._clock = clock
        self._server = MilvusServer(url, token, timeout_s=timeout_s, clock=clock, prepare=self._prepare)
        self._size = 0
        # scope -> entries, time of the count
        self._counts: BoundedCache[str, tuple[int, float]] = BoundedCache(MAX_SCOPES)
        self._counting = Background(MAX_COUNTS)

    @property
    def size(self) -> int:
        """The number of entries at the last count, at most `SWEEP_S` ago."""
        return self._size

    @property
    def bytes(self) -> int:
        """The bytes of the vectors in Milvus. This process holds none."""
        return self._size * 4 * self._dimension

    @property
    def breaker(self) -> BreakerState:
        return self._server.breaker

    async def add(self, fingerprint: str, scope: str, vector: Vector, expires: float = math.inf) -> None:
        self._check(vector)
        await self._upsert([StoredVector(fingerprint, scope, vector, expires)], None)
        self._add_to_count(scope, 1)

    async def add_all(self, vectors: Sequence[StoredVector]) -> None:
        fitting = [each for each in vectors if each.vector.shape == (self._dimension,)]
        if len(fitting) < len(vectors):  # damaged; one bad vector must not keep the others out of the index
            LOG.warning("vectors were skipped", extra={"fields": {"count": len(vectors) - len(fitting)}})
        for i in range(0, len(fitting), BATCH):
            await self._upsert(fitting[i : i + BATCH], BACKGROUND_TIMEOUT_S)

    def holds(self, fingerprint: str) -> bool:
        return False  # a caller that needs this replicates the store, and nobody replicates to a shared index

    def count(self, scope: str) -> int:
        return (self._counts.peek(scope) or (0, 0.0))[0]

    def search_nowait(self, scope: str, vector: Vector, k: int) -> list[Neighbour] | None:
        return None  # a search needs a network call

    async def search(self, scope: str, vector: Vector, k: int) -> list[Neighbour]:
        self._check(vector)
        counted = self._counts.get(scope)
        if counted is not None:
            if self._clock.monotonic() - counted[1] > COUNT_S:
                self._counting.start(scope, self._count(scope))
            neighbours = await self._search(scope, vector, k)
        else:  # thresholds depend on the count, so a first search waits for it
            neighbours, _ = await asyncio.gather(self._search(scope, vector, k), self._count(scope))
        return neighbours

    async def near(self, vector: Vector, similarity: float) -> list[str]:
        """Return the entries within `similarity` of `vector`. It reads every vector: a Milvus search returns only the
        nearest and may miss some, which a purge must not."""
        self._check(vector)
        fingerprints: list[str] = []
        async for page in self._pages("fingerprint", "vector"):
            close = np.array([row["vector"] for row in page], dtype=np.float32) @ vector >= similarity
            fingerprints += [page[i]["fingerprint"] for i in np.flatnonzero(close).tolist()]
        return fingerprints

    async def remove(self, fingerprints: Sequence[str]) -> int:
        removed = 0
        for i in range(0, len(fingerprints), PAGE):
            some = fingerprints[i : i + PAGE]
            removed += await self._server.call(
                partial(self._remove, list(some)), None if len(some) == 1 else BACKGROUND_TIMEOUT_S
            )
        return removed

    async def fingerprints(self) -> list[str]:
        return [row["fingerprint"] async for page in self._pages("fingerprint") for row in page]

    async def refresh(self) -> None:
        """Count the entries. Raise `IndexUnavailable`."""
        self._size = await self._server.call(partial(self._count_rows, ""), BACKGROUND_TIMEOUT_S)

    async def sweep(self) -> None:
        """Remove expired entries. Every gateway does it; a second one finds none. Raise `IndexUnavailable`."""
        condition = f"expires <= {math.floor(self._clock.wall())}"
        await self._server.call(
            lambda client, limit_s: client.delete(self._collection, filter=condition, timeout=limit_s),
            BACKGROUND_TIMEOUT_S,
        )

    async def flush(self) -> None:
        """Seal and index all writes, at the end of a bulk load. Raise `IndexUnavailable`."""
        await self._server.call(
            lambda client, limit_s: client.flush(self._collection, timeout=limit_s), FLUSH_TIMEOUT_S
        )

    async def drop(self) -> None:
        """Drop the collection with its contents. Raise `IndexUnavailable`."""
        await self._server.call(
            lambda client, limit_s: client.drop_collection(self._collection, timeout=limit_s), BACKGROUND_TIMEOUT_S
        )

    async def run(self) -> None:
        """Run forever: connect before the first request needs it, and remove expired entries."""
        while True:
            try:
                await self.sweep()
                await self.refresh()
            except IndexUnavailable as error:
                LOG.warning("the index could not be swept", extra={"fields": {"error": str(error)}})
            await asyncio.sleep(SWEEP_S)

    async def close(self) -> None:
        await self._counting.close()
        await asyncio.to_thread(self._server.close)

    async def _upsert(self, vectors: Sequence[StoredVector], timeout_s: float | None) -> None:
        rows = [
            {
                "fingerprint": each.fingerprint,
                "scope": each.scope,
                "expires": FOREVER if each.expires >= FOREVER else math.ceil(each.expires),
                "vector": each.vector,
            }
            for each in vectors
        ]
        await self._server.call(
            lambda client, limit_s: client.upsert(self._collection, rows, timeout=limit_s), timeout_s
        )

    async def _search(self, scope: str, vector: Vector, k: int) -> list[Neighbour]:
        def ask(client: MilvusClient, limit_s: float) -> list[Neighbour]:
            (hits,) = client.search(
                self._collection,
                data=[vector],
                filter=_scope_filter(scope),
                limit=k,
                search_params={"metric_type": METRIC},
                consistency_level=BOUNDED_CONSISTENCY,
                timeout=limit_s,
            )
            return [Neighbour(hit["fingerprint"], float(np.clip(hit["distance"], 0.0, 1.0))) for hit in hits]

        return await self._server.call(ask)

    async def _count(self, scope: str) -> None:
        count = await self._server.call(partial(self._count_rows, _scope_filter(scope)))
        self._counts.put(scope, (count, self._clock.monotonic()))

    def _add_to_count(self, scope: str, more: int) -> None:
        """Adjust a count until the next one. An entry that was replaced counts twice until then."""
        counted = self._counts.peek(scope)
        if counted is not None:
            count, at = counted
            self._counts.put(scope, (count + more, at))

    async def _pages(self, *fields: str) -> AsyncIterator[list[Row]]:
        """Yield everything page by page. Each page is a separate call."""
        pages = await self._server.call(
            lambda client, limit_s: client.query_iterator(
                self._collection,
                batch_size=PAGE,
                filter="",
                output_fields=list(fields),
                consistency_level=STRONG_CONSISTENCY,
                timeout=limit_s,
            ),
            BACKGROUND_TIMEOUT_S,
        )
        while page := await self._server.call(lambda *_: pages.next(), BACKGROUND_TIMEOUT_S):
            yield page

    def _check(self, vector: Vector) -> None:
        if vector.shape != (self._dimension,) or vector.dtype != np.float32:
            raise ValueError(f"a vector of {vector.dtype}{vector.shape}, expected float32({self._dimension},)")

    # The following methods run in a thread of the server object.

    def _prepare(self, client: MilvusClient, limit_s: float) -> None:
        """Create the collection if it does not exist. Two gateways that do so at once create the same one."""
        if not client.has_collection(self._collection, timeout=limit_s):
            schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field("fingerprint", DataType.VARCHAR, is_primary=True, max_length=256)
            schema.add_field("scope", DataType.VARCHAR, max_length=256, is_partition_key=True)
            schema.add_field("expires", DataType.INT64)  # wall clock, seconds
            schema.add_field("vector", DataType.FLOAT_VECTOR, dim=self._dimension)
            index = client.prepare_index_params()
            index.add_index("vector", index_type="AUTOINDEX", metric_type=METRIC)
            client.create_collection(
                self._collection,
                schema=schema,
                index_params=index,
                consistency_level=BOUNDED_CONSISTENCY,
                timeout=BACKGROUND_TIMEOUT_S,
            )
        client.load_collection(self._collection, timeout=limit_s)

    def _remove(self, fingerprints: list[str], client: MilvusClient, limit_s: float) -> int:
        there = client.query(
            self._collection,
            ids=fingerprints,
            output_fields=["fingerprint"],
            consistency_level=STRONG_CONSISTENCY,
            timeout=limit_s,
        )
        if there:
            names = [row["fingerprint"] for row in there]
            client.delete(self._collection, ids=names, timeout=limit_s)
        return len(there)

    def _count_rows(self, condition: str, client: MilvusClient, limit_s: float) -> int:
        (row,) = client.query(
            self._collection,
            filter=condition,
            output_fields=["count(*)"],
            consistency_level=STRONG_CONSISTENCY,
            timeout=limit_s,
        )
        return int(row["count(*)"])


def _scope_filter(scope: str) -> str:
    return f"scope == {json.dumps(scope)}"
