"""Models the contents of both caches during a replay, as far as the traffic shows them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.cache.keys import owner_of
from gateway.config.policy.model import Route
from gateway.features.simulation.dataset import Node
from gateway.scores import RequestFacts
from gateway.steps.traffic_log.format import RecordedRequest

Key = tuple[str, str, bytes]
"""Owner, route and a digest: that of the request (as in a fingerprint), or that of the context (as in a scope)."""


@dataclass(slots=True)
class StoredAnswer:
    """An answer that is stored from `ready` on. Until then its call is in flight. Times are wall-clock times."""

    fingerprint: str  # hex; takes the place of the real fingerprint
    created: float
    ready: float
    expires: float
    digest: bytes  # digest of the real fingerprint, if it was recorded
    dollars: float
    seconds: float  # duration of its call
    backend: str


@dataclass(slots=True)
class CacheModel:
    """The exact and the semantic cache of one replay. `started_at` is the wall-clock time of the first request."""

    started_at: float
    exact: dict[Key, StoredAnswer] = field(default_factory=dict)
    scopes: dict[Key, dict[Node, StoredAnswer]] = field(default_factory=dict)
    flights: dict[Key, float] = field(default_factory=dict)  # time at which the call in flight for a key ends

    def put(self, key: Key, scope: Key, node: Node | None, stored: StoredAnswer) -> None:
        """Store an answer. If `node` is None, the semantic cache does not find it."""
        self.exact[key] = stored
        if node is not None:
            self.scopes.setdefault(scope, {})[node] = stored

    def add_prior_hit(self, key: Key, scope: Key, node: Node | None, row: RecordedRequest, longest_s: float) -> None:
        """Store the entry of a recorded hit, if the entry is older than the traffic."""
        hit = row.hit
        if hit is None or key in self.exact or row.verdict == "semantic":
            return
        created = row.at - hit.age_s
        if created >= self.started_at:  # stored during the traffic: this replay did not store it
            return
        self.put(key, scope, node, _prior_answer(row.request.canonical, created, hit.entry, longest_s, row))

    def add_prior_neighbours(
        self, scope: Key, row: RecordedRequest, nodes: dict[bytes, Node], longest_s: float
    ) -> None:
        """Store the recorded candidates of a request that are older than the traffic."""
        for each in row.considered:
            node = nodes[each.entry]
            if node < 0:
                within = self.scopes.setdefault(scope, {})
                if node not in within:
                    within[node] = _prior_answer(each.entry, each.created, each.entry, longest_s, row)


def cache_keys(route: Route, given: RequestFacts) -> tuple[Key, Key]:
    """Return the key of the request and the key of its scope."""
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
