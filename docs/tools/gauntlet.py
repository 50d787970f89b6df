"""Write the table of docs/security.md from the figures of `make gauntlet`: `python -m docs.tools.gauntlet`.

The figures are in docs/security/gauntlet.json. The table stands between `<!-- gauntlet -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from docs.tools.page_parts import with_part
from gauntlet.rows import read_parts

DOCS = Path(__file__).parents[1]
PAGE, FIGURES = DOCS / "security.md", DOCS / "security" / "gauntlet.json"


def sentences(figure: str) -> str:
    """Return a figure as sentences: its clauses stand between colons and semicolons."""
    plain = re.sub(r"\+(-?\d+) (MB|files)", r"\1 \2 more", figure)
    return ". ".join(clause[:1].upper() + clause[1:] for clause in re.split("[:;] ", plain))


def markdown(parts: Sequence[Mapping[str, Any]]) -> str:
    """Return the table. `parts` are those of `gauntlet.rows.read_parts`."""
    lines = ["| part | level | figure | holds |", "|---|---|---|---|"]
    for part in parts:
        figure = sentences(part["figure"] if part["passed"] else f"{part['figure']}; {part['why']}")
        size = "" if part["size"] == "full" else f" ({part['size']} size)"
        cells = (f"`{part['part']}`{size}", part["level"], figure, "yes" if part["passed"] else "**no**")
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    days = sorted({part["at"][:10] for part in parts})
    cores, loads = parts[0]["cores"], [part["load"] for part in parts]
    ran = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    seconds = sum(part["seconds"] for part in parts)
    lines.append(
        f"\nRun on {ran} with {cores} cores, in {seconds / 60:.0f} minutes. The load of the machine was "
        f"{min(loads):g} to {max(loads):g}."
    )
    return "\n".join(lines) + "\n"


def with_table(page: str, parts: Sequence[Mapping[str, Any]]) -> str:
    """Return a page with its table written again."""
    return with_part(page, "gauntlet", markdown(parts))


def main() -> int:
    PAGE.write_text(with_table(PAGE.read_text(), read_parts(FIGURES)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
