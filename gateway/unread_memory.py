"""The memory for answers that clients have not read yet."""

from __future__ import annotations


class UnreadMemory:
    """`UnreadMemory` counts the bytes of unread answers, of all connections and shared calls of a process together.

    `limit`: `server.max_unread`. Each owner of unread bytes adds them to `used`, and takes them back.
    """

    __slots__ = ("limit", "used")

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.used = 0

    @property
    def has_room(self) -> bool:
        return self.used < self.limit
