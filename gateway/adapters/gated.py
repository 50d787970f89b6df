"""A backend that is asked through a gate, and tells who waits there."""

from __future__ import annotations

from gateway.adapters.gate import Gate
from gateway.ports import Crowd
from gateway.precedence import Priority


class Gated:
    """The part of a `Backend` that its gate knows."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    @property
    def crowd(self) -> Crowd:
        return self._gate.crowd

    def wait_s(self, priority: Priority) -> float:
        return self._gate.wait_s(priority)
