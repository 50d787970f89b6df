"""Bounds what clients cost that do not read their answers: memory, and the permits of backends.

The gateway reads an answer ahead of its client, so that the backend finishes and its permit is released. All unread
answers together have one bound, `server.max_unread`. A client that reads too slowly for too long is cut off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gateway.adapters.system.memory import trim_heap
from gateway.unread_memory import UnreadMemory

LOG = logging.getLogger("nearhit")

CHECK_S = 1.0  # between two checks of the clients that do not keep up

ANSWER_PART = 4  # one answer may take this fraction of the memory


class SlowReaders:
    """The connections of a port whose clients do not keep up. `min_rate` is in bytes a second (see `ReadingPace`)."""

    def __init__(self, memory: UnreadMemory, min_rate: float, timeout_s: float) -> None:
        self.memory = memory
        self.min_rate = min_rate
        self.timeout_s = timeout_s
        self.most_of_answer = memory.limit / ANSWER_PART
        self.give_back: Callable[[], None] = trim_heap
        self._most_used = 0  # bytes, since memory was given back
        self._paces: set[ReadingPace] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, pace: ReadingPace) -> None:
        self._paces.add(pace)
        if self._timer is None:
            self._schedule()

    def remove(self, pace: ReadingPace) -> None:
        self._paces.discard(pace)

    def make_room(self) -> None:
        """Cut off the slowest clients while all unread answers together exceed the memory."""
        if not self.memory.is_exceeded:
            return
        for pace in self._paces:
            pace.measure()
        for pace in sorted(self._paces, key=lambda pace: pace.credit_s):
            if not self.memory.is_exceeded:
                return
            pace.cut_off("server.max_unread")

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(min(CHECK_S, self.timeout_s / 4), self._check)

    def _check(self) -> None:
        self._timer = None
        self._most_used = max(self._most_used, self.memory.used)
        for pace in tuple(self._paces):
            pace.check()
        if self._paces or self.memory.leaving:
            self._schedule()
        elif self._most_used > self.most_of_answer:  # glibc keeps what was freed
            self._most_used = 0
            asyncio.get_running_loop().run_in_executor(None, self.give_back)


class ReadingPace:
    """The read rate of a client that has fallen behind.

    `credit_s` is the time for which it may still read nothing, at first and at most `server.read_timeout`. Waiting for
    the client spends it. Each byte that the client takes earns the time that it takes at `server.read_min_rate`, and so
    does the time in which nothing waits for it.
    """

    __slots__ = ("_at", "_leaving", "_loop", "_readers", "_size", "_transport", "_waiter", "counts_writes", "credit_s")

    def __init__(self, readers: SlowReaders, transport: asyncio.Transport) -> None:
        self._readers = readers
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._at = self._loop.time()
        self._size = 0  # unread bytes
        self._leaving = 0  # those of a client that was cut off
        self._waiter: asyncio.Future[None] | None = None
        self.credit_s = readers.timeout_s
        self.counts_writes = True

    def begin(self, *, counts_writes: bool = True) -> None:
        """Begin to measure a client that has fallen behind. With `counts_writes`, `record_write` gets all that is
        written."""
        self.counts_writes = counts_writes
        now = self._loop.time()
        self.credit_s, self._at = min(self._readers.timeout_s, self.credit_s + now - self._at), now
        self._count(self._transport.get_write_buffer_size())
        self._readers.add(self)
        self._readers.make_room()

    def record_write(self, size: int) -> None:
        """Count `size` more bytes that were written."""
        self.measure(size)
        self._readers.make_room()

    def end(self) -> None:
        """Stop: the client has caught up or has left."""
        self._readers.remove(self)
        if self._transport.is_closing():
            # uvloop frees what was not sent at the end of this round of the event loop, after it has read all sockets.
            # If the memory counted as free before, other answers would fill it a second time.
            self._loop.call_soon(self._release)
        else:
            self.measure()
            self._count(0)
        self._wake()

    @property
    def has_room(self) -> bool:
        """Whether more of the answer may be read ahead."""
        return self._size < self._readers.most_of_answer and self._readers.memory.has_room

    async def wait_for_room(self) -> None:
        """Return once more may be read ahead, or the client has left. One caller at a time."""
        if not self.has_room:
            self._waiter = self._loop.create_future()
            await self._waiter

    def measure(self, written: int = 0) -> None:
        """Update the credit. `written` is the number of bytes since the last call."""
        if self._transport.is_closing():
            return
        now, size = self._loop.time(), self._transport.get_write_buffer_size()
        taken = self._size + written - size
        if not self.counts_writes:  # at least
            taken = max(0, taken)
        earned_s = taken / self._readers.min_rate - (now - self._at)
        self.credit_s, self._at = min(self._readers.timeout_s, self.credit_s + earned_s), now
        self._count(size)

    def check(self) -> None:
        """Cut off the client if its credit is spent; else go on with its answer if there is room again."""
        self.measure()
        if self.credit_s < 0:
            self.cut_off("server.read_timeout and read_min_rate")
        elif self._size < self._readers.most_of_answer / 2 and self._readers.memory.has_room:
            self._wake()

    def cut_off(self, setting: str) -> None:
        """Abort the connection, so that the client sees an incomplete answer. `end` follows."""
        LOG.info("a client that reads too slowly is cut off", extra={"fields": {"unread": self._size, "by": setting}})
        self._transport.abort()
        self._readers.remove(self)
        self._leaving = self._size
        self._readers.memory.leaving += self._leaving

    def _release(self) -> None:
        self._readers.memory.leaving -= self._leaving
        self._leaving = 0
        self._count(0)

    def _count(self, size: int) -> None:
        self._readers.memory.used += size - self._size
        self._size = size

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
