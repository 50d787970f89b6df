"""Formats the output of `make bench`."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.load import Load
from bench.rows import BURST, EXACT_HIT, FIXED, PROXY, RELAYED, ROWS, TWO_WORKERS, Row

COLUMNS = (1, 32)  # connections
HEAD = (
    f"{'c':>3} {'CPU us':>7} {'store':>6} {'x fixed':>8} {'(range)':>12} {'x proxy':>8} {'us/event':>8} "
    f"{'p50 ms':>8} {'p99 ms':>8} {'req/s':>7}  {'hold':>5} {'reach':>5}"
)
# Of two workers: they answer 1.8 times as many requests on two cores as one does on one if each takes 1.11 of its CPU.
NAMES = {
    "x_fixed": "x fixed",
    "x_proxy": "x proxy",
    "x_one_worker": "x one worker's",
    "x_less": "x the row with less on",
    "event_us": "us/event",
    "p50_ms": "p50 ms",
    "per_second": "req/s",
}


@dataclass
class Measurements:
    """The loads of each row, tree and number of connections, one a round. `trees`: names of the checkouts whose
    gateways took turns; the first is this one."""

    trees: Sequence[str]
    loads: dict[tuple[str, str, int], list[Load]] = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)

    def add(self, row: str, tree: str, connections: int, load: Load) -> None:
        self.loads.setdefault((row, tree, connections), []).append(load)

    def ratios(self, key: tuple[str, str, int], base: tuple[str, str, int]) -> list[float]:
        """Return the ratios of CPU, round by round; none if one of both was not measured."""
        pairs = zip(self.loads.get(key, []), self.loads.get(base, []), strict=False)
        return [load.cpu_us / floor.cpu_us for load, floor in pairs]

    def figures(self, row: Row, tree: str, connections: int) -> dict[str, float]:
        """Return the medians, by the names that marks and columns have for them."""
        key = (row.name, tree, connections)
        loads = self.loads[key]
        found = {
            name: statistics.median(getattr(load, name) for load in loads)
            for name in ("cpu_us", "store_cpu_us", "p50_ms", "p99_ms", "per_second")
        }
        bases = {"x_fixed": FIXED, "x_proxy": RELAYED if row.live else BURST if row.events else PROXY}
        for name, base in bases.items():
            ratios = self.ratios(key, (base, "", connections))
            if ratios and not (row.live and name == "x_fixed"):
                found |= {name: statistics.median(ratios), f"{name}_least": min(ratios), f"{name}_most": max(ratios)}
        if row.name == TWO_WORKERS and (ratios := self.ratios(key, (EXACT_HIT, tree, connections))):
            found["x_one_worker"] = statistics.median(ratios)
        if row.beside and (ratios := self.ratios(key, (row.beside, tree, connections))):
            found["x_less"] = statistics.median(ratios)
        if row.live:
            found["event_us"] = found["cpu_us"] / row.events
        return found

    def lines(self) -> list[str]:
        width = max(len(self._name(row, tree)) for row in ROWS for tree in self.trees)
        lines = [f"{'':<{width}} {HEAD}"]
        for row, tree, connections in self._known():
            lines.append(f"{self._name(row, tree):<{width}} {self._line(row, tree, connections)}")
        lines += self._against_others()
        lines += [f"{name}: {value:.2f}" for name, value in self.facts.items()]
        return lines

    def as_dict(self) -> dict[str, Any]:
        """Return every round of every row, and the medians with their marks, for JSON."""
        rows = []
        for row, tree, connections in self._known():
            figures, marks = self.figures(row, tree, connections), row.marks[COLUMNS.index(connections)]
            met = [asdict(mark) | {"met": mark.verdict(figures[mark.field])} for mark in marks if mark.field in figures]
            rounds = [asdict(load) for load in self.loads[row.name, tree, connections]]
            where = {"row": row.name, "tree": tree, "connections": connections}
            rows.append(where | {"marks": met, "median": figures, "rounds": rounds})
        return {"facts": self.facts, "rows": rows}

    def _known(self) -> list[tuple[Row, str, int]]:
        """Return the measured cells, in the order of the table."""
        places = itertools.product(COLUMNS, ROWS, ("", *self.trees))
        return [(row, tree, count) for count, row, tree in places if (row.name, tree, count) in self.loads]

    def _name(self, row: Row, tree: str) -> str:
        return f"{row.name} @{tree}" if row.of_gateway and len(self.trees) > 1 else row.name

    def _line(self, row: Row, tree: str, connections: int) -> str:
        figures = self.figures(row, tree, connections)
        spread = f"{figures['x_fixed_least']:.2f}-{figures['x_fixed_most']:.2f}" if "x_fixed" in figures else ""
        line = (
            f"{connections:>3} {figures['cpu_us']:>7.0f} {figures['store_cpu_us']:>6.0f} "
            f"{_or_blank(figures, 'x_fixed', 2)} {spread:>12} {_or_blank(figures, 'x_proxy', 2)} "
            f"{_or_blank(figures, 'event_us', 1)} {figures['p50_ms']:>8.3f} {figures['p99_ms']:>8.3f} "
            f"{figures['per_second']:>7.0f}"
        )
        for mark in row.marks[COLUMNS.index(connections)]:
            if mark.field in figures:
                figure, reach = figures[mark.field], "" if mark.reach is None else f"{mark.reach:g}"
                line += f"  {mark.hold:>5.3g} {reach:>5} {NAMES[mark.field]} {figure:.2f}: {mark.verdict(figure)}"
        return line

    def _against_others(self) -> list[str]:
        """Return the ratios of this checkout's gateway to each other one's in the same rounds."""
        here, *others = self.trees
        lines = []
        for name, tree, connections in self.loads:
            for other in others if tree == here else ():
                ratios = self.ratios((name, here, connections), (name, other, connections))
                median = statistics.median(ratios)
                spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
                lines.append(f"{name}, {connections}: CPU {median:.2f} of {other}'s ({spread})")
        return ["", *lines] if lines else []


def _or_blank(figures: Mapping[str, float], name: str, digits: int) -> str:
    return f"{figures[name]:>8.{digits}f}" if name in figures else " " * 8
