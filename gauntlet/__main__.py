"""Attacks a gateway process and breaks its store, and prints whether each level holds: `make gauntlet`.

Everything runs on loopback, and counts and times are bounded. The exit status is 1 if a level is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from gauntlet import (
    cancelled_clients,
    fuzzed_bodies,
    idle_connections,
    killed_gateway,
    slow_bodies,
    slow_handshakes,
    smuggling,
    store_faults,
    unread_answers,
)
from gauntlet.part import Part, Row, row_of

PARTS: tuple[Part, ...] = (
    slow_bodies.PART,
    unread_answers.PART,
    cancelled_clients.PART,
    idle_connections.PART,
    smuggling.PART,
    fuzzed_bodies.PART,
    store_faults.PART,
    killed_gateway.PART,
    slow_handshakes.PART,
)
WIDTH = 60  # of the two columns of text


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of the table."""
    name = max(len(row.part) for row in rows)
    yield f"{'part':<{name}}  {'level':<{WIDTH}}  {'figure':<{WIDTH}}  {'s':>6}  pass"
    for row in rows:
        told = row.figure if row.passed else f"{row.figure}. {row.why}"
        level, figure = textwrap.wrap(row.level, WIDTH), textwrap.wrap(told, WIDTH)
        for i in range(max(len(level), len(figure))):
            texts = [lines[i] if i < len(lines) else "" for lines in (level, figure)]
            ends = f"{row.seconds:>6.1f}  {'yes' if row.passed else 'NO'}" if i == 0 else ""
            line = f"{'' if i else row.part:<{name}}  {texts[0]:<{WIDTH}}  {texts[1]:<{WIDTH}}  {ends}"
            yield line.rstrip()


async def rows_of(parts: Sequence[Part], quick: bool) -> list[Row]:
    """Run the parts one after the other, and say on standard error which one runs."""
    rows = []
    for part in parts:
        print(f"{part.name} ...", end=" ", flush=True, file=sys.stderr)
        rows.append(await row_of(part, quick))
        print(f"{'holds' if rows[-1].passed else 'MISSED'} ({rows[-1].seconds:.0f} s)", file=sys.stderr)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="make gauntlet", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the small sizes (2 minutes)")
    parser.add_argument("--part", action="append", choices=[part.name for part in PARTS], help="repeatable")
    parser.add_argument("--json", type=Path, help="write the table here")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)  # the scripted endpoints log each client that leaves
    parts = [part for part in PARTS if not given.part or part.name in given.part]
    rows = asyncio.run(rows_of(parts, given.quick))
    print("\n".join(table(rows)))
    if given.json:
        found = {
            "size": "quick" if given.quick else "full",
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
            "parts": [asdict(row) for row in rows],
        }
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
