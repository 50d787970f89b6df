"""The memory for answers that clients have not read yet."""

from __future__ import annotations

# The share of the memory for streams that are read ahead. The rest is for whole answers, and for the last piece of each
# stream, so that a stream that stops in time costs nobody the connection.
READ_AHEAD_PART = 0.75


class UnreadMemory:
    """`UnreadMemory` counts the bytes of unread answers, of all connections and shared calls of a process together.

    `limit` is `server.max_unread`. Each owner of unread bytes adds them to `used`, and takes them back once they are
    freed. `leaving` is the part of `used` that belongs to clients that were cut off, which is freed in a moment.
    """

    __slots__ = ("leaving", "limit", "used")

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.used = self.leaving = 0

    @property
    def is_exceeded(self) -> bool:
        """Whether more clients must be cut off."""
        return self.used - self.leaving > self.limit

    @property
    def has_room(self) -> bool:
        """Whether streams may be read further ahead of their clients."""
        return self.used < self.limit * READ_AHEAD_PART
