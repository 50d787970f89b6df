"""What is found out of a call before its stages are asked: whether what answers it lies in memory."""

from __future__ import annotations

from collections.abc import Callable

from gateway.cache.looked import Hit, Missed, Spans
from gateway.messages import Asked
from gateway.ports import Clock
from gateway.stages.exact_lookup import ExactLookup
from gateway.stages.similar import Similar

SIMILAR = ("embed", "search", "verify")


class Beforehand:
    """`similar` None: the route has its semantic cache off. `alone`: whether no request with the same fingerprint is in
    flight, and its answer may be stored. In the order of the stages: what they would first wait for is left to them.

    `lifetime`: of exact hits. `steps`: the spans of semantic ones."""

    def __init__(self, exact: ExactLookup, similar: Similar | None, alone: Callable[[str], bool], clock: Clock) -> None:
        self._exact = exact
        self._similar = similar
        self._alone = alone
        self._clock = clock
        self.lifetime = exact.lifetime
        self.steps = SIMILAR if exact.lifetime is None else ("exact", *SIMILAR)
        if similar is not None:
            self.served = similar.served

    def find(self, asked: Asked) -> Hit | Missed:
        began = self._clock.monotonic()
        found = self._exact.beforehand(asked)
        spans: Spans = {} if self.lifetime is None else {"exact": self._clock.monotonic() - began}
        if found is True and self._alone(asked.fingerprint):
            return Missed(spans, unlike=True) if self._similar is None else self._similar.find(asked, spans)
        return Missed(spans) if isinstance(found, bool) else Hit(*found, spans)
