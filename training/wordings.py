"""Loads pairs from hand-written wordings: a line has one question in four or five wordings, and as many near-misses.

    {"topic": ..., "same": [texts that ask for exactly the same answer], "other": [{"text": ..., "why": ...}, ...]}

No other natural paraphrases may ship. A line is a group: all its pairs are on one side of a split.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path

import numpy as np

from training import perturb
from training.encoder import Encoder
from training.pair import Pair

HERE = Path(__file__).parent / "wordings"
ALTERED = 4  # pairs of a group with one side changed: so many by harm, and so many without
NEIGHBOURS = 3  # other groups that a group is held against
DISTINCT = 0.8  # groups more similar than this may ask the same: two writers, one idea


@dataclass(frozen=True, slots=True)
class Group:
    name: str  # file:line
    same: tuple[str, ...]
    other: tuple[str, ...]


def groups(folder: Path = HERE) -> list[Group]:
    """Return every line of every file, in order. Raise ValueError with file and line if one has another form."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                said = json.loads(line)
                same, other = tuple(map(str, said["same"])), tuple(str(each["text"]) for each in said["other"])
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path.name}:{number} is no group of wordings: {error!r}") from None
            found.append(Group(f"{path.stem}:{number}", same, other))
    return found


def digest(folder: Path = HERE) -> str:
    """Return the hex SHA-256 of all files, in order."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(folder.glob("*.jsonl")))).hexdigest()


def pairs(found: Sequence[Group]) -> Iterator[Pair]:
    """Yield the pairs that the writers meant: 6 that ask the same and 16 that do not, for a full group."""
    for group in found:
        for asked, stored in combinations(group.same, 2):
            yield Pair(asked, stored, True, "wording", group.name)
        for asked, stored in product(group.same, group.other):
            yield Pair(asked, stored, False, "near-miss", group.name)


def altered_pairs(found: Sequence[Group], random_: random.Random) -> Iterator[Pair]:
    """Yield pairs of which one wording is changed, harmfully or not. In half of them the other one is its original.

    Writers make paraphrases that share few words (mean similarity .66). Most real duplicates share many (.87).
    """
    for group in found:
        for change in random_.sample(perturb.OTHER, ALTERED):
            asked, stored = _two(group, random_)
            if (new := change(stored, random_)) and new.lower() != stored.lower():
                yield Pair(asked, new, False, f"wording-{change.__name__}", group.name)
        for change in random_.sample(perturb.SAME, ALTERED):
            asked, stored = _two(group, random_)
            if (new := change(stored, random_)) and new != asked:
                yield Pair(asked, new, True, "wording-harmless", group.name)


def _two(group: Group, random_: random.Random) -> tuple[str, str]:
    asked, stored = random_.sample(group.same, 2)
    return (stored if random_.random() < 0.5 else asked), stored


def neighbour_pairs(found: Sequence[Group], encoder: Encoder, random_: random.Random) -> Iterator[Pair]:
    """Yield pairs of the nearest groups that are not too near: the same subject, but another question."""
    if len(found) <= NEIGHBOURS:
        return
    matrix = np.stack([np.mean([encoder(text) for text in group.same], axis=0) for group in found])
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    for at, group in enumerate(found):
        near = matrix @ matrix[at]
        near[at] = 1.0
        order = [int(i) for i in np.argsort(-near) if near[i] < DISTINCT]
        for i in order[:NEIGHBOURS]:
            yield Pair(random_.choice(group.same), random_.choice(found[i].same), False, "neighbour", group.name)
