"""Makes pairs of commands from the SNIPS data (CC0): one command in another sentence, with the same or other values."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from training.pair import Pair

VAGUE = ("sort", "music_item", "object_type")  # slots whose other values may mean the same, such as latest and newest


@dataclass(frozen=True, slots=True)
class Command:
    """A command whose values are cut out: `template` has {slot} in place of each value."""

    intent: str
    template: str
    values: tuple[tuple[str, str], ...]  # (slot, value), sorted by slot

    @property
    def shape(self) -> tuple[str, ...]:
        """The intent and its slots: commands of one shape differ in wording and in values."""
        return self.intent, *(slot for slot, _ in self.values)

    def fill(self, values: dict[str, str]) -> str:
        text = self.template
        for slot, value in values.items():
            text = text.replace(f"{{{slot}}}", value)
        return text


def commands(folder: Path) -> list[Command]:
    """Return the commands of every file whose slots have one value each, which stands once in the text."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").strip().split("\n"):  # values contain U+0085
            row = json.loads(line)
            command = _cut(_repair(row["text"]), row["intent"], row["slots"])
            if command is not None:
                found.append(command)
    return found


def pairs(folder: Path, count: int, random_: random.Random) -> Iterator[Pair]:
    """Yield for `count` commands one in another sentence with the same values, and two with one value changed."""
    shapes: dict[tuple[str, ...], list[Command]] = defaultdict(list)
    fillers: dict[tuple[str, str], list[str]] = defaultdict(list)
    for command in commands(folder):
        shapes[command.shape].append(command)
        for slot, value in command.values:
            fillers[command.intent, slot].append(value)
    several = sorted(shape for shape, found in shapes.items() if len(found) > 1)
    for shape in random_.choices(several, [len(shapes[each]) for each in several], k=count):
        asked, stored = random_.sample(shapes[shape], 2)
        values = dict(asked.values)
        text, group = asked.fill(values), f"snips-{'-'.join(shape)}"
        yield Pair(text, stored.fill(values), True, "command", group)
        for template in (asked, stored):
            slot = random_.choice([each for each in values if each not in VAGUE] or list(values))
            other = random_.choice(fillers[asked.intent, slot])
            if other.lower() != values[slot].lower():
                yield Pair(text, template.fill({**values, slot: other}), False, f"command-{slot}", group)


def _cut(text: str, intent: str, slots: dict[str, list[str]]) -> Command | None:
    values = {}
    for slot, said in slots.items():
        value = _repair(said[0])
        if len(said) != 1 or len(value) < 2 or text.count(value) != 1:
            return None
        values[slot] = value
    for slot, value in sorted(values.items(), key=lambda each: -len(each[1])):
        if value not in text:  # within a longer value
            return None
        text = text.replace(value, f"{{{slot}}}")
    return Command(intent, text, tuple(sorted(values.items()))) if values else None


def _repair(text: str) -> str:
    """Undo UTF-8 that was read as Latin-1."""
    try:
        return text.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return text
