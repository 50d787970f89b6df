"""Which stored answers make room for others: those whose place saves least. Pure: no I/O, no clock.

Greedy-Dual-Size-Frequency (Cherkasova 1998): an entry is worth what its hits save a byte, on top of the worth of what
was evicted last, so that what is no longer asked for falls behind. On Zipf replays it saves 75 % of the dollars where
least-recently-used saves 62 %, and frequency alone 51 % (`python -m bench.eviction`; docs/performance.md).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class _Place:
    size: int
    worth: float
    uses: int
    value: float
    cycle: int  # of the comparisons with the store: the last one that saw it


class Ledger:
    """Every entry of the store with its size in bytes. About 0.4 kB an entry."""

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}
        self.holds = self._places.__contains__  # as `in`, without a frame: every lookup asks
        # A value only rises: the one in here may be an older, lower one, which is looked up when its turn comes.
        self._queue: list[tuple[float, str]] = []
        self._floor = 0.0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, fingerprint: str) -> bool:
        return fingerprint in self._places

    def put(self, fingerprint: str, size: int, worth: float, cycle: int) -> None:
        """Adds or replaces. What is replaced keeps its uses."""
        place = self._places.get(fingerprint)
        if place is None:
            value = self._floor + worth / size  # as `_value`: every put comes by here
            self._places[fingerprint] = _Place(size, worth, 1, value, cycle)
            heapq.heappush(self._queue, (value, fingerprint))
        else:
            self.bytes -= place.size
            place.size, place.worth, place.cycle = size, worth, max(cycle, place.cycle)
            place.value = max(place.value, self._value(place))
        self.bytes += size
        if len(self._queue) > 2 * len(self._places) + 64:  # dropped and put anew, over and over
            self._queue = [(place.value, name) for name, place in self._places.items()]
            heapq.heapify(self._queue)

    def used(self, fingerprint: str) -> None:
        """A hit. What is not known is none of ours."""
        place = self._places.get(fingerprint)
        if place is not None:
            place.uses += 1
            value = self._floor + place.uses * place.worth / place.size  # as `_value`: every hit comes by here
            if value > place.value:
                place.value = value

    def seen(self, fingerprint: str, cycle: int) -> bool:
        """Notes that the store has it. Whether it is known."""
        place = self._places.get(fingerprint)
        if place is not None:
            place.cycle = cycle
        return place is not None

    def hits(self, fingerprint: str) -> int:
        """Since it was put, or was first seen in the store."""
        place = self._places.get(fingerprint)
        return 0 if place is None else place.uses - 1

    def names(self) -> list[str]:
        return list(self._places)

    def known_since(self, fingerprint: str, cycle: int) -> bool:
        """Whether it was put or seen since `cycle` began."""
        place = self._places.get(fingerprint)
        return place is not None and place.cycle >= cycle

    def unseen(self, fingerprint: str, cycle: int) -> bool:
        """Whether it neither was put nor seen since `cycle` began."""
        place = self._places.get(fingerprint)
        return place is not None and place.cycle < cycle

    def drop(self, fingerprint: str) -> None:
        place = self._places.pop(fingerprint, None)
        if place is not None:
            self.bytes -= place.size

    def exceeded(self, max_entries: int, max_bytes: int | None) -> str | None:
        """Which bound is, `entries` or `bytes`."""
        if len(self._places) > max_entries:
            return "entries"
        return "bytes" if max_bytes is not None and self.bytes > max_bytes else None

    def surplus(self, max_entries: int, max_bytes: int | None) -> Iterator[tuple[str, str]]:
        """Takes out what is too much, least valuable first -> (fingerprint, `entries` or `bytes`: which bound)."""
        while self._places and (reason := self.exceeded(max_entries, max_bytes)) is not None:
            value, name = heapq.heappop(self._queue)
            place = self._places.get(name)
            if place is None:
                continue
            if place.value > value:
                heapq.heappush(self._queue, (place.value, name))
                continue
            self._floor = value
            self.drop(name)
            yield name, reason

    def _value(self, place: _Place) -> float:
        return self._floor + place.uses * place.worth / place.size
