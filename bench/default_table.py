"""Formats the output of `bench.default`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.prompts import LENGTHS
from bench.stages import STAGES, StageCosts

EXACT, SEMANTIC, NEAR, FAR = "exact hit", "semantic hit", "miss near something", "miss far from everything"
STREAM = "live stream of a far miss"
KINDS = (EXACT, SEMANTIC, NEAR, FAR, STREAM)
ONE, MANY = CONNECTIONS = 1, 32
ALL_ON = "all on"
BARE, ENDPOINT, EMBEDDING = "bare server", "endpoint", "embedding"


@dataclass(frozen=True, slots=True)
class Cell:
    """A `Cell` is a window of each round. Either the gateway of `tree` is asked, or the `server` beside it."""

    kind: str
    length: int
    system: bool
    connections: int
    tree: str = ""
    server: str = ""


@dataclass(frozen=True, slots=True)
class Window:
    """One round of a cell. CPU is microseconds per request. Servers beside the gateway have some of the figures."""

    requests: int
    cpu_us: float
    p50_ms: float = 0.0
    per_second: float = 0.0
    loop_us: float = 0.0
    store_us: float = 0.0
    on_path: float = 1.0
    """The share of requests that took the path of their kind."""
    judged: float = 0.0
    """The share for which the verifier looked at a neighbour."""
    late: float = 0.0
    """Embeddings that were made behind an answer and dropped."""
    settled: bool = True
    """Whether the gateway was calm at the end; if not, its work counts in the next window."""


@dataclass
class Measurements:
    """The windows of all cells, one a round. `trees`: names of the checkouts, of which the first is this one."""

    trees: Sequence[str]
    windows: dict[Cell, list[Window]] = field(default_factory=dict)
    staged: dict[tuple[str, str], StageCosts] = field(default_factory=dict)
    """By kind and tree."""
    facts: dict[str, Any] = field(default_factory=dict)

    def add(self, cell: Cell, window: Window) -> None:
        self.windows.setdefault(cell, []).append(window)

    def median(self, cell: Cell, of: Callable[[Window], float]) -> float | None:
        """Return the median of a figure; None: the cell was not measured."""
        rounds = self.windows.get(cell)
        return statistics.median(map(of, rounds)) if rounds else None

    def ratio(self, cell: Cell, base: Cell) -> float | None:
        """Return the median ratio of CPU, round by round. A round says nothing in which the base took no more than an
        idle gateway."""
        pairs = zip(self.windows.get(cell, []), self.windows.get(base, []), strict=False)
        ratios = [window.cpu_us / floor.cpu_us for window, floor in pairs if floor.cpu_us > 0]
        return statistics.median(ratios) if ratios else None

    def added_ms(self, cell: Cell) -> float | None:
        """Return the median of p50 less that of the endpoint, round by round."""
        pairs = zip(self.windows.get(cell, []), self.windows.get(_baseline_of(cell, ENDPOINT), []), strict=False)
        added = [window.p50_ms - own.p50_ms for window, own in pairs]
        return statistics.median(added) if added else None

    def figures(self, cell: Cell) -> dict[str, float | None]:
        """Return the figures of a row at one number of connections; None: not measured."""
        found = {
            "cpu_us": self.median(cell, lambda window: window.cpu_us),
            "loop_us": self.median(cell, lambda window: window.loop_us),
            "store_us": self.median(cell, lambda window: window.store_us),
            "x_embedding": self.ratio(cell, _baseline_of(cell, EMBEDDING)),
            "x_bare": self.ratio(cell, _baseline_of(cell, BARE)),
            "on_path": self.median(cell, lambda window: window.on_path),
            "judged": self.median(cell, lambda window: window.judged),
            "late": self.median(cell, lambda window: window.late),
        }
        if cell.connections == ONE:
            found["added_ms"] = self.added_ms(cell)
        else:
            found["per_second"] = self.median(cell, lambda window: window.per_second)
        for other in self.trees[1:] if cell.tree == self.trees[0] else ():
            found[f"x_{other}"] = self.ratio(cell, _cell_with(cell, tree=other))
        return found

    def lines(self, systems: Sequence[bool] = (False, True)) -> list[str]:
        """Return the table of requests in Markdown."""
        others = [f"x {other}, {connections}" for other in self.trees[1:] for connections in CONNECTIONS]
        one = ["CPU us, 1", "loop us, 1", "x embedding, 1", "x bare, 1", "added p50 ms"]
        many = ["CPU us, 32", "loop us, 32", "x embedding, 32", "x bare, 32", "requests/s"]
        titles = ["request", "tokens", "with a system prompt", *one, *many, *others]
        if systems == (False,):
            titles[2] = "x with a system prompt"
        rows = [self._row(*each, systems) for each in self._known(systems)]
        return _markdown(titles, rows)

    def ratio_lines(self, tree: str) -> list[str]:
        """Return the CPU of another tree over that of the first one, in Markdown."""
        rows = []
        for kind, length, system, each in self._known((False, True)):
            if each == tree:
                cells = [Cell(kind, length, system, connections, tree) for connections in CONNECTIONS]
                ratios = [_form(self.ratio(cell, _cell_with(cell, tree=self.trees[0])), 2) for cell in cells]
                rows.append([kind, str(length), "yes" if system else "no", *ratios])
        return _markdown(["request", "tokens", "with a system prompt", *(f"x {tree}, {n}" for n in CONNECTIONS)], rows)

    def stage_lines(self) -> list[str]:
        """Return the table of stages in Markdown, in microseconds per request."""
        rows = []
        for (kind, tree), micros, cell in self.stages():
            store = self.median(cell, lambda window: window.store_us)
            rows.append([self._name(kind, tree), *(f"{micros[stage]:.0f}" for stage in STAGES), _form(store, 0)])
        return _markdown(["request", *STAGES, "process of the store"], rows)

    def start_lines(self) -> list[str]:
        """Return a sentence on start-up and memory for each tree: medians of all starts."""
        lines = []
        for tree in self.trees:
            names = ("start_s", "memory_at_the_start_mb", "memory_at_the_end_mb")
            seconds, first, last = (statistics.median(self.facts[name][tree]) for name in names)
            start = (
                f"A start took {seconds:.1f} s. The gateway then had {first:.0f} MB, and {last:.0f} MB after a round."
            )
            lines.append(self._name(start, tree))
        return lines

    def stages(self) -> Iterator[tuple[tuple[str, str], Mapping[str, float], Cell]]:
        for (kind, tree), staged in self.staged.items():
            cell = Cell(kind, self.facts["stage_tokens"], False, ONE, tree)
            loop_us = self.median(cell, lambda window: window.loop_us)
            if loop_us:
                yield (kind, tree), staged.micros(loop_us), cell

    def cells_off_path(self) -> Iterator[str]:
        """Yield the cells of which requests took another path."""
        for cell in self.windows:
            share = self.median(cell, lambda window: window.on_path)
            if share is not None and share < 1:
                also = f"{', with a system prompt' * cell.system}, {cell.connections} connections"
                yield f"{self._name(cell.kind, cell.tree)}, {cell.length} tokens{also}: {share:.2f} on its path"

    def unsettled_windows(self) -> int:
        """Return how many windows ended before the gateway was calm."""
        return sum(not window.settled for rounds in self.windows.values() for window in rounds)

    def late_embeddings(self) -> dict[str, float]:
        """Return the dropped late embeddings of each tree, in all rounds."""
        return {
            tree: sum(window.late for cell, all_ in self.windows.items() if cell.tree == tree for window in all_)
            for tree in self.trees
        }

    def as_dict(self) -> dict[str, Any]:
        """Return all figures for JSON: the medians of each cell, and its rounds."""
        cells = [
            asdict(cell) | {"median": self.figures(cell), "rounds": [asdict(window) for window in rounds]}
            for cell, rounds in self.windows.items()
            if not cell.server
        ]
        stages = [{"kind": kind, "tree": tree, "us": dict(micros)} for (kind, tree), micros, _ in self.stages()]
        return {"facts": self.facts, "stages": stages, "cells": cells}

    def _known(self, systems: Sequence[bool]) -> Iterator[tuple[str, int, bool, str]]:
        for kind in KINDS:
            for length in LENGTHS:
                for system in systems:
                    for tree in self.trees:
                        if Cell(kind, length, system, ONE, tree) in self.windows:
                            yield kind, length, system, tree

    def _row(self, kind: str, length: int, system: bool, tree: str, systems: Sequence[bool]) -> list[str]:
        one, many = (Cell(kind, length, system, connections, tree) for connections in CONNECTIONS)
        first, second = self.figures(one), self.figures(many)
        with_system = "yes" if system else "no"
        if systems == (False,):
            with_system = _form(self.ratio(_cell_with(one, system=True), one), 2)
        cells = [self._name(kind, tree), str(length), with_system]
        for found, last, digits in ((first, "added_ms", 2), (second, "per_second", 0)):
            forms = (("cpu_us", 0), ("loop_us", 0), ("x_embedding", 2), ("x_bare", 1), (last, digits))
            cells += [_form(found.get(name), number) for name, number in forms]
        for other in self.trees[1:]:
            cells += [_form(found.get(f"x_{other}"), 2) for found in (first, second)]
        return cells

    def _name(self, kind: str, tree: str) -> str:
        return f"{kind} @{tree}" if len(self.trees) > 1 else kind


def _baseline_of(cell: Cell, server: str) -> Cell:
    """Return the cell of a server that took part in the same round."""
    connections = ONE if server in (EMBEDDING, ENDPOINT) else cell.connections
    kind = cell.kind if server == EMBEDDING or cell.kind == STREAM else ""
    return Cell(kind, cell.length, cell.system and server != EMBEDDING, connections, "", server)


def _cell_with(cell: Cell, **changed: Any) -> Cell:
    return Cell(**(asdict(cell) | changed))


def _form(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles), *rows)]
