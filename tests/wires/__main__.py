"""`python -m tests.wires [NAME...]` takes the forms through every way, prints the table, and exits 1 if one fails."""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.wires.forms import Form, all_forms
from tests.wires.museum import MODES, WAYS, Visit, merged, open_museum

WORDS = 44  # characters of a failure in a cell


def cell(visits: Iterable[Visit]) -> str:
    """Return one way of a form, over all modes: `ok`, `-` if it does not exist, or the first failure."""
    existing = [visit for visit in visits if not visit.skipped]
    failed = [visit for visit in existing if visit.faults]
    if not failed:
        return "ok" if existing else "-"
    where = "" if len(failed) == len(existing) else f"{failed[0].mode}: "
    said = f"{where}{failed[0].faults[0]}"
    return said if len(said) <= WORDS else f"{said[: WORDS - 3]}..."


def table(rows: list[tuple[Form, list[Visit]]]) -> str:
    """Return the table form x way."""
    cells = [["form", *WAYS]]
    for form, visits in rows:
        cells.append([form.id, *(cell(visit for visit in visits if visit.way == way) for way in WAYS)])
    widths = [max(len(row[at]) for row in cells) for at in range(len(cells[0]))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in cells)


def failures(form: Form, visits: list[Visit]) -> list[str]:
    """Return each failure with the ways in which it occurs."""
    found: dict[str, list[str]] = {}
    for visit in visits:
        for fault in visit.faults:
            found.setdefault(fault, []).append(f"{visit.way} ({visit.mode})")
    existing = sum(not visit.skipped for visit in visits)
    return [
        f"{form.id}: {fault} / {'every way' if len(where) == existing else ', '.join(where)}"
        for fault, where in found.items()
    ]


async def main(names: list[str]) -> int:
    logging.getLogger("nearhit").addHandler(logging.NullHandler())  # the table alone
    forms = all_forms(names)
    with tempfile.TemporaryDirectory() as directory:
        async with open_museum(Path(directory)) as museum:
            rows = [(form, merged(await museum.visits(form))) for form in forms]
    print(table(rows))
    found = [line for form, visits in rows for line in failures(form, visits)]
    ways = sum(not visit.skipped for _, visits in rows for visit in visits)
    print(f"\n{len(rows)} forms, {ways} visits in {len(MODES)} modes, {len(found)} failures", *found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
