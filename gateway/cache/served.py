"""The semantic hits that feedback can still refer to. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from gateway.cache.feedback import relation_of
from gateway.cache.judged import Judged, near_enough
from gateway.messages import Embedding, Entry
from gateway.messages.values import value

# A vector, a question that was read whole, and the entry that was served: some 15 MB with entries of 1 kB.
MAX_SERVED = 5_000


@value(frozen=True, slots=True)
class Served:
    route: str
    judged: Judged
    embedder: str = ""  # the fingerprint of what made the vectors that it was judged by
    told: bool = False  # a client has said what it thinks of it: that counts once


@value(frozen=True, slots=True)
class PlainHit:
    """The same of a hit under a plain threshold. What was judged is made of it for those who ask, which few do."""

    route: str
    entry: Entry
    question: str
    embedding: Embedding
    similarity: float
    threshold: float
    embedder: str
    told: bool = False

    @property
    def judged(self) -> Judged:
        relation = relation_of(self.entry.scope, self.question, self.entry.fingerprint)
        return near_enough(self.entry, relation, self.embedding.vector, self.similarity, self.threshold)


class ServedHits:
    """The last semantic hits by tenant and request id. A tenant can refer to its own alone."""

    def __init__(self, limit: int = MAX_SERVED) -> None:
        self._limit = limit
        self._hits: OrderedDict[tuple[str, str], Served | PlainHit] = OrderedDict()

    def add(self, tenant: str, request_id: str, served: Served | PlainHit) -> None:
        self._hits[tenant, request_id] = served
        if len(self._hits) > self._limit:
            self._hits.popitem(last=False)

    def get(self, tenant: str, request_id: str) -> Served | PlainHit | None:
        return self._hits.get((tenant, request_id))

    def tell(self, tenant: str, request_id: str) -> None:
        """Remembers that there was feedback on this hit."""
        served = self._hits.get((tenant, request_id))
        if served is not None:
            self._hits[tenant, request_id] = replace(served, told=True)
