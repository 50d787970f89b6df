"""One at a time touches what searches see: FAISS crashes on concurrent add and search.

As a rule a thread of its own does. What takes no longer than the way there and back (20 us, measured) the event loop
does itself, where nobody is at it and nobody waits: never before what was asked for earlier, and never waiting.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import TypeVar

import faiss

T = TypeVar("T")


class ExecutorClosed(Exception):
    """The index is being closed: work in the background ends."""


class ExclusiveExecutor:
    def __init__(self) -> None:
        # FAISS' own threads cost a search of a small partition milliseconds to wake (measured: 8 ms against 0.05).
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="nearhit-index", initializer=faiss.omp_set_num_threads, initargs=(1,)
        )
        self._lock = threading.Lock()
        self.leave = self._lock.release  # after `enter`
        self._pending: deque[None] = deque()  # one for each operation that the thread has not ended
        self._tuned = False  # whether the event loop's thread does without FAISS' own threads, too
        self._closed = False

    def enter(self) -> bool:
        """From the event loop, for what takes microseconds: whether it may be done here and now, and then `leave`."""
        if self._pending or self._closed or not self._lock.acquire(blocking=False):
            return False
        if not self._tuned:
            faiss.omp_set_num_threads(1)
            self._tuned = True
        return True

    async def run(self, operation: Callable[[], T]) -> T:
        """From the event loop."""
        return await asyncio.wrap_future(self._submit(operation))

    def call(self, operation: Callable[[], T]) -> T:
        """From another thread. Raises `ExecutorClosed`."""
        try:
            waiting = self._submit(operation)
        except RuntimeError:  # it takes nothing any more
            raise ExecutorClosed from None
        try:
            return waiting.result()
        except CancelledError:
            raise ExecutorClosed from None

    def close(self) -> None:
        self._closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _submit(self, operation: Callable[[], T]) -> Future[T]:
        self._pending.append(None)  # appending and popping are atomic
        try:
            waiting = self._thread.submit(self._run_exclusive, operation)
        except RuntimeError:
            self._pending.pop()
            raise
        waiting.add_done_callback(lambda _: self._pending.pop())  # also where it was cancelled before its turn
        return waiting

    def _run_exclusive(self, operation: Callable[[], T]) -> T:
        with self._lock:
            return operation()
