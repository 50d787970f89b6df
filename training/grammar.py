"""Generates pairs from a grammar: families of question frames, slots with fillers, several wordings of each frame.

A positive pair has the same frame and fillers in another wording. A negative pair changes one thing. It is a filler
(entity, number, unit, date), the aspect (another frame of the family), the direction, or an added condition.

`frames/*.txt` has one frame a line, and an empty line ends a family. Two slots of one type have roles: to exchange
their fillers asks another question. A frame that begins with `[a=b]` is symmetric in slots a and b: to exchange those
asks the same.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from training.pair import Pair

_SLOT = re.compile(r"\{(\w+):(\w+)\}")
_NAMED = re.compile(r"\{(\w+)\}")
_MARKER = re.compile(r"\[(\w+(?:=\w+)+)\] *")
CONDITIONS = (
    "for beginners", "in India", "for free", "online", "without a computer", "for children", "at home", "in the winter",
    "after surgery", "on a Mac", "for a small business", "at night", "if I am under 18", "without money", "in 2015",
    "for women", "on an empty stomach", "as a student", "with a broken screen", "in one week", "with no experience",
    "after the age of 40", "for a company of 50 people", "using only a phone", "while pregnant", "on Android",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Frame:
    wordings: tuple[str, ...]  # with {x} for each slot
    slots: Mapping[str, str]  # slot -> type
    symmetric: frozenset[str] = frozenset()  # slots whose fillers may change places

    def exchanges(self) -> Iterator[tuple[str, str, bool]]:
        """Yield two slots of one type, and whether the question stays the same when their fillers change places."""
        for one, other in combinations(self.slots, 2):
            if self.slots[one] == self.slots[other]:
                yield one, other, {one, other} <= self.symmetric


def families(path: Path) -> list[list[Frame]]:
    """Read the families of one file; raise ValueError for a frame whose slots do not agree."""
    return [[frame(line) for line in block.splitlines()] for block in path.read_text().strip().split("\n\n")]


def slots(path: Path) -> dict[str, list[str]]:
    lines = (line.split(": ", 1) for line in path.read_text().splitlines())
    return {name: fillers.split(", ") for name, fillers in lines}


def frame(line: str) -> Frame:
    """Read a frame; raise ValueError where a wording lacks a slot, or a marker joins slots of several types."""
    marker = _MARKER.match(line)
    text = line[marker.end() :] if marker else line
    symmetric = frozenset(marker[1].split("=")) if marker else frozenset[str]()
    types = dict(_SLOT.findall(text))
    wordings = tuple(part.strip() for part in _SLOT.sub(r"{\1}", text).split("|"))
    for wording in wordings:
        if set(_NAMED.findall(wording)) != set(types):
            raise ValueError(f"frame {line!r}: expected the slots {sorted(types)} in the wording {wording!r}")
    marked = {types.get(slot) for slot in symmetric}
    if None in marked or len(marked) > 1:
        raise ValueError(f"frame {line!r}: expected a marker of slots of one type, got {sorted(symmetric)}")
    return Frame(wordings, types, symmetric)


def pairs(here: Path, rounds: int, random_: random.Random) -> Iterator[Pair]:
    """Yield the pairs of `rounds` fillings of every frame: each has up to four positives, and some six negatives."""
    fillers = slots(here / "slots.txt")
    for path in sorted((here / "frames").glob("*.txt")):
        for number, family in enumerate(families(path)):
            for index in range(len(family)):
                for _ in range(rounds):
                    yield from _of(family, index, fillers, random_, f"{path.stem}-{number}-{index}")


def _of(
    family: list[Frame], index: int, fillers: dict[str, list[str]], random_: random.Random, group: str
) -> Iterator[Pair]:
    frame = family[index]
    chosen = _fill(frame, fillers, random_)
    wordings = random_.sample(frame.wordings, min(4, len(frame.wordings)))
    asked = wordings[0].format(**chosen)
    for wording in wordings[1:]:
        yield Pair(asked, wording.format(**chosen), True, "paraphrase", group)
    other = random_.choice(frame.wordings)
    for slot, kind in frame.slots.items():
        replaced = {**chosen, slot: random_.choice([f for f in fillers[kind] if f not in chosen.values()])}
        yield Pair(asked, random_.choice((wordings[0], other)).format(**replaced), False, f"slot-{kind}", group)
    yield from _exchange(wordings[0], frame, chosen, random_, group)
    yield from _aspect(wordings[0], family, index, chosen, random_, group)
    condition = random_.choice(CONDITIONS)
    yield Pair(asked, _with(other.format(**chosen), condition), False, "condition", group)
    if random_.random() < 0.5:
        second = random_.choice([c for c in CONDITIONS if c != condition])
        yield Pair(_with(asked, condition), _with(other.format(**chosen), second), False, "condition", group)
        yield Pair(_with(asked, condition), _with(other.format(**chosen), condition), True, "paraphrase", group)


def _fill(frame: Frame, fillers: dict[str, list[str]], random_: random.Random) -> dict[str, str]:
    chosen: dict[str, str] = {}
    for slot, kind in frame.slots.items():
        chosen[slot] = random_.choice([f for f in fillers[kind] if f not in chosen.values()])
    return chosen


def _exchange(wording: str, frame: Frame, chosen: dict[str, str], random_: random.Random, group: str) -> Iterator[Pair]:
    """Yield pairs in which two fillers change places, in the same wording and in another."""
    asked = wording.format(**chosen)
    others = [other for other in frame.wordings if other != wording]
    for one, other, same in frame.exchanges():
        exchanged = {**chosen, one: chosen[other], other: chosen[one]}
        for stored in (wording, *random_.sample(others, min(1, len(others)))):
            yield Pair(asked, stored.format(**exchanged), same, "symmetric" if same else "direction", group)


def _aspect(
    wording: str, family: list[Frame], index: int, chosen: dict[str, str], random_: random.Random, group: str
) -> Iterator[Pair]:
    """Yield pairs with two siblings in the family: one of the two most similar wordings, and any other."""
    slots_ = family[index].slots.items()
    related = [f for i, f in enumerate(family) if i != index and set(f.slots.items()) <= set(slots_)]
    nearest = [max(f.wordings, key=lambda other: _likeness(wording, other)) for f in related]
    nearest.sort(key=lambda other: _likeness(wording, other), reverse=True)
    stored = random_.sample(nearest[:2], min(1, len(nearest)))
    if len(related) > 1:
        stored.append(random_.choice(random_.choice(related).wordings))
    for other in stored:
        yield Pair(wording.format(**chosen), other.format(**chosen), False, "aspect", group)


def _likeness(one: str, other: str) -> float:
    """Return the words in both texts over the words in either: 0 to 1."""
    first, second = set(one.lower().split()), set(other.lower().split())
    return len(first & second) / len(first | second)


def _with(question: str, condition: str) -> str:
    return f"{question[:-1]} {condition}?" if question.endswith("?") else f"{question} {condition}"
