"""How many requests wait for something, over all ports of the gateway."""

from __future__ import annotations


class Inflight:
    """`limit`: `server.max_inflight`. The server counts a request when it makes a task for it; answers from memory
    make none."""

    __slots__ = ("count", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0

    @property
    def full(self) -> bool:
        """Whether one more has to be refused."""
        return self.count >= self.limit
