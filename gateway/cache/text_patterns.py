"""Patterns that are looked for only where they may be found. Pure.

To look through a question takes 5 to 20 us a pattern, and nearly always finds nothing: most need a word or a sign that
few questions have. What a pattern needs is said beside it, and never more than it needs, so that what is found is the
same (tests/cache/test_sought.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_RUN = re.compile(r"\w+")
_JOINS = frozenset("'_")


@dataclass(slots=True)
class Clues:
    """What a text of ASCII consists of. Of other texts there are none: their letters may stand for these, as the sign
    of kelvin does for a k where case is ignored."""

    runs: frozenset[str]  # of letters, digits and underscores, in lower case
    plain: str  # the whole text, lower-cased, with single spaces
    signs: frozenset[str]  # that it is written with
    joined: bool  # some run is part of a longer word, or of several words


def clues_of(text: str, plain: str, words: frozenset[str]) -> Clues | None:
    """`words`: those that letters and digits make, in lower case, some of them joined by an apostrophe."""
    if not text.isascii():
        return None
    signs = frozenset(plain)
    joined = not _JOINS.isdisjoint(signs)
    return Clues(frozenset(_RUN.findall(plain)) if joined else words, plain, signs, joined)


@dataclass(frozen=True, slots=True)
class Sought:
    """`may`: whether a text with these clues may hold what the pattern matches."""

    pattern: re.Pattern[str]
    may: Callable[[Clues], bool]

    def found(self, text: str, clues: Clues | None) -> list[Any]:
        """What `findall` of the pattern would."""
        return self.pattern.findall(text) if clues is None or self.may(clues) else []


def any_of(words: str) -> Callable[[Clues], bool]:
    """Whether one of these stands by itself, between what is no part of a word."""
    needed = frozenset(words.split())
    return lambda clues: not needed.isdisjoint(clues.runs)


def written_with(signs: str) -> Callable[[Clues], bool]:
    """Whether one of these signs is in it."""
    needed = frozenset(signs)
    return lambda clues: not needed.isdisjoint(clues.signs)


digits = written_with("0123456789")
