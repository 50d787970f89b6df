"""Stored answers that are whole, as the events of a stream: one that is asked for often is taken apart once. Pure.

To take an answer of 74 events apart costs 200 us, to find it here one. It follows from the bytes of the answer, its
dialect and its operation alone, so whoever is served these bytes may be given these events; that nothing removed is
served was seen to when the bytes were found.
"""

from __future__ import annotations

from collections import OrderedDict

from gateway.messages import Call, Event

MAX_BYTES = 16 * 1024 * 1024
LARGEST = 1024 * 1024  # of one of them: a single huge answer must not push out all that is asked for often
EVENT_BYTES = 120  # what an event takes beside its data


class TakenApart:
    """Bounded in bytes; those that were not asked for longest make room."""

    def __init__(self, limit: int = MAX_BYTES) -> None:
        self._limit = limit
        self._known: OrderedDict[tuple[str, str, bytes], tuple[tuple[Event, ...], int]] = OrderedDict()
        self.bytes = 0

    def events(self, call: Call, whole: bytes) -> tuple[Event, ...]:
        """As `Dialect.events`. Raises `Malformed`."""
        key = call.dialect.name, call.operation, whole
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return known[0]
        events = call.dialect.events(call, whole)
        size = len(whole) + sum([EVENT_BYTES + len(event.data) for event in events])
        if size <= min(LARGEST, self._limit):
            self._known[key] = events, size
            self.bytes += size
            while self.bytes > self._limit:
                _, (_, oldest) = self._known.popitem(last=False)
                self.bytes -= oldest
        return events
