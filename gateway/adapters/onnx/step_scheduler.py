"""One thread that a model belongs to. It does the steps of several calls in turn: none waits for another's end."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import onnxruntime

from gateway.errors import BackendError, Refused

T = TypeVar("T")
Steps = Callable[[onnxruntime.RunOptions], Iterator[T | None]]
"""What a call does: a step between two items; None where a step came to nothing that anybody waits for. The passes of a
step heed the options, by which they are broken off."""

NICENESS = 10  # the event loop and the embedder go first: a lookup takes a millisecond, a token of a real model fifty
CLOSE_TIMEOUT_S = 1.0  # blocks the loop at the end: calls have been drained by then


class Worker:
    """To be used from one event loop. `backend` is named in errors. How many calls there are at once is its caller's to
    bound."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._arrived: SimpleQueue[Work[Any] | None] = SimpleQueue()
        self._turns: deque[Work[Any]] = deque()
        # A daemon: a pass that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=f"onnx {backend}", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def begin(self, steps: Steps[T]) -> Work[T]:
        work = Work(self._backend, steps, asyncio.get_running_loop())
        self._arrived.put(work)
        return work

    def close(self) -> None:
        """Ends the thread after the step that it is at, and breaks off the others. May be called twice."""
        self._arrived.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        with suppress(AttributeError, OSError):  # of this thread alone, on Linux; elsewhere it does without
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while self._taken():
            work = self._turns.popleft()
            if work.step():
                self._turns.append(work)
        for work in self._turns:
            work.fail(BackendError(f"backend '{self._backend}' is closing"))

    def _taken(self) -> bool:
        """Takes in what has arrived; waits for something where there is nothing to do. False: there will be no more."""
        try:
            while True:
                work = self._arrived.get(block=not self._turns)
                if work is None:
                    return False
                self._turns.appendleft(work)  # a newcomer's client waits for a first token
        except Empty:
            return True


class Work(AsyncIterator[T], Generic[T]):
    """What the worker makes of one call, in order: on the event loop an iterator, whose `aclose` breaks the call off.

    Items that nobody has read yet wait here: no more than a call may have, as each has a bound."""

    def __init__(self, backend: str, steps: Steps[T], loop: asyncio.AbstractEventLoop) -> None:
        self._backend = backend
        self._options = onnxruntime.RunOptions()
        self._steps = steps
        self._going: Iterator[T | None] | None = None  # begun in the worker's thread
        self._loop = loop
        self._items: asyncio.Queue[T | BaseException] = asyncio.Queue()
        self._ended = asyncio.Event()
        self._given_up = False

    async def __anext__(self) -> T:
        """Raises `Refused` as the steps do, and `BackendError` where they fail in any other way."""
        if self._given_up or (self._ended.is_set() and self._items.empty()):
            raise StopAsyncIteration
        item = await self._items.get()
        if isinstance(item, BaseException):
            raise item
        return item

    async def aclose(self) -> None:
        """Returns when the worker has let go of it, within a pass if need be; a hung one is not waited for."""
        self._given_up = True
        self._options.terminate = True
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._ended.wait()

    def step(self) -> bool:
        """In the worker's thread. False: that was the last one."""
        if self._given_up:
            return self._end(None)
        try:
            self._going = self._going or self._steps(self._options)
            item = next(self._going)
        except StopIteration:
            return self._end(StopAsyncIteration())
        except Refused as refused:
            return self._end(refused)
        except Exception as error:
            # The type alone: a message may quote the prompt.
            return self._end(BackendError(f"the model of backend '{self._backend}' failed ({type(error).__name__})"))
        return item is None or self._tell(lambda: self._items.put_nowait(item))

    def fail(self, error: BaseException) -> None:
        self._end(error)

    def _end(self, last: BaseException | None) -> bool:
        def end() -> None:
            if last is not None:
                self._items.put_nowait(last)
            self._ended.set()

        self._tell(end)
        return False

    def _tell(self, what: Callable[[], None]) -> bool:
        """False: the loop has been closed, and nobody waits any more."""
        try:
            self._loop.call_soon_threadsafe(what)
        except RuntimeError:
            return False
        return True
