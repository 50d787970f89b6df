"""Puts the figures of one promise into one table, beside what other caches have published for their own sets.

The evaluation folder's `peersets.py` runs halves of GPTCache's pairs (zilliztech/GPTCache, MIT) and of MeanCache's
conversations (warisgill/MeanCache, MIT) through a gateway that has seen nothing.
"""

# ruff: noqa: S603 (a command of ours)
from __future__ import annotations

import ast
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from quality.labels import Labels
from quality.world import World

TOOL = "peersets.py"
LONGEST_S = 1200  # of its three runs; they take 2 minutes on an idle machine
PAIRS, FIRST_TURNS, FOLLOW_UPS = "GPTCache's pairs", "MeanCache's first turns", "MeanCache's follow-ups"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The hits of one cache on one set. `possible` requests have an answer in the cache, as a reader finds."""

    measured_on: str
    cache: str
    requests: int
    right: float
    wrong: float | None  # None: the tool does not tell
    possible: int
    source: str = "measured"

    @property
    def share(self) -> float:
        """The right hits of those that are possible."""
        return self.right / max(1, self.possible)


# Published for the whole sets, each cache with its own threshold.
PUBLISHED = [
    Comparison(PAIRS, "GPTCache, similarity .9", 999, 804, 77, 999, "published"),
    Comparison(FOLLOW_UPS, "MeanCache", 150, 119, 3, 150, "published"),
    Comparison(FOLLOW_UPS, "GPTCache", 150, 107, 54, 150, "published by MeanCache"),
]


def possible(world: World, labels: Labels) -> int:
    """Return the requests of a stream, in its order, with a near question before them that asks the same."""
    count = world.stream.request_count
    return sum(any(other < at and labels.same(at, other) for other in map(int, world.near[at])) for at in range(count))


def compare(folder: Path, budget: float) -> list[Comparison]:
    """Run the folder's `peersets.py` with this promise, and add the published figures. Empty if it has no such tool."""
    tool = folder / TOOL
    if not tool.exists():
        return []
    command = [sys.executable, str(tool), f"{{ttl: 24h, max_wrong_hits: {100 * budget:g}%}}"]
    environment = os.environ | {"NEARHIT": str(Path(sys.executable).parent / "nearhit")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{TOOL} failed: {done.stderr.strip()[-500:]}")
    return [*read_figures(done.stdout), *PUBLISHED]


def read_figures(text: str) -> list[Comparison]:
    """Read lines of `NAME: {"right": 1, ...}`, as the tool prints them. Each request has an answer in the cache."""
    said = dict(line.split(": ", 1) for line in text.strip().splitlines())
    figures = {name: ast.literal_eval(counts) for name, counts in said.items()}
    found = []
    for name, how in (("imported", "without lookups"), ("ordinary", "by ordinary requests")):
        counts = figures[f"GPTCache, {name}"]
        asked = sum(counts.values())
        found.append(Comparison(PAIRS, f"nearhit, filled {how}", asked, counts["right"], counts["wrong"], asked))
    talks = figures["MeanCache"]
    asked = talks["of each"]
    found.append(Comparison(FIRST_TURNS, "nearhit", asked, talks["first turns"], None, asked))
    found.append(Comparison(FOLLOW_UPS, "nearhit", asked, talks["follow-ups"], talks["other entry"], asked))
    return found
