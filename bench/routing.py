"""Measures the value of routing in two parts.

The first part uses recorded outcomes: the recovered gap between a light and a large model, against the share of large
calls. The second part uses real sockets: the latency budgets that are kept, against load and the share of large calls.

`make bench-routing` runs the second part, `make bench-routing EVAL=folder` both. It prints tables, and writes
build/routing.json and build/routing.png. The second part takes six minutes and needs an idle machine. It repeats a run
whose requests were sent late because processors were busy, and marks the run if that did not help.

Parts that do not run now come from the last run: `--only promise --modes "large alone"` measures one row again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import gap_recovery
from bench.promise import LOADS, MODES, STARVED_S, WARM, Cell, best_shares, measure
from bench.queues import Outcome, Scenario

SECTIONS = ("curve", "promise")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench-routing", description=__doc__)
    parser.add_argument("--scores", type=Path, help="what training.outcome_scores wrote; without it no curve")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--requests", type=int, default=1500, help="a load, where the gateway has to learn")
    parser.add_argument("--spread", type=float, default=0.3, help="standard deviation of the logarithm")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tries", type=int, default=3, help="of a load, while processors are short")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=list(MODES))
    parser.add_argument("--tools", default=sys.executable, help="Python with matplotlib")
    parser.add_argument("--folder", type=Path, default=Path("build"), help="for routing.json")
    parser.add_argument("--picture", type=Path, help="draw here; without it nothing is drawn")
    return parser


def curve_section(scores: Path) -> dict[str, Any]:
    seen = gap_recovery.load(scores)
    curves, points = gap_recovery.curves(seen), gap_recovery.rule_results(seen, seen.scores[gap_recovery.HELD_OUT])
    print(f"# Quality against the large model's share: {len(seen.light)} prompts, light {seen.light.mean():.1%} right, "
          f"large {seen.large.mean():.1%}\n")  # fmt: skip
    print(curve_table(curves), "\n")
    print(rule_table(points), flush=True)
    shown = [asdict(point) | {"furthest": None if math.isnan(point.furthest) else point.furthest} for point in points]
    return {"prompts": len(seen.light), "curves": [asdict(curve) for curve in curves], "reached": shown}


def curve_table(curves: Sequence[gap_recovery.Curve]) -> str:
    lines = [f"{'score':<16}{'APGR':>7}{'95 %':>17}{'at 10 %':>10}{'at 30 %':>10}{'at 50 %':>10}"]
    for curve in curves:
        at = "".join(f"{curve.at(share):>10.1%}" for share in gap_recovery.SHARES)
        lines.append(f"{curve.name:<16}{curve.apgr:>7.3f}{f'[{curve.low:.3f}, {curve.high:.3f}]':>17}{at}")
    lines.append(
        "at 10 %: part of the gap that is recovered where the large model answers 10 %. held out: weights that saw no\n"
        "subject of the same group. shipped: the gateway's own; they were fitted on these very prompts if these are\n"
        "RouteLLM's, so that their curve flatters"
    )
    return "\n".join(lines)


def rule_table(points: Sequence[gap_recovery.RuleResult]) -> str:
    lines = [f"{'policy (held-out scores)':<26}{'audited':>9}{'large':>9}{'furthest':>10}{'kept':>9}{'worst':>9}"
             f"{'recovered':>11}"]  # fmt: skip
    for point in points:
        furthest = "" if math.isnan(point.furthest) else f"{100 * point.furthest:.1f} pts"
        lines.append(f"{point.rule:<26}{point.audited:>9.0%}{point.large:>9.1%}{furthest:>10}{point.kept:>9.1%}"
                     f"{point.worst_kept:>9.1%}{point.recovered:>11.1%}")  # fmt: skip
    lines.append(
        f"all prompts in {gap_recovery.ORDERS} orders through the gateway's own rule. audited: of the light answers. "
        f"furthest:\nfrom the share asked for, over any {gap_recovery.IN_A_ROW} in a row. kept: of the prompts at "
        "which the light model is worse,\nthe part that the large one answered, which is what `quality` is of; worst: "
        "in the worst order. recovered: of\nthe gap, which is less where the large model is worse"
    )
    return "\n".join(lines)


def promise_section(given: argparse.Namespace, before: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Measure the modes. The result is written after each mode, so that nothing is lost."""
    scenario = Scenario((0.03, 8), (0.15, 16), given.spread, (0.06, 0.75))
    setting = {"scenario": asdict(scenario), "requests": given.requests, "seed": given.seed}
    best = best_shares(scenario, given.requests, given.seed)
    cells = previous_cells(before, setting, given.modes)
    print(f"\n# Budgets kept against load; {os.getloadavg()[0]:.1f} processes wanted a processor at the start\n")
    for found in measure(given.modes, scenario, given.requests, given.seed, given.tries):
        cells = sorted([*cells, *found], key=lambda cell: (list(MODES).index(cell.mode), cell.load))
        said = ", ".join(_format_lag(cell) for cell in found)
        print(f"  {found[0].mode}: 99 % of the requests were sent at most so many ms late: {said}", flush=True)
        shown = [asdict(cell) | {"starved": cell.is_starved} for cell in cells]
        yield {**setting, "loads": LOADS, "oracle_large": best, "cells": shown}
    print("\n" + promise_table(scenario, cells, best, given.requests), flush=True)


