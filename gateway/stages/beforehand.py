"""What is found out of a call before its stages are asked: whether what answers it lies in memory."""

from __future__ import annotations

from collections.abc import Callable

from gateway.messages import Request, Response
from gateway.stages.exact_lookup import ExactLookup
from gateway.stages.from_memory import FromMemory


class Beforehand:
    """`alone`: whether no request with the same fingerprint is in flight, and its answer may be stored. In the order of
    the stages: what they would first wait for is left to them."""

    def __init__(self, exact: ExactLookup, from_memory: FromMemory, alone: Callable[[str], bool]) -> None:
        self._exact = exact
        self._from_memory = from_memory
        self._alone = alone

    def __call__(self, request: Request) -> Response | Request:
        """As `FromMemory`."""
        found = self._exact.beforehand(request)
        if isinstance(found, Response):
            return found
        return self._from_memory.similar(request) if found and self._alone(request.fingerprint) else request
