"""Defines what one part of the gauntlet is, and runs it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

QUICK_S, FULL_S = 240.0, 300.0  # a part that takes longer has failed; a busy machine may need ten times as long


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a part. `figure` is for people; `why` says what the level misses, and is empty if it holds."""

    figure: str
    passed: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """One attack or fault. `level` says what must hold. `run` takes True for the quick size.

    `extra_s` is added to the time of the part, for a size that the command line chooses.
    """

    name: str
    level: str
    run: Callable[[bool], Awaitable[Finding]]
    extra_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table. `seconds` is the duration of the part."""

    part: str
    level: str
    figure: str
    passed: bool
    why: str
    seconds: float


def verdict_of(figure: str, levels: dict[str, bool]) -> Finding:
    """Return the finding of a part that passes if all levels hold. The keys say what is wrong if one does not."""
    missed = "; ".join(fault for fault, holds in levels.items() if not holds)
    return Finding(figure, not missed, missed)


async def row_of(part: Part, quick: bool) -> Row:
    """Run a part within its time. A part that raises or does not end has failed."""
    began, limit_s = time.monotonic(), (QUICK_S if quick else FULL_S) + part.extra_s
    try:
        async with asyncio.timeout(limit_s) as limit:
            finding = await part.run(quick)
    except Exception as error:  # a part that breaks must not hide the others
        why = f"it did not end within {limit_s:g} s" if limit.expired() else repr(error)
        finding = Finding("no figure", False, why)
    return Row(part.name, part.level, finding.figure, finding.passed, finding.why, round(time.monotonic() - began, 1))
