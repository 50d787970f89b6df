"""The log of changes in the store: a writer that appends each change together with the write, and a reader.

The log is one stream, `nearhit:1:changes`, with an entry per write. Its length is bounded, and the oldest entries are
dropped (`XADD ... MAXLEN ~`). A gateway that has fallen behind compares its index with the store instead
(docs/decisions/0022).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from redis.exceptions import RedisError, ResponseError

from gateway.adapters.redis.replies import UNREADABLE
from gateway.errors import StoreUnavailable
from gateway.ports import ChangeKind, EntryPage, StoreChange, number_of

CHANGES_KEY = "nearhit:1:changes"

GOSSIP_KEY = "nearhit:1:spoken"

MAX_GOSSIP_ENTRIES = 10_000  # at most 1.3 kB each: a label with its vector


@dataclass(frozen=True, slots=True)
class ChangeLogWriter:
    """`ChangeLogWriter` appends changes. `gateway` is the name of the writer; `max_entries` is the approximate length
    of the stream."""

    gateway: str
    max_entries: int

    def append(self, pipe: Any, kind: ChangeKind, *names: str) -> None:
        """Append a change to `pipe`, which the caller executes."""
        pipe.xadd(CHANGES_KEY, self._fields(kind, names), maxlen=self.max_entries, approximate=True)

    def command(self, kind: ChangeKind, *names: str) -> list[str | int]:
        """Return the change as the words of a command, for scripts."""
        words = [word for pair in self._fields(kind, names).items() for word in pair]
        return ["XADD", CHANGES_KEY, "MAXLEN", "~", self.max_entries, "*", *words]

    def _fields(self, kind: ChangeKind, names: Sequence[str]) -> dict[str, str]:
        return {"by": self.gateway, kind.value: " ".join(names)}


# The reader of the log. It detects entries that were dropped before it read them.
LOG = logging.getLogger("nearhit.replication")

START = "0-0"

PAGE = 1_000  # changes read at a time

TIMEOUT_S = 2.0

WAIT_S = 1.0  # maximum wait for the next change, before the length of the stream is read again

KINDS = {kind.value: kind for kind in ChangeKind}

T = TypeVar("T")


class ChangeLogReader:
    """`ChangeLogReader` implements `ChangeLog`. It bypasses the store's breaker: it reads all the time, and would take
    the probe of a half-open breaker from a request."""

    def __init__(self, client: Any, key: str = CHANGES_KEY) -> None:
        self._client = client
        self._key = key

    async def end(self) -> str:
        return await self._with_timeout(self._end)

    async def _end(self) -> str:
        info, _, _ = await self._read_stream(START, count=1)
        return START if info is None else _text(info["last-generated-id"])

    async def oldest(self) -> str:
        return await self._with_timeout(self._oldest)

    async def _oldest(self) -> str:
        info, rows, _ = await self._read_stream(START, count=1)
        if info is None or not rows:
            return START if info is None else _text(info["last-generated-id"])
        return _text(rows[0][0])

    async def read(self, after: str) -> EntryPage:
        return await self._with_timeout(lambda: self._read(after))

    async def _read(self, after: str) -> EntryPage:
        info, rows, (seconds, micros) = await self._read_stream(after, count=PAGE)
        now = int(seconds) + int(micros) / 1e6
        if info is None:  # nothing was ever written, or the stream was deleted
            return EntryPage([], START, missed=after != START, more=False, added=0, kept=0, now=now)
        size = int(info["length"])
        added = int(info.get("entries-added", size))  # servers before version 7 do not count them
        if _is_truncated(after, info, added):
            last = _text(info["last-generated-id"])
            return EntryPage([], last, missed=True, more=False, added=added, kept=size, now=now)
        changes, position = [_change(*row) for row in rows], _text(rows[-1][0]) if rows else after
        return EntryPage(changes, position, missed=False, more=len(rows) == PAGE, added=added, kept=size, now=now)

    async def wait(self, after: str) -> None:
        streams = {self._key: after}
        await self._with_timeout(
            lambda: self._client.xread(streams, count=1, block=round(1e3 * WAIT_S)), WAIT_S + TIMEOUT_S
        )

    async def _read_stream(self, after: str, *, count: int) -> tuple[dict[str, Any] | None, list[Any], tuple[int, int]]:
        """Read the stream's state, the entries after `after`, and the server's clock, in one transaction."""
        async with self._client.pipeline(transaction=True) as pipe:
            pipe.xinfo_stream(self._key)
            pipe.xrange(self._key, f"({after}", "+", count=count)
            pipe.time()
            info, rows, time = await pipe.execute(raise_on_error=False)
        if isinstance(info, ResponseError) and "no such key" in str(info):
            return None, [], time
        for answer in (info, rows, time):
            if isinstance(answer, Exception):
                raise answer
        return info, rows, time

    async def _with_timeout(self, operation: Callable[[], Awaitable[T]], timeout_s: float = TIMEOUT_S) -> T:
        try:
            async with asyncio.timeout(timeout_s):
                return await operation()
        except (RedisError, OSError, TimeoutError, *UNREADABLE) as error:
            raise StoreUnavailable(f"the store failed: {type(error).__name__}: {error}"[:300]) from None


def _is_truncated(after: str, info: Mapping[str, Any], added: int) -> bool:
    """Return whether an entry after `after` may be gone.

    The oldest entries are dropped first. So nothing is missed if an entry exists that is not younger than `after`. A
    stream that ends before `after` is a different stream.
    """
    at, last = number_of(after), number_of(_text(info["last-generated-id"]))
    if at == last:
        return False
    if at > last or not info["length"]:
        return True
    if at == number_of(START):  # from the beginning: check whether anything was trimmed yet
        return added > int(info["length"])
    return number_of(_text(info["first-entry"][0])) > at


def _change(identifier: bytes | str, fields: Mapping[bytes, bytes] | Sequence[Any]) -> StoreChange:
    position = _text(identifier)
    at = number_of(position)[0] / 1e3
    texts = {_text(name): _text(value) for name, value in dict(fields).items()}
    by = texts.pop("by", "")
    for name, value in texts.items():
        if name in KINDS:
            return StoreChange(KINDS[name], by, at, value, position)
    return StoreChange(None, by, at, "", position)


def _text(value: bytes | str) -> str:
    if not isinstance(value, bytes | str):
        raise TypeError(type(value).__name__)
    return value.decode(errors="replace") if isinstance(value, bytes) else value
