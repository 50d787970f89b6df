"""Stored answers that are whole, as the events of a stream: one that is asked for often is taken apart once. Pure.

To take an answer of 74 events apart costs 200 us, to find it here one. It follows from the bytes of the answer, its
dialect and its operation alone, so whoever is served these bytes may be given these events; that nothing removed is
served was seen to when the bytes were found.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.bounded_cache import BoundedCache
from gateway.messages import Call, Event

MAX_BYTES = 16 * 1024 * 1024
LARGEST = 1024 * 1024  # of one of them: a single huge answer must not push out all that is asked for often
EVENT_BYTES = 120  # what an event takes beside its data


class SplitCache:
    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._largest = min(LARGEST, max_bytes)
        self._known: BoundedCache[tuple[str, str, bytes], _Split] = BoundedCache(
            max_bytes, max_weight=max_bytes, weigh=_size
        )

    def events(self, call: Call, whole: bytes) -> tuple[Event, ...]:
        """As `Dialect.events`. Raises `Malformed`."""
        key = call.dialect.name, call.operation, whole
        known = self._known.get(key)
        if known is not None:
            return known.events
        events = call.dialect.events(call, whole)
        size = len(whole) + sum([EVENT_BYTES + len(event.data) for event in events])
        if size <= self._largest:
            self._known.put(key, _Split(events, size))
        return events


class _Split(NamedTuple):
    events: tuple[Event, ...]
    size: int  # bytes


def _size(split: _Split) -> int:
    return split.size
