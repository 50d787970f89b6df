"""Runs every path of the gateway and the bare servers in turn, for several rounds.

It prints the median ratios with their range, and the marks that are met. With `--tree`, gateways of other checkouts
take turns with this one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench.gateways import gateway_of, start_bare_servers
from bench.load import request_bytes, run
from bench.process import rss_mb
from bench.report import COLUMNS, Measurements
from bench.rows import BURST, FIXED, KINDS, PROXY, RELAYED, ROWS, Row

HERE = "this"
Place = tuple[int, int]  # port, process


def choose_rows(only: Collection[str]) -> list[Row]:
    """Return all rows, or the named ones and the bare servers that they are compared with."""
    rows = [row for row in ROWS if not only or row.name in only]
    rows += [row for row in ROWS if row.name in {each.beside for each in rows}]
    floors = {FIXED, PROXY}
    if any(row.events for row in rows):
        floors.add(BURST)
    if any(row.live for row in rows):
        floors.add(RELAYED)
    return [row for row in ROWS if row in rows or row.name in floors]


class Bench:
    """Measures the rows on `trees`: checkouts by name, None for this one."""

    def __init__(self, requests: int, rounds: int, only: Collection[str], trees: Mapping[str, Path | None]) -> None:
        self.requests, self.rounds, self.rows, self.trees = requests, rounds, choose_rows(only), trees
        self.measured = Measurements(list(trees))
        self._draw = random.Random(7)

    async def all(self) -> None:
        with ExitStack() as stack:
            places = await self._start(stack)
            for number in range(self.rounds + 1):
                for connections in COLUMNS:
                    for row in self.rows:
                        await self._row(row, places, connections, number)
            if ("onnx", HERE) in places:
                self.measured.facts["RSS at the end, MB"] = rss_mb(places["onnx", HERE][1])

    async def _start(self, stack: ExitStack) -> dict[tuple[str, str], Place]:
        """Start what the rows ask, and return where it listens, by kind and tree."""
        there = start_bare_servers(stack)
        up, places = there.upstream, {("fixed", ""): there.fixed, ("proxy", ""): there.proxy}
        for name, kind in KINDS.items():
            for label, tree in self.trees.items() if any(row.on == name for row in self.rows) else ():
                config = kind.config.replace("{admin}", f"{{admin}}, workers: {kind.workers}")
                it = stack.enter_context(
                    gateway_of(config, kind.policy, tree=tree, embedder=kind.embedder, upstream=up, more=kind.more)
                )
                places[name, label] = (it.port, it.process.pid)
                if name == "onnx" and label == HERE:
                    self.measured.facts["start, s"] = it.start_s
                    self.measured.facts["RSS at the start, MB"] = rss_mb(it.process.pid)
                await run(*places[name, label], [request_bytes(each) for each in kind.stored], connections=1)
        return places

    async def _row(self, row: Row, places: Mapping[tuple[str, str], Place], connections: int, number: int) -> None:
        labels = list(self.trees) if row.of_gateway else [""]
        for label in labels[:: 1 if number % 2 else -1]:  # none is always the first
            bodies = row.asked(self._draw, row.count(self.requests, connections))
            asked = [request_bytes(body, row.path, row.headers) for body in bodies]
            port, pid = places[row.on, label]
            expect = row.expect.encode()
            load = await run(port, pid, asked, connections=connections, expect=expect, events=row.events)
            if row.on == "workers":  # children of a supervisor; their store has next to nothing to do
                load = replace(load, cpu_us=load.cpu_us + load.store_cpu_us, store_cpu_us=0)
            if number:  # the first round warms everything up
                self.measured.add(row.name, label, connections, load)


def named_tree(text: str) -> tuple[str, Path]:
    name, _, path = text.rpartition("=")
    tree = Path(path).resolve()
    if not (tree / "gateway" / "__main__.py").exists():
        raise argparse.ArgumentTypeError(f"{path}: expected a checkout of nearhit, as PATH or NAME=PATH")
    return name or tree.name, tree


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--requests", type=int, default=2000, help="a path, round and concurrency")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only", action="append", default=[], metavar="ROW", choices=[row.name for row in ROWS],
        help="a row of the table, beside the bare servers; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--tree", action="append", default=[], type=named_tree, metavar="[NAME=]PATH",
        help="another checkout, whose gateway is measured by turns with this one's; repeatable",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, help="write every round's figures here")
    arguments = parser.parse_args()
    bench = Bench(arguments.requests, arguments.rounds, arguments.only, {HERE: None, **dict(arguments.tree)})
    asyncio.run(bench.all())
    print("\n".join(bench.measured.lines()))
    if arguments.json:
        arguments.json.write_text(json.dumps(bench.measured.as_dict(), indent=1))


if __name__ == "__main__":
    main()
