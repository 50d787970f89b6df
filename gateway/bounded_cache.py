"""A cache that is bounded in items and in bytes. It evicts the least recently used items."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, ValuesView
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


def _weightless(_: object) -> int:
    return 0


class BoundedCache(Generic[K, V]):
    """`BoundedCache` holds at most `max_items` items, with a total weight of at most `max_weight`.

    `weigh` returns the weight of a value, for example its bytes. `evicted` is called with each evicted item. Use it
    from one thread only.
    """

    __slots__ = ("_evicted", "_items", "_max_items", "_max_weight", "_weigh", "weight")

    def __init__(
        self,
        max_items: int,
        *,
        max_weight: int = 0,
        weigh: Callable[[V], int] = _weightless,
        evicted: Callable[[K, V], None] | None = None,
    ) -> None:
        self._items: OrderedDict[K, V] = OrderedDict()
        self._max_items = max_items
        self._max_weight = max_weight
        self._weigh = weigh
        self._evicted = evicted
        self.weight = 0

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: K) -> bool:
        return key in self._items

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys, least recently used first."""
        return iter(self._items)

    def values(self) -> ValuesView[V]:
        """Return the values in the same order. This does not count as a use."""
        return self._items.values()

    def get(self, key: K) -> V | None:
        """Return the value, or None, and mark it as used."""
        try:
            self._items.move_to_end(key)
        except KeyError:
            return None
        return self._items[key]

    def peek(self, key: K) -> V | None:
        """Return the value, or None, without marking it as used."""
        return self._items.get(key)

    def put(self, key: K, value: V) -> None:
        """Store the value, unless it alone exceeds the maximum weight."""
        self.pop(key)
        weight = self._weigh(value)
        if weight > self._max_weight:
            return
        self._items[key] = value
        self.weight += weight
        while len(self._items) > self._max_items or self.weight > self._max_weight:
            oldest, gone = self._items.popitem(last=False)
            self.weight -= self._weigh(gone)
            if self._evicted is not None:
                self._evicted(oldest, gone)

    def pop(self, key: K) -> V | None:
        value = self._items.pop(key, None)
        if value is not None:
            self.weight -= self._weigh(value)
        return value

    def clear(self) -> None:
        self._items.clear()
        self.weight = 0