def previous_cells(before: dict[str, Any], setting: dict[str, Any], modes: Sequence[str]) -> list[Cell]:
    """Return the cells of an earlier run of the same setting, for modes that do not run now."""
    if {name: before.get(name) for name in setting} != json.loads(json.dumps(setting)):
        return []
    return [
        Cell(cell["mode"], cell["load"], Outcome(**cell["outcome"]), cell["lag_s"], cell["tries"], cell["failed"])
        for cell in before["cells"]
        if cell["mode"] not in modes
    ]


def _format_lag(cell: Cell) -> str:
    tries = f" ({cell.tries} tries)" if cell.tries > 1 else ""
    return f"{1e3 * cell.lag_s:.0f}{tries}" + (f", {cell.failed} requests failed" if cell.failed else "")


def promise_table(scenario: Scenario, cells: Sequence[Cell], best: Sequence[float], count: int) -> str:
    lines = [
        f"light {1e3 * scenario.light[0]:.0f} ms x {scenario.light[1]}, large {1e3 * scenario.large[0]:.0f} ms x "
        f"{scenario.large[1]} (median, workers), spread {scenario.spread}, budgets {scenario.budgets[0]:g} to "
        f"{scenario.budgets[1]:g} s, {count} requests a cell of nearhit, the first {WARM:.0%} not counted",
        f"{'load, of what large can bear':<32}" + "".join(f"{load:>17.1f}" for load in LOADS),
        f"{'oracle, large used':<32}" + "".join(f"{share:>17.1%}" for share in best),
    ]
    for mode in dict.fromkeys(cell.mode for cell in cells):
        shown = [
            f"{cell.outcome.kept:.1%} / {cell.outcome.large:.1%}{'*' if cell.is_starved else ' '}"
            for cell in cells
            if cell.mode == mode
        ]
        lines.append(f"{mode:<32}" + "".join(f"{text:>17}" for text in shown))
    lines.append("each cell: budgets kept, of those that could be / requests that the large one answered")
    if any(cell.is_starved for cell in cells):
        lines.append(
            f"*: measured on a starved machine, 1 % of the requests was sent {1e3 * STARVED_S:.0f} ms late or more"
        )
    return "\n".join(lines)


def main() -> None:
    given = parser().parse_args()
    target = given.folder / "routing.json"
    found: dict[str, Any] = json.loads(target.read_text("utf-8")) if target.exists() else {}
    if "curve" in given.only and given.scores is not None:
        found["curve"] = curve_section(given.scores)
    elif "curve" in given.only:
        print("No EVAL is given: nothing recorded to draw quality against the large model's share from.")
    given.folder.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(found, indent=1) + "\n")
    if "promise" in given.only:
        for part in promise_section(given, found.get("promise", {})):
            target.write_text(json.dumps({**found, "promise": part}, indent=1) + "\n")
    print(f"\nThese figures are in {target}.")
    if given.picture is not None:
        subprocess.run([given.tools, "-m", "bench.routing_picture", str(target), str(given.picture)], check=True)


if __name__ == "__main__":
    main()
