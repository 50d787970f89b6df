"""An upstream that fails so much more often than the others of its backend that it is left out for a while."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from gateway.circuit_breaker import State
from gateway.upstream.outlier_detection import is_outlier, may_eject
from gateway.upstream.upstream import Lane

LOG = logging.getLogger("nearhit.upstreams")


def eject_if_outlier(backend: str, lane: Lane, lanes: Sequence[Lane], now: float) -> None:
    """After a failure of `lane`, one of the `lanes` of `backend`."""
    states = {other: other.breaker.state(now) for other in lanes}
    if states[lane] is not State.CLOSED:
        return
    others = [other.record.counts(now) for other in lanes if other is not lane]
    out = sum(state is not State.CLOSED for state in states.values())
    if may_eject(out, len(lanes)) and is_outlier(lane.record.counts(now), others):
        lane.breaker.eject(now)
        lane.record.forget()
        LOG.warning("upstream ejected", extra={"fields": {"backend": backend, "upstream": lane.upstream.address}})
