"""Whether one glob matches all that another one does. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

_STAR, _ONE = "*", "?"


def covers(wide: str | None, narrow: str | None) -> bool:
    """True: every text that `narrow` matches is matched by `wide`; None stands for any text, even none at all. False:
    it is not so, or it cannot be told by comparing piece by piece."""
    if wide is None or wide == _STAR:
        return True
    if narrow is None:
        return False
    a, b = _pieces(wide), _pieces(narrow)
    # row[j]: whether what is left of `a` covers b[j:]; from the end of `a` to its beginning.
    row = [False] * len(b) + [True]
    for piece in reversed(a):
        above, row = row, [False] * (len(b) + 1)
        for j in range(len(b), -1, -1):
            if piece == _STAR:  # takes nothing, or the next piece whatever it is
                row[j] = above[j] or (j < len(b) and row[j + 1])
            else:
                row[j] = j < len(b) and above[j + 1] and _takes(piece, b[j])
    return row[0]


def _takes(piece: str, other: str) -> bool:
    """Of pieces that stand for one character; a star stands for any number."""
    if other == _STAR:
        return False
    if piece in (_ONE, other):
        return True
    return len(other) == 1 and other != _ONE and fnmatchcase(other, piece)


def _pieces(glob: str) -> Sequence[str]:
    """`*`, `?`, `[...]` and single characters, as `fnmatch` reads them: a bracket that is not closed is a character."""
    found: list[str] = []
    i = 0
    while i < len(glob):
        end = _closing(glob, i) if glob[i] == "[" else None
        if end is not None:
            found.append(glob[i : end + 1])
        else:
            found.append("[[]" if glob[i] == "[" else glob[i])
        i = i + 1 if end is None else end + 1
    return found


def _closing(glob: str, start: int) -> int | None:
    """Where a set that begins at `start` ends: a `]` right after the beginning, or after `!`, belongs to it."""
    first = start + 2 if glob[start + 1 : start + 2] == "!" else start + 1
    end = glob.find("]", first + 1)
    return None if end < 0 else end
