"""Apply labels from misses, audits and clients."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from gateway.cache.decoys import Decoys
from gateway.cache.erasure import RecentErasures
from gateway.cache.feedback import Counterexamples, Relation
from gateway.cache.judgement import observation_of
from gateway.cache.links import LEAST_PROBABILITY, Links, link_of
from gateway.cache.threshold.route_control import Controls
from gateway.cache.threshold.wrong_hits import Label
from gateway.entries import Entry
from gateway.errors import StoreUnavailable
from gateway.observability.telemetry import Telemetry
from gateway.ports import Judgement, RelationStore

LOG = logging.getLogger("nearhit.quality")
Listener = Callable[[str, Judgement, Label], None]
"""It is called with the route, the judgement and the label of a lookup."""


@dataclass(frozen=True, slots=True)
class LearnedPairs:
    """The knowledge of single pairs of a question and an entry.

    `store` keeps counterexamples and links for all gateways. Decoys are kept in memory.
    """

    counterexamples: Counterexamples
    links: Links
    decoys: Decoys
    store: RelationStore


class Labels:
    """`Labels` passes each label to its route. `listeners` are called with every label that a route may learn from.
    Labels of lookups that `erased` covers teach nothing."""

    def __init__(
        self,
        controls: Controls,
        pairs: LearnedPairs,
        telemetry: Telemetry,
        listeners: Sequence[Listener] = (),
        erased: RecentErasures | None = None,
    ) -> None:
        self._erased = RecentErasures() if erased is None else erased
        self._listeners = listeners
        self._controls = controls
        self._pairs = pairs
        self._telemetry = telemetry

    def worth(self, route: str, judged: Judgement) -> float:
        """Return how much the label of this lookup would tell its route, at least 0. It depends on the score alone."""
        return 0.0 if judged.verbatim or judged.linked else self._controls.of(route).label_worth(judged.score)

    def report(self, route: str, judged: Judgement, label: Label, source: str, chance: float = 0.0) -> None:
        """Count the label, and let the route learn from it. `source` is miss, audit or feedback. If the label comes
        from comparing answers, `chance` is the probability in [0, 1] of an equal answer to another question. With 1 the
        label teaches nothing.

        Identical wording teaches nothing about how far wordings may differ. A linked pair has no score to learn from.
        """
        self._telemetry.labels.add(route, source, label)
        if judged.verbatim or self._erased.covers(judged):
            return
        if label is Label.WRONG:
            self._pairs.decoys.add(judged.entry.fingerprint, judged.vector)
        if not judged.linked and self._controls.of(route).learn(observation_of(judged, label, chance)):
            self._telemetry.drift_alarms.add(route)
            LOG.warning(
                "drift: neighbours are wrong more often than the route has learned, so its labels are forgotten "
                "and the threshold falls back to the calibration",
                extra={"fields": {"route": route}},
            )
        for listener in self._listeners:
            listener(route, judged, label)

    async def link(self, judged: Judgement, fresh: Entry) -> None:
        """Link two questions whose answers were found equal, each to the entry of the other.

        The entry that is fresh then answers both. `fresh` holds the fresh answer to the question of `judged`.
        """
        stored = judged.entry
        if self._erased.covers(judged):
            return
        if judged.verbatim or judged.linked or judged.probability < LEAST_PROBABILITY:
            return
        if stored.question is None or stored.fingerprint == fresh.fingerprint or stored.scope != fresh.scope:
            return
        links = [
            link_of(stored.scope, judged.question, stored.fingerprint, judged.similarity),
            link_of(stored.scope, stored.question, fresh.fingerprint, judged.similarity),
        ]
        keys = [link.key() for link in links]
        self._pairs.links.add(keys)
        await self._write("a link", self._pairs.store.add_links(keys))

    async def refute(self, relation: Relation) -> bool:
        """Never serve this answer for this question again.

        Return False if the store failed: this gateway then remembers it until a restart, and the others do not know.
        """
        key = relation.key()
        self._pairs.counterexamples.add([key])
        return await self._write("a counterexample", self._pairs.store.add_counterexample(key))

    async def _write(self, what: str, write: Awaitable[None]) -> bool:
        """Wait for a write to the store. Return False, and log it, if the store fails."""
        try:
            await write
        except StoreUnavailable as error:
            self._telemetry.store_errors.add()
            LOG.warning("%s could not be stored", what, extra={"fields": {"error": str(error)}})
            return False
        return True
