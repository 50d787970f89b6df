"""Routes whose requests need no stage: all that is done with them is to ask one upstream over HTTP."""

from __future__ import annotations

from typing import NamedTuple

from gateway.adapters.http_backend import HttpBackend
from gateway.adapters.http_own_client import OwnClient
from gateway.backends.lane import Lane
from gateway.backends.pool import Pool


class Direct(NamedTuple):
    """What such a route asks. `calls`: that goes for calls that a dialect knows, too, and not for all else alone."""

    pool: Pool
    lane: Lane
    backend: HttpBackend
    client: OwnClient
    calls: bool
    exposes: bool  # the policy's `expose_headers`


def direct_to(pool: Pool, *, calls: bool, exposes: bool) -> Direct | None:
    """None where `pool` has several upstreams, or one that is asked in another way."""
    lane = pool.lone
    backend = None if lane is None else lane.backend
    if lane is None or not isinstance(backend, HttpBackend) or backend.kept_connections is None:
        return None
    return Direct(pool, lane, backend, backend.kept_connections, calls, exposes)
