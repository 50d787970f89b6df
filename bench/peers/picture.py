"""Draws the results of `bench.peers` as bars: `python -m bench.peers.picture peers.json peers.svg`."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

CONNECTIONS = 32
WIDTH, LEFT, RIGHT, BAR, GAP, HEAD = 760, 130, 70, 20, 7, 34
OURS, OTHERS, FLOOR = "#0b7a4b", "#7a869a", "#c3c9d1"
FONT = "font-family='system-ui,sans-serif' fill='#57606a'"


def draw(said: Mapping[str, Any]) -> str:
    """Return SVG: for each way the CPU of a request over that of a bare server.

    The bars are at `CONNECTIONS` connections, on a log scale.
    """
    rows = [row for row in said["rows"] if row["connections"] == CONNECTIONS]
    ways = [(way, _rows_of(rows, way)) for way in ("pass-through", "exact hit")]
    height = 26 + sum(HEAD + len(some) * (BAR + GAP) for _, some in ways)
    most = max(float(row["x_bare"]) for row in rows)
    least = min(0.5, min(float(row["x_bare"]) for row in rows))
    lines = [f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' font-size='13' role='img'>"]
    lines.append(f"<title>{escape(_title(ways))}</title>")
    top = 0
    for way, some in ways:
        lines.append(f"<text x='0' y='{top + 22}' {FONT} font-weight='600'>{way}</text>")
        top += HEAD
        for row in some:
            lines += _bar(row, top, least, most)
            top += BAR + GAP
    note = f"CPU of a request at {CONNECTIONS} connections, x a bare aiohttp server with a fixed answer; log scale"
    lines.append(f"<text x='0' y='{height - 8}' {FONT} font-size='11'>{note}</text></svg>")
    return "\n".join(lines) + "\n"


def _rows_of(rows: Sequence[Mapping[str, Any]], way: str) -> list[Mapping[str, Any]]:
    return sorted((row for row in rows if row["way"] in (way, "")), key=lambda row: float(row["x_bare"]))


def _bar(row: Mapping[str, Any], top: int, least: float, most: float) -> Iterator[str]:
    ratio, name = float(row["x_bare"]), str(row["who"])
    share = math.log(ratio / (0.6 * least)) / math.log(most / (0.6 * least))
    width = max(2.0, share * (WIDTH - LEFT - RIGHT))
    colour = OURS if name == "nearhit" else FLOOR if name.startswith("bare") else OTHERS
    yield f"<text x='{LEFT - 8}' y='{top + 15}' text-anchor='end' {FONT}>{escape(name)}</text>"
    yield f"<rect x='{LEFT}' y='{top}' width='{width:.0f}' height='{BAR}' rx='2' fill='{colour}'/>"
    said = f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"
    yield f"<text x='{LEFT + width + 6:.0f}' y='{top + 15}' {FONT}>{said}</text>"


def _title(ways: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]) -> str:
    said = (f"{way}: " + ", ".join(f"{row['who']} {float(row['x_bare']):.2f}" for row in some) for way, some in ways)
    return "; ".join(said)


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(draw(json.loads(Path(sys.argv[1]).read_text())))
