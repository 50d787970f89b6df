"""Bound the work of a regular expression before it runs. Pure.

Python's `re` backtracks and cannot be stopped. A pattern of a client's schema may therefore take exponential time, such
as `(a+)+$`. The bound here counts the ways in which a pattern can take a text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import lru_cache
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

MAX_PATTERN_CHARS = 1_000
MAX_PATHS = 200_000  # starting points included: about 10 ms
_SINGLE_PATH = frozenset(
    {sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN, sre.CATEGORY, sre.AT, sre.RANGE, sre.FAILURE, sre.NEGATE}
)


def is_cheap(pattern: str, characters: int) -> bool:
    """Return whether a search of `pattern` in a text of so many characters takes at most `MAX_PATHS` attempts.

    A pattern that `re` cannot compile is not cheap.
    """
    parsed = _parse(pattern)
    if parsed is None:
        return False
    starts = 1 if pattern.startswith(("^", r"\A")) and "|" not in pattern else characters + 1
    return starts * _paths_of_sequence(parsed, characters) <= MAX_PATHS


@lru_cache(maxsize=256)
def _parse(pattern: str) -> Any:
    if len(pattern) > MAX_PATTERN_CHARS:
        return None
    try:
        return _parser.parse(pattern)
    except (re.error, RecursionError, OverflowError):
        return None


def _paths_of_sequence(items: Iterable[Any], characters: int) -> float:
    """Return a bound on the ways in which a sequence can take a text; infinite: no useful bound is known."""
    paths = 1.0
    for kind, argument in items:
        paths *= _paths_of_item(kind, argument, characters)
    return paths


def _paths_of_item(kind: Any, argument: Any, characters: int) -> float:
    if kind in _SINGLE_PATH:
        return 1.0
    if kind is sre.BRANCH:
        return sum(_paths_of_sequence(branch, characters) for branch in argument[1])
    if kind is sre.SUBPATTERN:
        return _paths_of_sequence(argument[3], characters)
    if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
        low, high, body = argument
        inner, rounds = _paths_of_sequence(body, characters), min(int(high), characters + 1)
        if inner > 1:  # each round may choose again
            return inner**rounds if rounds * math.log(inner) < 50 else math.inf
        return float(max(1, rounds - int(low) + 1))
    return math.inf  # a reference or a look around
