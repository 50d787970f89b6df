"""A backend that is asked through a gate, and tells who waits there."""

from __future__ import annotations

from gateway.context import Crowd
from gateway.priority import Priority
from gateway.upstream.concurrency_limiter import Gate


class Gated:
    """The part of a `Backend` that its gate knows."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    @property
    def crowd(self) -> Crowd:
        return self._gate.crowd

    def wait_s(self, priority: Priority) -> float:
        return self._gate.wait_s(priority)
