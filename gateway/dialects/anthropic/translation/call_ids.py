"""Give each tool call of a conversation an id of its own. Pure.

Some backends count the calls of each answer from zero (`call_0`), or name them after their tool, so that ids repeat
from turn to turn. Anthropic refuses such a conversation, and its clients pair results with calls by the id alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any


class UniqueIds:
    """`UniqueIds` returns ids as given, and a numbered id for one that is taken. `taken` is asked at the first use."""

    def __init__(self, taken: Callable[[], Iterable[str]] = tuple) -> None:
        self._list_taken = taken
        self._taken: set[str] | None = None
        self._counts: dict[str, int] = {}  # of ids that were taken

    def take(self, given: Any) -> Any:
        """Return an id that no call had so far. Values other than text are passed on."""
        if not isinstance(given, str):
            return given
        if self._taken is None:
            self._taken = set(self._list_taken())
        unique = given
        while unique in self._taken:
            self._counts[given] = count = self._counts.get(given, 1) + 1
            unique = f"{given}_{count}"
        self._taken.add(unique)
        return unique


class PairedIds:
    """`PairedIds` renames the calls of a conversation whose ids repeat, and their results with them.

    Read the messages in their order. Results belong to the latest calls of their id. If one message has several calls
    of one id, the first result belongs to the first call.
    """

    def __init__(self) -> None:
        self._ids = UniqueIds()
        self._message = 0
        self._open: dict[str, tuple[int, list[str]]] = {}  # given id -> its message, its new ids without a result

    def begin_message(self) -> None:
        self._message += 1

    def call(self, given: Any) -> Any:
        """Return the id of a call."""
        unique = self._ids.take(given)
        if isinstance(given, str):
            message, waiting = self._open.get(given, (self._message, []))
            earlier = waiting if message == self._message else []
            self._open[given] = self._message, [*earlier, unique]
        return unique

    def result(self, given: Any) -> Any:
        """Return the id of the call that a result belongs to."""
        waiting = self._open[given][1] if isinstance(given, str) and given in self._open else [given]
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]


def call_ids(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the ids of the tool calls in a messages request."""
    for message in body["messages"]:
        content = message["content"]
        for block in content if isinstance(content, list) else ():
            if block["type"] == "tool_use" and isinstance(block.get("id"), str):
                yield block["id"]
