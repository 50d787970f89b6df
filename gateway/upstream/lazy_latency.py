"""Learning from answers when somebody asks what they will take, and not before. Pure: the clock's reading comes in.

To learn from an answer takes a `LatencyBook` 16 to 24 us on a quiet machine, and it is asked only where there are
latency budgets, hedges or somebody who looks. So answers lie unread until it is asked, the last `UNREAD` of them; from
then on each is read as it comes, for as long as somebody has asked of late. While nobody asks, one answer in `EVERY`
is noted, once there are `UNREAD`: to note one has its price, too.
"""

from __future__ import annotations

from collections import deque

from gateway.latency_forecast import Prediction
from gateway.upstream.latency import CONFIDENCE, HALF_LIFE_S, Asked, LatencyBook

# What is known of a kind of answers comes from some ten, how far they spread from some fifty; to read these takes 2 ms.
UNREAD = 128
EVERY = 8


class UnreadBook:
    """A `LatencyBook`, read late."""

    def __init__(self) -> None:
        self._book = LatencyBook()
        self._unread: deque[tuple[Asked, int, float, float, int, float]] = deque(maxlen=UNREAD)
        self._asked = float("-inf")  # when it was asked last
        self._passed = 0  # answers that were not noted since the last one that was

    def predict(self, asked: Asked, *, load: int, now: float, confidence: float = CONFIDENCE) -> Prediction | None:
        """As `LatencyBook.predict`."""
        self._asked = now
        self._read()
        return self._book.predict(asked, load=load, now=now, confidence=confidence)

    def wants(self, now: float) -> bool:
        """Whether the answer that has just come is to be observed."""
        if now - self._asked <= HALF_LIFE_S or len(self._unread) < UNREAD:
            return True
        self._passed = (self._passed + 1) % EVERY
        return self._passed == 0

    def observe(
        self, asked: Asked, *, load: int, ttft_s: float, total_s: float, output_tokens: int, now: float
    ) -> None:
        """As `LatencyBook.observe`."""
        self._unread.append((asked, load, ttft_s, total_s, output_tokens, now))
        if now - self._asked <= HALF_LIFE_S:
            self._read()

    def outlasted(self, asked: Asked, *, load: int, seconds: float, now: float, ttft_s: float | None = None) -> None:
        """As `LatencyBook.outlasted`: rare, and made of what is known, so it is read at once."""
        self._read()
        self._book.outlasted(asked, load=load, seconds=seconds, now=now, ttft_s=ttft_s)

    def _read(self) -> None:
        while self._unread:
            asked, load, ttft_s, total_s, tokens, now = self._unread.popleft()
            self._book.observe(asked, load=load, ttft_s=ttft_s, total_s=total_s, output_tokens=tokens, now=now)
