"""Draws the results of the report: `python -m quality.picture quality.json quality.svg`.

It needs matplotlib, but nothing of the gateway.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

CURVES = (
    ("similarity", "similarity alone", "#9aa0a6"),
    ("verifier", "verifier", "#1f6feb"),
    ("evidence", "verifier + evidence", "#0b7a4b"),
)


def main(source: Path, target: Path) -> None:
    matplotlib = import_module("matplotlib")
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "nearhit"  # the same figures, the same file
    pyplot = import_module("matplotlib.pyplot")
    said: dict[str, Any] = json.loads(source.read_text("utf-8"))
    figure, axes = pyplot.subplots(figsize=(8, 4.8))
    for name, label, colour in CURVES:
        points = said["curves"].get(name, [])
        pairs = sorted((100 * p["error"], 100 * p["served"]) for p in points)
        axes.plot([x for x, _ in pairs], [y for _, y in pairs], color=colour, label=f"{label}, fixed thresholds")
    kept = [row for row in said["replays"] if row["stream"] == said["stream"]["name"]]
    axes.scatter(
        [100 * row["error"] for row in kept], [100 * row["served"] for row in kept],
        color="#c2410c", zorder=3, label="promises kept online",
    )  # fmt: skip
    for row in kept:
        where = (100 * row["error"], 100 * row["served"])
        axes.annotate(f"max_wrong_hits: {row['budget']:.0%}", where, (6, -10), textcoords="offset points", fontsize=8)
    perfect = 100 * said["stream"]["repeats"]
    axes.axhline(perfect, color="#9aa0a6", linestyle=":", linewidth=1)
    axes.annotate("a perfect cache", (0.02, perfect), xycoords=("axes fraction", "data"), va="bottom", fontsize=8)
    axes.set_xlim(0, 5.5)
    axes.set_ylim(0, None)
    axes.set_xlabel("wrong hits, % of all requests (raw labels)")
    axes.set_ylabel("served from the cache, % of all requests")
    axes.set_title(f"{said['stream']['name']}: {said['stream']['requests']} requests", fontsize=10)
    axes.grid(alpha=0.2)
    axes.legend(loc="lower right", fontsize=8, frameon=False)
    figure.tight_layout()
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
