"""The semantic hits that feedback can still refer to. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.bounded_cache import BoundedCache
from gateway.ports import Judged

# A vector, a question that was read whole, and the entry that was served: some 15 MB with entries of 1 kB.
MAX_SERVED = 5_000


@dataclass(slots=True)
class Served:
    route: str
    judged: Judged
    embedder: str = ""  # the fingerprint of what made the vectors that it was judged by
    told: bool = False  # a client has said what it thinks of it: that counts once


class ServedHits:
    """The last semantic hits by tenant and request id. A tenant can refer to its own alone."""

    def __init__(self, limit: int = MAX_SERVED) -> None:
        self._hits: BoundedCache[tuple[str, str], Served] = BoundedCache(limit)

    def add(self, tenant: str, request_id: str, served: Served) -> None:
        self._hits.put((tenant, request_id), served)

    def get(self, tenant: str, request_id: str) -> Served | None:
        return self._hits.peek((tenant, request_id))

    def tell(self, tenant: str, request_id: str) -> None:
        """Remembers that there was feedback on this hit."""
        served = self._hits.peek((tenant, request_id))
        if served is not None:
            served.told = True
