"""Waiting for one server with one queue: a gateway's event loop, or the thread of its embedding model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Service:
    """What requests take of a server, on the mean of all: `mean_s`, and `square`, the mean of its square in s^2."""

    mean_s: float
    square: float

    @classmethod
    def of(cls, kinds: Iterable[tuple[float, float]]) -> Service:
        """Kinds of request as (share, seconds); each kind takes the same always. What is left of 1 takes nothing."""
        known = list(kinds)
        return cls(sum(p * s for p, s in known), sum(p * s * s for p, s in known))


def mean_wait_s(rate: float, service: Service, taken: float = 0.0) -> float:
    """Until the server begins, for Poisson arrivals: Pollaczek and Khinchine, rate E[S^2] / (2 (1 - utilisation)).

    `rate`: a second. `taken`: the part of the server that other work has, in [0, 1). inf where it cannot keep up.
    """
    left = 1.0 - taken
    used = rate * service.mean_s / left if left > 0 else math.inf
    if used >= 1:
        return math.inf
    return rate * service.square / (2 * left * left * (1 - used))


def wait_quantile_s(rate: float, service: Service, quantile: float, taken: float = 0.0) -> float:
    """What `quantile` of the requests wait at most, with an exponential tail: P(W > t) = u exp(-t u / E[W]), which is
    exact for exponential service and errs by some per cent of a wait for others (held by bench/capacity_model.py)."""
    wait = mean_wait_s(rate, service, taken)
    used = rate * service.mean_s / (1 - taken) if taken < 1 else math.inf
    if used <= 1 - quantile or wait == 0:
        return 0.0
    return wait / used * math.log(used / (1 - quantile)) if math.isfinite(wait) else math.inf


def servers(work: float, utilisation: float) -> float:
    """How many servers, not rounded, have `work` seconds a second to do at `utilisation` of each, in (0, 1)."""
    return work / utilisation


def whole(count: float) -> int:
    """Rounded up, at least 1; a sum's last bit does not make one more."""
    return max(1, math.ceil(count - 1e-9))
