"""Bound the CPU of learning to a share of the CPU of requests.

Two clocks are read, each in less than a microsecond. The first is the CPU of the encoder's thread. Each of its passes
embeds texts of requests or texts of learning, never both. The second is the CPU of the event loop's thread. The parts
that compare answers are measured and count as learning, and all others count as requests. The threads of
the cross-encoder and of the index are left out. They work for requests alone, so learning gets too little rather than
too much.

A bucket of CPU seconds fills with `share` of what requests take, and learning empties it. One piece of work begins
while the bucket holds anything, and may overdraw it; the next one then waits. So over a long time learning takes the
share and no more. `START_S` is in it at the start, as a young route knows least, and `BURST_S` bounds it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gateway.cache.load_level import EncoderLoad, LoadLevel, OptionalWork
from gateway.observability.telemetry import Telemetry
from gateway.ports import EncoderCpu

BURST_S = 1.0  # CPU seconds: some 100 comparisons

# CPU seconds at the start: some ten comparisons. A full bucket would make the first hundred misses near something twice
# as dear as the later ones.
START_S = 0.1

POLL_S = 0.05  # between two looks while work waits

UNBOUNDED = 1.0  # from this share on the CPU of learning has no bound


class LearningBudget:
    """`LearningBudget` says when learning may go on. Use it from the thread of the event loop.

    `share` is a share of the CPU of requests, in (0, 1]; 1 sets no bound. `encoder` returns the CPU of the passes so
    far, and `loop_cpu` that of the event loop's thread, in seconds.
    """

    def __init__(
        self,
        share: float,
        encoder: Callable[[], EncoderCpu],
        load: EncoderLoad,
        telemetry: Telemetry,
        loop_cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._share = share
        self._encoder = encoder
        self._load = load
        self._telemetry = telemetry
        self._loop_cpu = loop_cpu
        self._loop_learning_s = 0.0  # CPU of the loop's thread that learning took
        self._requests_s, self._learning_s = self._measure()
        self._bucket_s = START_S

    def _measure(self) -> tuple[float, float]:
        """Return the CPU seconds of requests and of learning so far."""
        passes = self._encoder()
        return (
            passes.requests_s + self._loop_cpu() - self._loop_learning_s,
            passes.learning_s + self._loop_learning_s,
        )

    def update(self) -> None:
        """Settle the CPU since the last call, and count it."""
        requests_s, learning_s = self._measure()
        requested, learned = requests_s - self._requests_s, learning_s - self._learning_s
        self._requests_s, self._learning_s = requests_s, learning_s
        self._bucket_s = min(BURST_S, self._bucket_s + self._share * requested - learned)
        self._telemetry.cpu_seconds.add("requests", amount=requested)
        self._telemetry.cpu_seconds.add("learning", amount=learned)

    @property
    def has_room(self) -> bool:
        """Whether the next piece of work may begin, by its CPU alone."""
        self.update()
        return self._share >= UNBOUNDED or self._bucket_s > 0

    async def wait_turn(self) -> None:
        """Wait until the budget has room and the encoder's load leaves nothing out. Count each reason to wait once."""
        if not self.has_room:
            self._telemetry.learning_waits.add()
            await self._poll(lambda: self.has_room)
        if self._load.leaves_out(OptionalWork.LEARNING):
            await self._poll(lambda: self._load.level is LoadLevel.NORMAL)

    async def _poll(self, is_over: Callable[[], bool]) -> None:
        while not is_over():  # noqa: ASYNC110 - CPU clocks and the encoder's queue tell nobody that they changed
            await asyncio.sleep(POLL_S)

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Count the CPU of the loop's thread in this block, which must not await, as learning."""
        before = self._loop_cpu()
        try:
            yield
        finally:
            self._loop_learning_s += self._loop_cpu() - before
