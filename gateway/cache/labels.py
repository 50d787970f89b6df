"""Apply labels from misses, audits and clients."""

from __future__ import annotations

import logging
from collections.abc import Callable

from gateway.cache.feedback import Counterexamples, Relation
from gateway.cache.judgement import observation_of
from gateway.cache.threshold.route_control import Controls
from gateway.cache.threshold.wrong_hits import Label
from gateway.errors import StoreUnavailable
from gateway.observability.telemetry import Telemetry
from gateway.ports import CounterexampleStore, Judgement

LOG = logging.getLogger("nearhit.quality")


def _ignore(*_: object) -> None:
    pass


class Labels:
    """`Labels` passes each label to its route. `on_label` is called with every label that a route may learn from."""

    def __init__(
        self,
        controls: Controls,
        counterexamples: Counterexamples,
        store: CounterexampleStore,
        telemetry: Telemetry,
        on_label: Callable[[str, Judgement, Label], None] = _ignore,
    ) -> None:
        self._on_label = on_label
        self._controls = controls
        self._counterexamples = counterexamples
        self._store = store
        self._telemetry = telemetry

    def report(self, route: str, judged: Judgement, label: Label, source: str) -> None:
        """Count the label, and let the route learn from it. `source`: miss, audit or feedback.

        Identical wording teaches nothing about how far wordings may differ.
        """
        self._telemetry.labels.add(route, source, label)
        if not judged.verbatim:
            if self._controls.of(route).learn(observation_of(judged, label)):
                self._telemetry.drift_alarms.add(route)
                LOG.warning(
                    "drift: neighbours are wrong more often than the route has learned, so its labels are forgotten "
                    "and the threshold falls back to the calibration",
                    extra={"fields": {"route": route}},
                )
            self._on_label(route, judged, label)

    async def refute(self, relation: Relation) -> bool:
        """Never serve this answer for this question again.

        Return False if the store failed: this gateway then remembers it until a restart, and the others do not know.
        """
        key = relation.key()
        self._counterexamples.add([key])
        try:
            await self._store.add_counterexample(key)
        except StoreUnavailable as error:
            self._telemetry.store_errors.add()
            LOG.warning("a counterexample could not be stored", extra={"fields": {"error": str(error)}})
            return False
        return True
