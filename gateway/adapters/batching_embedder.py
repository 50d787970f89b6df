"""One embedder for all requests: what waits while a batch runs is the next batch. Never waits on purpose.

One worker thread owns the encoder: onnxruntime releases the GIL, so the event loop goes on.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass

from gateway.errors import EmbedderUnavailable
from gateway.messages import Embedding
from gateway.ports import TextEncoder


@dataclass(frozen=True, slots=True)
class _Waiter:
    text: str
    future: asyncio.Future[Embedding]
    loop: asyncio.AbstractEventLoop


class BatchingEmbedder:
    """`timeout_s` bounds one call, waiting included; after `max_timeouts` of them in a row calls fail at once until
    the worker answers again. `memo` recent texts are answered without the encoder."""

    def __init__(
        self,
        encoder: TextEncoder,
        *,
        max_batch: int = 32,
        max_queue: int = 256,
        timeout_s: float = 2.0,
        max_timeouts: int = 3,
        memo: int = 2048,
    ) -> None:
        self._encoder = encoder
        self._max_batch = max_batch
        self._max_queue = max_queue
        self._timeout_s = timeout_s
        self._max_timeouts = max_timeouts
        self._timeouts = 0
        self._memo: OrderedDict[str, Embedding] = OrderedDict()
        self._memo_size = memo
        self._queue: deque[_Waiter] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._worker = threading.Thread(target=self._work, name="nearhit-embedder", daemon=True)
        self._worker.start()

    @property
    def fingerprint(self) -> str:
        return self._encoder.fingerprint

    @property
    def dimension(self) -> int:
        return self._encoder.dimension

    async def embed(self, text: str) -> Embedding:
        known = self._memo.get(text)
        if known is not None:
            self._memo.move_to_end(text)
            return known
        if self._timeouts >= self._max_timeouts and self._queue:
            raise EmbedderUnavailable("the embedder does not answer")
        loop = asyncio.get_running_loop()
        waiter = _Waiter(text, loop.create_future(), loop)
        with self._wake:
            if self._closed:
                raise EmbedderUnavailable("the embedder is closed")
            if len(self._queue) >= self._max_queue:
                raise EmbedderUnavailable(f"{self._max_queue} texts wait for the embedder already")
            self._queue.append(waiter)
            self._wake.notify()
        try:
            async with asyncio.timeout(self._timeout_s):
                embedding = await waiter.future
        except TimeoutError:
            self._timeouts += 1
            raise EmbedderUnavailable(f"no embedding within {self._timeout_s:g} s") from None
        self._timeouts = 0
        self._remember(text, embedding)
        return embedding

    def close(self) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify()

    def _remember(self, text: str, embedding: Embedding) -> None:
        self._memo[text] = embedding
        if len(self._memo) > self._memo_size:
            self._memo.popitem(last=False)

    # The worker thread

    def _work(self) -> None:
        while batch := self._next_batch():
            texts = list(dict.fromkeys(waiter.text for waiter in batch))
            try:
                found: dict[str, Embedding] = dict(zip(texts, self._encoder.encode(texts), strict=True))
                error = None
            except Exception as raised:
                found, error = {}, EmbedderUnavailable(f"the encoder failed: {type(raised).__name__}")
            self._deliver(batch, found, error)

    def _next_batch(self) -> list[_Waiter]:
        """Waits for work; empty when closed."""
        with self._wake:
            while True:
                batch: list[_Waiter] = []
                while self._queue and len(batch) < self._max_batch:
                    waiter = self._queue.popleft()
                    if not waiter.future.done():  # its caller has left
                        batch.append(waiter)
                if batch or self._closed:
                    return batch
                self._wake.wait()

    def _deliver(self, batch: list[_Waiter], found: dict[str, Embedding], error: EmbedderUnavailable | None) -> None:
        def hand_over(waiters: list[_Waiter]) -> None:
            for waiter in waiters:
                if waiter.future.done():
                    continue
                if error is not None:
                    waiter.future.set_exception(error)
                else:
                    waiter.future.set_result(found[waiter.text])

        # One wake-up a loop and batch, not one a text.
        for loop in {waiter.loop for waiter in batch}:
            try:
                loop.call_soon_threadsafe(hand_over, [waiter for waiter in batch if waiter.loop is loop])
            except RuntimeError:  # that loop is closed, and its callers with it
                continue
