"""Attacks gateway processes and breaks what they need, and prints whether each level holds: `make gauntlet`.

Everything runs on loopback, and counts and times are bounded. The exit status is 1 if a level is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from gauntlet import (
    booked_calls,
    cancelled_clients,
    clock_shifts,
    erasures,
    fuzzed_bodies,
    fuzzed_handshakes,
    grpc_port,
    hanging_webhooks,
    idle_connections,
    killed_gateway,
    killed_workers,
    replicas,
    short_answers,
    slow_bodies,
    slow_handshakes,
    smuggling,
    soak,
    spelled_requests,
    spending,
    store_faults,
    unread_answers,
)
from gauntlet.part import Part, row_of
from gauntlet.rows import Rows, table

PARTS: tuple[Part, ...] = (
    slow_bodies.PART,
    unread_answers.PART,
    cancelled_clients.PART,
    idle_connections.PART,
    smuggling.PART,
    smuggling.ANTHROPIC,
    smuggling.KSERVE,
    fuzzed_bodies.PART,
    grpc_port.PART,
    slow_handshakes.PART,
    fuzzed_handshakes.PART,
    store_faults.PART,
    replicas.PART,
    killed_gateway.PART,
    killed_workers.PART,
    hanging_webhooks.PART,
    clock_shifts.PART,
    spending.PART,
    booked_calls.PART,
    spelled_requests.PART,
    erasures.PART,
    short_answers.PART,
    soak.PART,
)


def parts_of(only: Sequence[str], soak_s: float | None, inputs: int | None) -> list[Part]:
    """Return the named parts, or all. None leaves a part at the size of the run."""
    sized = {
        soak.PART.name: soak.PART if soak_s is None else soak.part_of_duration(soak_s),
        fuzzed_bodies.PART.name: fuzzed_bodies.PART if inputs is None else fuzzed_bodies.of_inputs(inputs),
    }
    return [sized.get(part.name, part) for part in PARTS if not only or part.name in only]


async def run(parts: Sequence[Part], quick: bool, rows: Rows) -> bool:
    """Run the parts one after the other, and note each row. Return whether all levels hold."""
    holds = True
    for part in parts:
        print(f"{part.name} ...", end=" ", flush=True, file=sys.stderr)
        row = await row_of(part, quick)
        rows.add(row)
        holds = holds and row.passed
        print(f"{'holds' if row.passed else 'MISSED'} ({row.seconds:.0f} s)", file=sys.stderr)
    return holds


def main() -> int:
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(prog="make gauntlet", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the small sizes (3 minutes)")
    parser.add_argument(
        "--only", action="append", choices=names, metavar="PART", help=f"repeatable: {', '.join(names)}"
    )
    parser.add_argument("--soak", type=float, metavar="SECONDS", help="how long the soak lasts")
    parser.add_argument("--inputs", type=int, metavar="COUNT", help="how many bodies are fuzzed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write each row here; other parts keep theirs")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)  # the scripted endpoints log each client that leaves
    try:
        rows = Rows("quick" if given.quick else "full", names, given.json)
    except ValueError as error:
        parser.error(str(error))
    try:
        holds = asyncio.run(run(parts_of(given.only or (), given.soak, given.inputs), given.quick, rows))
    finally:
        print("\n".join(table(rows.of_this_run)))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
