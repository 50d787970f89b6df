"""Compares fresh answers with stored ones, off every client's path: one pair at a time, and at most a quarter of the
embedder's time."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from functools import partial

from gateway.cache.answer_similarity import comparable, compare, same_text
from gateway.cache.embedding_similarity import similarity
from gateway.cache.labels import Labels
from gateway.cache.threshold.wrong_hits import Label
from gateway.context import RequestContext
from gateway.messages import Call, Entry
from gateway.observability.telemetry import Telemetry
from gateway.ports import Embedder, Judged

LOG = logging.getLogger("nearhit.quality")
# Time that learning leaves to requests, as a multiple of what it takes. Measured on two busy cores, with a queue that
# never ends: a question is embedded in 3.2 ms (p50) as without it, and in 8 instead of 4 ms (p90); with 1.0 and
# passages of 600 characters p50 was 6.2 ms.
REST = 3.0
MAX_READ_AT_ONCE = 64 * 1024  # bytes of an answer: taking apart more would hold up the loop for milliseconds
MAX_WAITING, MAX_WAITING_BYTES = 256, 32 * 1024 * 1024  # pairs; the answers in them


@dataclass(frozen=True, slots=True)
class Pair:
    """A miss: what was found for it and not served, and what a backend then answered."""

    route: str
    call: Call
    judged: Judged
    fresh: Entry

    @property
    def size(self) -> int:
        return self.judged.entry.size + self.fresh.size


class Comparisons:
    """`run` works off what waits; beyond the bounds the oldest pairs are dropped: labels come by themselves."""

    def __init__(self, embedder: Embedder, labels: Labels, telemetry: Telemetry, limit: int = MAX_WAITING) -> None:
        self._embedder = embedder
        self._labels = labels
        self._telemetry = telemetry
        self._limit = limit
        self._waiting: deque[Pair] = deque()
        self._bytes = 0
        self._some = asyncio.Event()
        self._one = asyncio.Lock()
        self._busy = False

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is under way."""
        return not self._waiting and not self._busy

    def missed(self, request: RequestContext, fresh: Entry) -> None:
        """A fresh answer has been stored. Where a neighbour was refused for its score alone, the answer tells whether
        it would have been right."""
        judged, call = request.judged, request.call
        if call is None or judged is None or judged.reason is None or judged.opinion.veto is not None:
            return
        pair = Pair(request.route, call, judged, fresh)
        self._waiting.append(pair)
        self._bytes += pair.size
        while self._waiting and (len(self._waiting) > self._limit or self._bytes > MAX_WAITING_BYTES):
            self._telemetry.comparisons_dropped.add(self._take().route)
        self._some.set()

    async def run(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            while self._waiting:
                self._busy = True
                try:
                    await self._learn(self._take())
                except Exception:
                    LOG.exception("a comparison failed")
                finally:
                    self._busy = False

    async def label(self, call: Call, stored: Entry, fresh: Entry) -> Label | None:
        """None: the answers are not text alone, and nothing can be said of them."""
        a, b = [await self._text(call, entry) for entry in (stored, fresh)]
        return None if a is None or b is None else await self.alike(a, b)

    async def alike(self, a: str, b: str) -> Label:
        """Whether two answers to one question say the same; waits until nothing else is compared."""
        if same_text(a, b) or not comparable(a, b):
            return compare(a, b, None)
        async with self._one:
            return compare(a, b, await similarity(self._embedder, a, b, rest=REST))

    async def _text(self, call: Call, entry: Entry) -> str | None:
        read = partial(call.dialect.answer_text, call, entry.payload, entry.streamed)
        return read() if entry.size <= MAX_READ_AT_ONCE else await asyncio.to_thread(read)

    def _take(self) -> Pair:
        pair = self._waiting.popleft()
        self._bytes -= pair.size
        return pair

    async def _learn(self, pair: Pair) -> None:
        label = await self.label(pair.call, pair.judged.entry, pair.fresh)
        if label is not None:
            self._labels.tell(pair.route, pair.judged, label, "miss")
