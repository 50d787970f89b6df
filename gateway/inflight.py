"""How many requests wait for something, over all ports of the gateway."""

from __future__ import annotations


class Inflight:
    """`limit`: `server.max_inflight`. Who makes a task for a request counts it; answers from memory take no place."""

    __slots__ = ("count", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0

    @property
    def full(self) -> bool:
        """Whether one more has to be refused."""
        return self.count >= self.limit
