"""Draws the results of `bench.growth`: `python -m bench.growth_picture growth.json growth.svg`.

It needs matplotlib, but nothing of the gateway.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

TITLES = {
    "body": ("body of the request, bytes", "CPU of a request, us", "cpu_us"),
    "connections": ("connections", "CPU of a request, us", "cpu_us"),
    "entries": ("stored entries of one scope", "CPU of a request, us", "cpu_us"),
    "routes": ("routes of the policy; the last one matches", "CPU of a request, us", "cpu_us"),
}
COLOURS = {
    "bare server, fixed body": "#9aa0a6",
    "bare reverse proxy": "#5f6368",
    "exact hit": "#0b7a4b",
    "exact hit, from the store": "#0b7a4b",
    "exact hit, bytes not seen before": "#1f6feb",
    "pass-through miss": "#c2410c",
    "semantic hit (hash)": "#7c3aed",
}


def draw(axes: Any, name: str, points: list[dict[str, Any]]) -> None:
    across, up, field = TITLES[name]
    for row, colour in COLOURS.items():
        pairs = sorted((max(1, point["x"]), point[field]) for point in points if point["row"] == row)
        if pairs:
            axes.plot([x for x, _ in pairs], [y for _, y in pairs], marker=".", color=colour, label=row)
    axes.set(xscale="log", yscale="log", xlabel=across, ylabel=up)
    axes.grid(alpha=0.2)
    axes.legend(fontsize=7, frameon=False)


def main(source: Path, target: Path) -> None:
    matplotlib = import_module("matplotlib")
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "nearhit"  # the same figures, the same file
    pyplot = import_module("matplotlib.pyplot")
    points: list[dict[str, Any]] = json.loads(source.read_text("utf-8"))["points"]
    names = [name for name in TITLES if any(point["curve"] == name for point in points)]
    figure, panels = pyplot.subplots(1, len(names), figsize=(4.2 * len(names), 3.8), squeeze=False)
    for axes, name in zip(panels[0], names, strict=True):
        draw(axes, name, [point for point in points if point["curve"] == name])
    figure.tight_layout()
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
