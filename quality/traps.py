"""Counts the hits at a threshold among hard pairs, which only look alike or only look different, by kind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.ports import Embedder, Verifier
from quality.decision import Decision, FixedThreshold, StoredQuestion

FOLDER = Path(__file__).parents[1] / "tests" / "quality"
FILES = ("traps.jsonl", "languages.jsonl")
EVERYDAY = "everyday_dev.jsonl"


@dataclass(frozen=True, slots=True)
class Trap:
    kind: str
    stored: str
    asked: str
    same: bool


@dataclass(frozen=True, slots=True)
class Tally:
    kind: str
    right_served: int
    right: int
    wrong_served: int
    wrong: int


def load(evaluation: Path | None = None, folder: Path = FOLDER) -> list[Trap]:
    """Return every pair of the files that exist, and the everyday pairs of an evaluation folder."""
    lines = (
        line for name in FILES if (folder / name).exists() for line in (folder / name).read_text("utf-8").splitlines()
    )
    rows = (json.loads(line) for line in lines if line.strip())
    found = [Trap(str(row["kind"]), str(row["stored"]), str(row["asked"]), bool(row["same"])) for row in rows]
    everyday = None if evaluation is None else evaluation / "data" / EVERYDAY
    if everyday is not None and everyday.exists():
        said = map(json.loads, everyday.read_text("utf-8").splitlines())
        found += [Trap("everyday", str(row["a"]), str(row["b"]), bool(row["y"])) for row in said]
    return found


def tally(traps: Sequence[Trap], verifier: Verifier, embedder: Embedder, threshold: float) -> list[Tally]:
    """Return the tallies by kind, in the order of the files, and then the one of all pairs."""
    decision = Decision(verifier, embedder, FixedThreshold(verifier, threshold, learn=False), 0.0)
    decision.entries = 1
    served = asyncio.run(_is_served(traps, decision, embedder, verifier.floor))
    kinds = list(dict.fromkeys(trap.kind for trap in traps))
    return [_tally(kind, traps, served) for kind in (*kinds, "all")]


async def _is_served(traps: Sequence[Trap], decision: Decision, embedder: Embedder, floor: float) -> list[bool]:
    """Return whether a gateway serves the pair if it stores this one question and has learnt nothing."""
    found = []
    for trap in traps:
        embedded, by = await embedder.embed(trap.stored), await embedder.embed(trap.asked)
        stored, asked = embedded.vector, by.vector
        similarity = min(1.0, max(0.0, float(stored @ asked)))
        if similarity < floor or embedded.partial or by.partial:
            found.append(False)  # not looked up, or not worth reading
            continue
        judged = await decision.judge(trap.asked, asked, [(StoredQuestion("", trap.stored), similarity)])
        found.append(judged.reason is None)
    return found


def _tally(kind: str, traps: Sequence[Trap], served: Sequence[bool]) -> Tally:
    group = [(trap.same, hit) for trap, hit in zip(traps, served, strict=True) if kind in (trap.kind, "all")]
    right, wrong = ([hit for same, hit in group if same is wanted] for wanted in (True, False))
    return Tally(kind, sum(right), len(right), sum(wrong), len(wrong))
