"""Detect prompts that programs make: a fixed template around varying content. Pure.

Within a template all prompts look alike, as the similarity is mostly the template's. So the varying parts are compared.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# So many equal words at both ends are a template, whoever uses it: people who repeat a question do not use the same
# words for so long. Of 7,374 pairs of natural wordings (training/wordings) none shares as many.
SURE_WORDS = 25
# Fewer words are a template where several stored prompts share them and differ within.
MIN_WORDS, MIN_SHARE, MIN_OTHERS = 8, 0.6, 2
# A short instruction before a long text is a template, too, where all neighbours have it: "Is this fraud? Answer yes or
# no.", then the message. So is one of any length that ends with a colon or a line: "Topic:", then the message.
SURE_OTHERS = 3
MAX_GAP = 8  # characters after a word in which a line may end

_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True)
class VaryingParts:
    """The parts that two prompts of one template do not share. A part may be empty."""

    query: str
    stored: str

    @property
    def is_same(self) -> bool:
        return self.query.lower() == self.stored.lower()


def varying_parts(query: str, stored: str, neighbours: Sequence[str]) -> VaryingParts | None:
    """Return the parts to compare, or None unless the prompts are of one template.

    `neighbours` are the stored prompts nearest to `query`, with or without `stored`. Words are separated by white
    space; case does not matter.
    """
    folded, other = _folded(query), _folded(stored)
    head, tail = _shared(folded, other)
    if head + tail >= MIN_WORDS:
        parts = _cut(query, stored, head, tail)
        if parts.is_same or head + tail >= SURE_WORDS:
            return parts
        head, tail, contents = _witnessed(folded, other, neighbours, MIN_WORDS)
        is_most = head + tail >= MIN_SHARE * max(len(folded), len(other))
        if contents >= (MIN_OTHERS if is_most else SURE_OTHERS):
            return _cut(query, stored, head, tail)
    instruction = _instruction(query, head)
    if instruction:
        count = len(folded) - instruction  # what may vary
        head, _, contents = _witnessed(folded[:instruction], other, neighbours, instruction)
        if count and contents >= SURE_OTHERS:
            return _cut(query, stored, head, 0)
    return None


def _witnessed(
    query: Sequence[str], stored: Sequence[str], neighbours: Sequence[str], least: int
) -> tuple[int, int, int]:
    """Return the number of words at both ends that the query shares with the other prompts, and how many contents these
    have between them. Neighbours that share fewer than `least` words are left out."""
    head, tail = _shared(query, stored)
    shared = [(words, *_shared(query, words)) for words in map(_folded, neighbours)]
    witnesses = [stored]
    for words, its_head, its_tail in sorted(shared, key=lambda each: -(min(head, each[1]) + min(tail, each[2]))):
        both = min(head, its_head), min(tail, its_tail)
        if sum(both) >= least:
            head, tail = both
            witnesses.append(words)
    return head, tail, len({tuple(words[head : len(words) - tail]) for words in witnesses})


def _cut(query: str, stored: str, head: int, tail: int) -> VaryingParts:
    mine, theirs = query.split(), stored.split()
    return VaryingParts(" ".join(mine[head : len(mine) - tail]), " ".join(theirs[head : len(theirs) - tail]))


def _instruction(text: str, most: int) -> int:
    """Return how many words, of the first `most`, end with a colon or at the end of a line; 0: there is no such end."""
    end = 0
    for count, word in enumerate(_WORD.finditer(text), 1):
        if count > most:
            break
        if word.group().endswith(":") or "\n" in text[word.end() : word.end() + MAX_GAP]:
            end = count
    return end


def is_framed(query: str, stored: str, neighbours: Sequence[str]) -> bool:
    """Return whether both prompts are of one template and differ in their varying parts."""
    parts = varying_parts(query, stored, neighbours)
    return parts is not None and not parts.is_same


def _folded(text: str) -> list[str]:
    """Return the words in lower case. `casefold` would make one word of the German "Ma\u00dfe" and "Masse"."""
    return text.lower().split()


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
