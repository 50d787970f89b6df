"""Labelled pairs of questions: read from a file, and cut into parts that share no question. Pure but for reading."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

MAX_FAULTS = 20  # that are listed
MAX_PAIRS = 50_000  # the newest are used: beyond it, training takes more than half an hour on two cores
HELD_OUT, FITTED = 0.2, 0.2  # shares of the pairs, the newest first
MOST_FITTED = 3000  # pairs that fit the score's numbers: more say little of some ten numbers, and much to the encoder
MAX_CHARACTERS = 8192  # of a question


class PairsInvalid(Exception):
    """The file has faults. The message lists them, each with its line."""


@dataclass(frozen=True, slots=True)
class LabelledPair:
    """Two questions, and whether the answer of one may be served for the other."""

    stored: str
    asked: str
    same: bool


@dataclass(frozen=True, slots=True)
class PairSplit:
    """Pairs in three parts without a common question. `groups` has the connected component of each pair held out."""

    training: Sequence[LabelledPair]
    fitting: Sequence[LabelledPair]  # fits the score's numbers and chooses between candidates
    held_out: Sequence[LabelledPair]  # the newest: the gate
    groups: Sequence[int]


def read_pairs(path: Path) -> list[LabelledPair]:
    """Read a file of one {"a", "b", "y"} a line, oldest first. Raise `PairsInvalid`."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise PairsInvalid(f"{path}: cannot be read ({error.strerror}), expected a file of labelled pairs") from None
    pairs, faults = list[LabelledPair](), list[str]()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            pairs.append(_pair(line))
        except ValueError as error:
            faults.append(f"{path}:{number}: {error}")
    if faults:
        more = [f"... and {len(faults) - MAX_FAULTS} more"] if len(faults) > MAX_FAULTS else []
        raise PairsInvalid("\n".join([*faults[:MAX_FAULTS], *more]))
    return pairs


def _pair(line: bytes) -> LabelledPair:
    """Raise ValueError."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error})") from None
    if not isinstance(row, dict):
        raise ValueError(f'expected an object such as {{"a": "...", "b": "...", "y": 1}}, got {type(row).__name__}')
    for name in ("a", "b"):
        text = row.get(name)
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"{name}: expected the text of a question, got {_shown(text)}")
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f"{name}: {len(text)} characters, expected {MAX_CHARACTERS} at most")
    if row.get("y") not in (0, 1):
        raise ValueError(f"y: expected 1 (the same question) or 0, got {_shown(row.get('y'))}")
    return LabelledPair(row["a"], row["b"], bool(row["y"]))


def _shown(value: object) -> str:
    return "nothing" if value is None else orjson.dumps(value).decode()[:40]


def components(pairs: Sequence[LabelledPair]) -> list[int]:
    """Return for each pair the number of its connected component: pairs that share a question share a component."""
    parent: dict[str, str] = {}

    def root(text: str) -> str:
        while (above := parent.setdefault(text, text)) != text:
            parent[text] = parent[above]
            text = above
        return text

    for pair in pairs:
        parent[root(_key(pair.stored))] = root(_key(pair.asked))
    numbers: dict[str, int] = {}
    return [numbers.setdefault(root(_key(pair.asked)), len(numbers)) for pair in pairs]


def _key(text: str) -> str:
    return " ".join(text.casefold().split())


def cut(pairs: Sequence[LabelledPair]) -> PairSplit:
    """Cut pairs, oldest first, at their age. The newest fifth is held out.

    A component goes where its newest pair goes. So no question occurs in two parts. The parts may differ from
    their shares where components are large.
    """
    numbered = components(pairs)
    newest = dict[int, int]()
    for at, number in enumerate(numbered):
        newest[number] = at
    sizes = dict[int, int]()
    for number in numbered:
        sizes[number] = sizes.get(number, 0) + 1
    waiting = deque(sorted(newest, key=lambda number: -newest[number]))
    parts = list[set[int]]()
    for size in (HELD_OUT * len(pairs), min(FITTED * len(pairs), MOST_FITTED)):
        part, count = set[int](), 0
        while waiting and count < size:
            part.add(number := waiting.popleft())
            count += sizes[number]
        parts.append(part)
    newest_part, fitted = parts
    return PairSplit(
        list(_of(pairs, numbered, set(newest) - newest_part - fitted)),
        list(_of(pairs, numbered, fitted)),
        list(_of(pairs, numbered, newest_part)),
        [number for number in numbered if number in newest_part],
    )


def _of(pairs: Sequence[LabelledPair], numbered: Sequence[int], part: set[int]) -> Iterator[LabelledPair]:
    return (pair for pair, number in zip(pairs, numbered, strict=True) if number in part)
