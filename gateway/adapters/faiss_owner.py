"""The one thread that touches what searches see: FAISS crashes on concurrent add and search."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import TypeVar

import faiss

T = TypeVar("T")


class Closed(Exception):
    """The index is being closed: work in the background ends."""


class Owner:
    def __init__(self) -> None:
        # FAISS' own threads cost a search of a small partition milliseconds to wake (measured: 8 ms against 0.05).
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="nearhit-index", initializer=faiss.omp_set_num_threads, initargs=(1,)
        )

    async def run(self, operation: Callable[[], T]) -> T:
        """From the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, operation)

    def call(self, operation: Callable[[], T]) -> T:
        """From another thread. Raises `Closed`."""
        try:
            waiting = self._thread.submit(operation)
        except RuntimeError:  # it takes nothing any more
            raise Closed from None
        try:
            return waiting.result()
        except CancelledError:
            raise Closed from None

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
