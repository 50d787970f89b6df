"""What is found out of a call before its stages are asked: whether what answers it lies in memory."""

from __future__ import annotations

from collections.abc import Callable

from gateway.cache.looked import Sought
from gateway.ports import Clock
from gateway.stages.exact_lookup import ExactLookup
from gateway.stages.similar import Similar

SIMILAR = ("embed", "search", "verify")
Look = Callable[[Sought, float], float]
"""A step that began at this time of the monotonic clock; when it ended."""


class Beforehand:
    """`similar` None: the route has its semantic cache off. `alone`: whether no request with the same fingerprint is in
    flight, and its answer may be stored. In the order of the stages: what they would first wait for is left to them.

    `lifetime`: of exact hits. `steps`: the spans of semantic ones. `looks`: to be taken one after the other until it is
    over, as it is with the last one."""

    def __init__(self, exact: ExactLookup, similar: Similar | None, alone: Callable[[str], bool], clock: Clock) -> None:
        self._exact = exact
        self._similar = similar
        self._alone = alone
        self._clock = clock
        self.lifetime = exact.lifetime
        self.steps = SIMILAR if exact.lifetime is None else ("exact", *SIMILAR)
        self.looks: tuple[Look, ...] = (self._same,)
        if similar is not None:
            self.served = similar.served
            self.looks = self._same, similar.embed, similar.search, similar.judge

    def _same(self, sought: Sought, began: float) -> float:
        found = self._exact.beforehand(sought.asked)
        ended = self._clock.monotonic()
        if self.lifetime is not None:
            sought.spans["exact"] = ended - began
        if found is True and self._alone(sought.asked.fingerprint):
            sought.over = sought.unlike = self._similar is None
            return ended
        sought.over = True
        if not isinstance(found, bool):
            sought.hit = True
            sought.entry, sought.freshness = found
        return ended
