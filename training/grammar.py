"""Generates pairs from a grammar: families of question frames, slots with fillers, several wordings of each frame.

A positive pair has the same frame and fillers in another wording. A negative pair changes one thing: a filler (entity,
number, unit, date), the aspect (another frame of the family), the direction (two slots of one type swapped), or an
added condition.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from training.pair import Pair

_SLOT = re.compile(r"\{(\w+):(\w+)\}")
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


def families(path: Path) -> list[list[Frame]]:
    return [[_frame(line) for line in block.splitlines()] for block in path.read_text().strip().split("\n\n")]


def slots(path: Path) -> dict[str, list[str]]:
    lines = (line.split(": ", 1) for line in path.read_text().splitlines())
    return {name: fillers.split(", ") for name, fillers in lines}


def _frame(line: str) -> Frame:
    types = dict(_SLOT.findall(line))
    return Frame(tuple(part.strip() for part in _SLOT.sub(r"{\1}", line).split("|")), types)


def pairs(here: Path, rounds: int, random_: random.Random) -> Iterator[Pair]:
    """`rounds` fillings of every frame; of each one or two positives and up to five negatives."""
    fillers = slots(here / "slots.txt")
    for number, family in enumerate(families(here / "frames.txt")):
        for index, frame in enumerate(family):
            for _ in range(rounds):
                yield from _of(family, index, frame, fillers, random_, f"frame-{number}-{index}")


def _of(
    family: list[Frame], index: int, frame: Frame, fillers: dict[str, list[str]], random_: random.Random, group: str
) -> Iterator[Pair]:
    chosen = _fill(frame, fillers, random_)
    wordings = random_.sample(frame.wordings, min(4, len(frame.wordings)))
    asked = wordings[0].format(**chosen)
    for wording in wordings[1:]:
        yield Pair(asked, wording.format(**chosen), True, "paraphrase", group)
    other = random_.choice(frame.wordings)
    for slot, kind in frame.slots.items():
        replaced = {**chosen, slot: random_.choice([f for f in fillers[kind] if f not in chosen.values()])}
        yield Pair(asked, random_.choice((wordings[0], other)).format(**replaced), False, f"slot-{kind}", group)
    if swapped := _swapped(frame, chosen):
        yield from _direction(asked, frame, chosen, swapped, random_, group)
    yield from _aspect(asked, family, index, frame, chosen, random_, group)
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


def _swapped(frame: Frame, chosen: dict[str, str]) -> dict[str, str] | None:
    alike = [(a, b) for a in frame.slots for b in frame.slots if a < b and frame.slots[a] == frame.slots[b]]
    if not alike:
        return None
    a, b = alike[0]
    return {**chosen, a: chosen[b], b: chosen[a]}


def _direction(
    asked: str, frame: Frame, chosen: dict[str, str], swapped: dict[str, str], random_: random.Random, group: str
) -> Iterator[Pair]:
    """Where a frame has a wording that names its two things in either order without a role, the order is nothing."""
    ordered = not any(
        word in frame.wordings[0] for word in ("difference", " or ", " between ", " and ", "along", "meet")
    )
    wording = random_.choice((frame.wordings[0], random_.choice(frame.wordings)))
    kind = "direction" if ordered else "symmetric"
    base = asked if ordered else frame.wordings[0].format(**chosen)
    yield Pair(base, wording.format(**swapped), not ordered, kind, group)
    yield Pair(frame.wordings[0].format(**chosen), frame.wordings[0].format(**swapped), not ordered, kind, group)


def _aspect(
    asked: str,
    family: list[Frame],
    index: int,
    frame: Frame,
    chosen: dict[str, str],
    random_: random.Random,
    group: str,
) -> Iterator[Pair]:
    related = [f for i, f in enumerate(family) if i != index and set(f.slots.items()) <= set(frame.slots.items())]
    for other in random_.sample(related, min(2, len(related))):
        yield Pair(asked, random_.choice(other.wordings).format(**chosen), False, "aspect", group)


def _with(question: str, condition: str) -> str:
    return f"{question[:-1]} {condition}?" if question.endswith("?") else f"{question} {condition}"
