"""Prompts that programs make: a fixed frame around varying content. Pure.

Within a frame everything looks alike: the similarity is the frame's. What varies has to be compared instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# So many words at both ends alike are a frame, whoever else uses it: people who ask the same thing twice do not repeat
# themselves word for word for so long. Of 7,374 pairs of natural wordings (training/wordings) none shares as many.
SURE_WORDS = 25
# Fewer words are a frame where several stored prompts share it and differ within.
LEAST_WORDS, LEAST_SHARE, LEAST_OTHERS = 8, 0.6, 2


@dataclass(frozen=True, slots=True)
class Varying:
    """What two prompts in one frame do not share; empty where one has nothing there."""

    asked: str
    stored: str

    @property
    def same(self) -> bool:
        return self.asked.casefold() == self.stored.casefold()


def varying(asked: str, stored: str, neighbours: Sequence[str]) -> Varying | None:
    """The parts to compare, or None where these are no prompts of one frame. `neighbours`: the stored prompts nearest
    to `asked`, `stored` among them or not. Words are what stands between spaces; case does not matter."""
    folded = _folded(asked)
    head, tail = _shared(folded, _folded(stored))
    if head + tail < LEAST_WORDS:
        return None
    mine, theirs = asked.split(), stored.split()
    found = Varying(" ".join(mine[head : len(mine) - tail]), " ".join(theirs[head : len(theirs) - tail]))
    if found.same or head + tail >= SURE_WORDS:
        return found
    if head + tail < LEAST_SHARE * max(len(mine), len(theirs)):
        return None
    contents = {found.stored.casefold()}
    for other in neighbours:
        words = _folded(other)
        its_head, its_tail = _shared(folded, words)
        if its_head >= head and its_tail >= tail:
            contents.add(" ".join(words[head : len(words) - tail]))
    return found if len(contents) >= LEAST_OTHERS else None


def framed(asked: str, stored: str, neighbours: Sequence[str]) -> bool:
    """Whether what varies between the two decides."""
    parts = varying(asked, stored, neighbours)
    return parts is not None and not parts.same


def _folded(text: str) -> list[str]:
    """Its words without their case."""
    return text.lower().split() if text.isascii() else [word.casefold() for word in text.split()]


def _shared(a: Sequence[str], b: Sequence[str]) -> tuple[int, int]:
    """Words alike at the beginning, and at the end without them."""
    least = min(len(a), len(b))
    head = 0
    while head < least and a[head] == b[head]:
        head += 1
    tail = 0
    while tail < least - head and a[-1 - tail] == b[-1 - tail]:
        tail += 1
    return head, tail
