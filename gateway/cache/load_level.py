"""Say how loaded the encoder is, and so which work is left out. A pure decision under a thin object.

Every question that no cache knows waits for the encoder. If more questions come than it can embed, work is left out
long before the embedder's timeout, the work of least worth to clients first:

| level | from a wait of | work left out |
|---|---|---|
| 1 | 2.5 % of the timeout | comparisons of answers and audits: they wait |
| 2 | 5 % | embeddings behind misses: they are dropped |
| 3 | 10 % | the cross-encoder reads the best candidate only |
| 4 | 25 % | questions that would need the encoder get no semantic lookup; the others no cross-encoder |

A level is left at half of the wait at which it is entered. The encoder then still has work, so at three times what it
bears it stays busy, and a third of the questions get their lookup. A candidate that the cross-encoder would have to
read, and does not, is refused: load costs hits, and never breaks a promise.

Requests are shed by the limits on concurrency (`server.max_inflight`), which are no part of this.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum, StrEnum
from typing import Protocol


class LoadLevel(IntEnum):
    """The work that is left out. Each level leaves out that of the lower ones, too."""

    NORMAL = 0
    LEARNING_WAITS = 1
    VECTORS_DROPPED = 2
    BEST_PAIR_ONLY = 3
    LOOKUPS_SKIPPED = 4


class Step(StrEnum):
    """A piece of work that was left out, as the metric names it."""

    LEARNING = "learning"
    VECTOR = "vector"
    PAIR = "pair"
    LOOKUP = "lookup"


class StepCounter(Protocol):
    """A counter of steps, without the library of metrics: programs that train models judge pairs, too."""

    def add(self, *labels: str, amount: float = 1.0) -> None: ...


ENTERED_AT = (0.025, 0.05, 0.1, 0.25)  # wait for the encoder, as a share of its timeout, from level 1 on

LEFT_BELOW = 0.5  # of the wait at which a level is entered

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

    `expected_wait_s` returns the seconds that a new text would wait; `timeout_s`: the longest wait of a text.
    `left_out` counts by step.
    """

    def __init__(self, expected_wait_s: Callable[[], float], timeout_s: float, left_out: StepCounter) -> None:
        self._expected_wait_s = expected_wait_s
        self._timeout_s = timeout_s
        self._left_out = left_out
        self._level = LoadLevel.NORMAL

    @property
    def level(self) -> LoadLevel:
        """The present level, read from the encoder's queue."""
        self._level = next_level(self._level, self._expected_wait_s() / self._timeout_s)
        return self._level

    @property
    def pairs(self) -> int:
        """The number of candidates that the cross-encoder may read for one question."""
        level = self.level
        if level >= LoadLevel.LOOKUPS_SKIPPED:
            return 0
        return 1 if level >= LoadLevel.BEST_PAIR_ONLY else MAX_SECOND_OPINIONS

    def leaves_out(self, step: Step) -> bool:
        """Return whether this piece of work is left out now, and count it if so. Not for pairs: see `pairs`."""
        if self.level < _LEVELS[step]:
            return False
        self._left_out.add(step)
        return True

    def count_pairs(self, number: int) -> None:
        """Count candidates that the cross-encoder did not read."""
        if number > 0:
            self._left_out.add(Step.PAIR, amount=number)


_LEVELS = {
    Step.LEARNING: LoadLevel.LEARNING_WAITS,
    Step.VECTOR: LoadLevel.VECTORS_DROPPED,
    Step.PAIR: LoadLevel.BEST_PAIR_ONLY,
    Step.LOOKUP: LoadLevel.LOOKUPS_SKIPPED,
}
