"""The port of a feature that decides where an answer is stored, if only the answer says who may share it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from gateway.calls import Call, Inspection
from gateway.context import RequestContext
from gateway.entries import CacheKeys
from gateway.outcomes import Admission


class PlacementDecision(NamedTuple):
    """The decision about a complete answer."""

    admission: Admission
    ttl_s: float = 0.0  # the longest lifetime, in seconds
    keys: CacheKeys | None = None  # the keys to store it under instead of those of the request


class Placement(Protocol):
    """Decides where the answers of a route are stored."""

    def applies(self, request: RequestContext) -> bool:
        """Return whether the keys of the request's answer are known only with the answer."""

    def place(
        self, request: RequestContext, call: Call, inspection: Inspection, *, private: bool, request_time: float
    ) -> PlacementDecision:
        """Decide on a complete answer to a request that `applies`.

        With `private`, an HTTP header of the answer keeps it from other clients. `request_time` is the wall-clock time
        of the call, in seconds.
        """
