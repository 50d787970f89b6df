"""Draws the results of `bench.routing`: `python -m bench.routing_picture routing.json routing.png`.

It needs matplotlib, but nothing of the gateway.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

CURVES = {
    "held out": ("nearhit, subjects held out", "#0b7a4b", "-"),
    "shipped": ("nearhit, fitted on these prompts", "#0b7a4b", ":"),
    "prompt length": ("prompt length", "#1f6feb", "-"),
    "random": ("random", "#9aa0a6", "-"),
    "oracle": ("oracle", "#c2410c", "--"),
}
MODES = {
    "light alone": ("#1f6feb", "o"),
    "large alone": ("#c2410c", "v"),
    "half of each": ("#9aa0a6", "s"),
    "nearhit": ("#0b7a4b", "D"),
    "nearhit, each request": ("#7c3aed", "^"),
}
TOP = 140  # of the left panel: an oracle recovers more than the gap


def draw_curves(axes: Any, said: dict[str, Any]) -> None:
    for curve in said["curves"]:
        label, colour, style = CURVES[curve["name"]]
        shares, parts = zip(*curve["points"], strict=True)
        axes.plot([100 * x for x in shares], [100 * y for y in parts], color=colour, linestyle=style,
                  linewidth=1.4, label=f"{label}, APGR {curve['apgr']:.2f}")  # fmt: skip
    for point in said["reached"]:
        if point["audited"] == 0:
            where = (100 * point["large"], 100 * point["recovered"])
            axes.scatter(*where, color="#0b7a4b", s=22, zorder=3)
            away, side = ((-5, 6), "right") if point["large"] > 0.2 else ((5, -10), "left")
            axes.annotate(point["rule"], where, away, textcoords="offset points", fontsize=7, ha=side)
    axes.set(xlim=(0, 100), ylim=(0, TOP), xlabel="answered by the large model, %",
             ylabel="of the gap between both models recovered, %")  # fmt: skip
    axes.set_title(f"Quality against share: {said['prompts']} prompts, light and large recorded", fontsize=9)
    axes.legend(loc="lower right", fontsize=7, framealpha=0.9)


def draw_promise(axes: Any, said: dict[str, Any]) -> None:
    for mode, (colour, marker) in MODES.items():
        cells = [cell for cell in said["cells"] if cell["mode"] == mode]
        if not cells:
            continue
        loads = [cell["load"] for cell in cells]
        axes.plot(loads, [100 * cell["outcome"]["kept"] for cell in cells], color=colour, linewidth=1.4, label=mode)
        for cell in cells:
            axes.plot(cell["load"], 100 * cell["outcome"]["kept"], marker=marker, color=colour, markersize=5,
                      markerfacecolor="white" if cell["starved"] else colour)  # fmt: skip
        if mode == "nearhit":
            used = [100 * cell["outcome"]["large"] for cell in cells]
            axes.plot(loads, used, color=colour, linestyle=":", linewidth=1.2, label="nearhit, large used")
    best = [100 * share for share in said["oracle_large"]]
    axes.plot(said["loads"], best, color="black", linestyle=":", linewidth=1.2, label="oracle, large used")
    axes.axhline(95, color="#9aa0a6", linewidth=0.8, linestyle="--")
    axes.set(ylim=(0, 104), xlabel="load, of what the large model can bear")
    axes.set_ylabel("budgets kept, % of those that could be")
    starved = any(cell["starved"] for cell in said["cells"])
    hollow = " (hollow: machine was short of processors)" if starved else ""
    axes.set_title(f"Promise against load{hollow}", fontsize=9)
    axes.legend(loc="lower left", fontsize=7, frameon=False)


def main(source: Path, target: Path) -> None:
    matplotlib = import_module("matplotlib")
    matplotlib.use("agg")
    pyplot = import_module("matplotlib.pyplot")
    said: dict[str, Any] = json.loads(source.read_text("utf-8"))
    parts = [(name, draw) for name, draw in (("curve", draw_curves), ("promise", draw_promise)) if name in said]
    figure, panels = pyplot.subplots(1, len(parts), figsize=(5.6 * len(parts), 4.4), squeeze=False)
    for axes, (name, draw) in zip(panels[0], parts, strict=True):
        draw(axes, said[name])
        axes.grid(alpha=0.2)
    figure.tight_layout()
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
