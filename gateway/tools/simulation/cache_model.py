"""What is stored while traffic is replayed: who would find what, as far as it can be known. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.cache.keys import owner_of
from gateway.config.policy.model import Route
from gateway.messages import RequestFacts
from gateway.steps.traffic_log.format import RecordedRequest
from gateway.tools.simulation.dataset import Node

Key = tuple[str, str, bytes]
"""Owner, route and digest: of the request it is what a fingerprint is of, of the context what a scope is."""


@dataclass(slots=True)
class StoredAnswer:
    """An answer, from `ready` on: before that it is on its way. Times are of the wall clock."""

    fingerprint: str  # hex; stands for the real one
    created: float
    ready: float
    expires: float
    digest: bytes  # of the real one, where it was recorded
    dollars: float
    seconds: float  # that it took to come
    backend: str


class CacheModel:
    """Both caches of one replay. `began`: when the first request came, wall clock."""

    def __init__(self, began: float) -> None:
        self._started_at = began
        self.exact: dict[Key, StoredAnswer] = {}
        self.scopes: dict[Key, dict[Node, StoredAnswer]] = {}
        self.flights: dict[Key, float] = {}  # until when an identical request finds one in flight

    def put(self, key: Key, scope: Key, node: Node | None, stored: StoredAnswer) -> None:
        """`node` None: it is not to be found in other words."""
        self.exact[key] = stored
        if node is not None:
            self.scopes.setdefault(scope, {})[node] = stored

    def add_prior_hit(self, key: Key, scope: Key, node: Node | None, row: RecordedRequest, longest_s: float) -> None:
        """Of a request that was a hit on what was stored before the traffic began."""
        hit = row.hit
        if hit is None or key in self.exact or row.verdict == "semantic":
            return
        created = row.at - hit.age_s
        if created >= self._started_at:  # it was stored in the traffic, and here it was not
            return
        self.put(key, scope, node, _prior_answer(row.given.canonical, created, hit.entry, longest_s, row))

    def add_prior_neighbours(
        self, scope: Key, row: RecordedRequest, nodes: dict[bytes, Node], longest_s: float
    ) -> None:
        """The same of stored answers that were judged for it."""
        for each in row.considered:
            node = nodes[each.entry]
            if node < 0:
                within = self.scopes.setdefault(scope, {})
                if node not in within:
                    within[node] = _prior_answer(each.entry, each.created, each.entry, longest_s, row)


def cache_keys(route: Route, given: RequestFacts) -> tuple[Key, Key]:
    """Of the request, and of its scope."""
    owner = owner_of(route.share, given.tenant.hex(), given.user.hex() or None)
    return (owner, route.name, given.canonical), (owner, route.name, given.context)


def _prior_answer(name: bytes, created: float, digest: bytes, longest_s: float, row: RecordedRequest) -> StoredAnswer:
    hit = row.hit if row.hit is not None and row.hit.entry == digest else None
    return StoredAnswer(
        (name.hex() + "0" * 8)[:64],
        created,
        created,
        created + longest_s,
        digest,
        0.0 if hit is None else hit.dollars,
        0.0 if hit is None else hit.seconds,
        row.backend or "",
    )
