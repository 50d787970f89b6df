"""Detect prompts that programs make: a fixed template around varying content. Pure.

Within a template all prompts look alike, as the similarity is mostly the template's. So the varying parts are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# So many equal words at both ends are a template, whoever uses it: people who repeat a question do not use the same
# words for so long. Of 7,374 pairs of natural wordings (training/wordings) none shares as many.
SURE_WORDS = 25
# Fewer words are a template where several stored prompts share them and differ within.
MIN_WORDS, MIN_SHARE, MIN_OTHERS = 8, 0.6, 2
# A short instruction before a long text is a template, too, where all neighbours have it: "Is this fraud? Answer yes or
# no.", then the message.
SURE_OTHERS = 3


@dataclass(frozen=True, slots=True)
class VaryingParts:
    """The parts that two prompts of one template do not share. A part may be empty."""

    query: str
    stored: str

    @property
    def is_same(self) -> bool:
        return self.query.casefold() == self.stored.casefold()


def varying_parts(query: str, stored: str, neighbours: Sequence[str]) -> VaryingParts | None:
    """Return the parts to compare; None: the prompts are not of one template.

    `neighbours`: the stored prompts nearest to `query`, with or without `stored`. Words are separated by white space;
    case does not matter.
    """
    folded = _folded(query)
    head, tail = _shared(folded, _folded(stored))
    if head + tail < MIN_WORDS:
        return None
    mine, theirs = query.split(), stored.split()
    parts = VaryingParts(" ".join(mine[head : len(mine) - tail]), " ".join(theirs[head : len(theirs) - tail]))
    if parts.is_same or head + tail >= SURE_WORDS:
        return parts
    contents = {parts.stored.casefold()}
    for other in neighbours:
        words = _folded(other)
        its_head, its_tail = _shared(folded, words)
        if its_head >= head and its_tail >= tail:
            contents.add(" ".join(words[head : len(words) - tail]))
    is_most = head + tail >= MIN_SHARE * max(len(mine), len(theirs))
    return parts if len(contents) >= (MIN_OTHERS if is_most else SURE_OTHERS) else None


def is_framed(query: str, stored: str, neighbours: Sequence[str]) -> bool:
    """Return whether both prompts are of one template and differ in their varying parts."""
    parts = varying_parts(query, stored, neighbours)
    return parts is not None and not parts.is_same


def _folded(text: str) -> list[str]:
    """Return the words in lower case."""
    return text.lower().split() if text.isascii() else [word.casefold() for word in text.split()]


def _shared(a: Sequence[str], b: Sequence[str]) -> tuple[int, int]:
    """Return the number of equal words at the beginning, and at the end without those."""
    shortest = min(len(a), len(b))
    head = 0
    while head < shortest and a[head] == b[head]:
        head += 1
    tail = 0
    while tail < shortest - head and a[-1 - tail] == b[-1 - tail]:
        tail += 1
    return head, tail
