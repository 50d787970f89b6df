"""Say how loaded the encoder is, and so which work is left out. A pure decision under a thin object.

Every question that no cache knows waits for the encoder. If more questions come than it can embed, work is left out
long before the embedder's timeout, the work of least worth to clients first:

| level | from a wait of | in a standing queue | work left out |
|---|---|---|---|
| 1 | 2.5 % of the timeout | .2 % | comparisons of answers and audits: they wait |
| 2 | 5 % | .4 % | embeddings behind misses: they are dropped |
| 3 | 10 % | .8 % | the cross-encoder reads the best candidate only |
| 4 | 25 % | 2 % | questions that would need the encoder get no semantic lookup; the others no cross-encoder |

A queue that empties again is a burst, and worth a wait. One that has not been empty for a tenth of the timeout stands:
more questions arrive than the models can serve. A longer queue would only make each of them wait. The distinction is
that of CoDel (RFC 8289). The test is from Maurer, Fail at Scale (ACM Queue 13:8, 2015). So are 100 ms and 20 ms, at the
default timeout of a second.

Hysteresis: a level ends when the wait falls to half of its entry value. The encoder still has work then. So it stays
busy under three times the load that it can serve, and a third of the questions get their lookup. If the cross-encoder
cannot read a candidate that needs it, the candidate is refused. Load costs hits, and never breaks a promise.

The limits on concurrency (`server.max_inflight`) shed requests. They are not part of this.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from enum import IntEnum, StrEnum
from typing import Protocol

from gateway.ports import EncoderQueue


class LoadLevel(IntEnum):
    """The work that is left out. Each level leaves out that of the lower ones, too."""

    NORMAL = 0
    LEARNING_WAITS = 1
    VECTORS_DROPPED = 2
    BEST_PAIR_ONLY = 3
    LOOKUPS_SKIPPED = 4


class OptionalWork(StrEnum):
    """A kind of work that a busy encoder leaves out, as the metric names it."""

    LEARNING = "learning"
    VECTOR = "vector"
    PAIR = "pair"
    LOOKUP = "lookup"


class WorkCounter(Protocol):
    """A counter of work left out, without the library of metrics: programs that train models judge pairs, too."""

    def add(self, *labels: str, amount: float = 1.0) -> None: ...


ENTERED_AT = (0.025, 0.05, 0.1, 0.25)  # wait for the encoder, as a share of its timeout, from level 1 on

LEFT_BELOW = 0.5  # of the wait at which a level is entered

STANDING_AFTER = 0.1  # of the timeout, without an empty queue

STANDING_FACTOR = 12.5  # by which a wait in a standing queue counts more

MAX_SECOND_OPINIONS = (
    2  # neighbours that the cross-encoder reads at most: it takes 1.5 ms each, and the third is seldom right
)


def next_level(level: LoadLevel, wait: float) -> LoadLevel:
    """Return the level that follows `level` at this wait, a share of the embedder's timeout."""
    entered = sum(wait >= bound for bound in ENTERED_AT)
    kept = sum(wait >= bound * LEFT_BELOW for bound in ENTERED_AT)
    return LoadLevel(max(entered, min(level, kept)))


class EncoderLoad:
    """`EncoderLoad` says what the load of an encoder leaves out.

    `queues` return the queues before the encoder and before the cross-encoder at this moment, because a question waits
    in both. A text waits at most `timeout_s`. `left_out` counts by kind of work. `clock` returns monotonic seconds.
    """

    def __init__(
        self,
        queues: Sequence[Callable[[], EncoderQueue]],
        timeout_s: float,
        left_out: WorkCounter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queues = queues
        self._timeout_s = timeout_s
        self._left_out = left_out
        self._clock = clock
        self._level = LoadLevel.NORMAL
        self._strict_until = -math.inf  # by the clock

    @property
    def level(self) -> LoadLevel:
        """The present level, read from the queues."""
        self._level = next_level(self._level, self._wait([queue() for queue in self._queues]))
        return self._level

    def _wait(self, queues: Sequence[EncoderQueue]) -> float:
        """Return the wait of a new text as a share of the timeout. It counts more in and after a standing queue.

        It goes on to count more until a whole interval has passed below the highest level. Short queues empty again
        and again, so an empty one does not say that the load is gone. A pass in progress counts there alone: it may
        have several texts without any load.
        """
        now, interval = self._clock(), STANDING_AFTER * self._timeout_s
        wait = sum(queue.wait_s for queue in queues) / self._timeout_s
        strict = STANDING_FACTOR * (wait + sum(queue.pass_s for queue in queues) / self._timeout_s)
        stands = any(queue.standing_s >= interval for queue in queues)
        if stands or (now < self._strict_until and strict >= ENTERED_AT[-1]):
            self._strict_until = now + interval
        return strict if now < self._strict_until else wait

    @property
    def pairs(self) -> int:
        """The number of candidates that the cross-encoder may read for one question."""
        level = self.level
        if level >= LoadLevel.LOOKUPS_SKIPPED:
            return 0
        return 1 if level >= LoadLevel.BEST_PAIR_ONLY else MAX_SECOND_OPINIONS

    def leaves_out(self, work: OptionalWork) -> bool:
        """Return whether this piece of work is left out now, and count it if so. Not for pairs: see `pairs`."""
        if self.level < _LEVELS[work]:
            return False
        self._left_out.add(work)
        return True

    def count_pairs(self, number: int) -> None:
        """Count candidates that the cross-encoder did not read."""
        if number > 0:
            self._left_out.add(OptionalWork.PAIR, amount=number)


_LEVELS = {
    OptionalWork.LEARNING: LoadLevel.LEARNING_WAITS,
    OptionalWork.VECTOR: LoadLevel.VECTORS_DROPPED,
    OptionalWork.PAIR: LoadLevel.BEST_PAIR_ONLY,
    OptionalWork.LOOKUP: LoadLevel.LOOKUPS_SKIPPED,
}
