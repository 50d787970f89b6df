"""Sends three times the questions that the encoder bears to the shipped policy: `python -m bench.encoder_load`.

The questions resemble each other, so the screen lets none go, and each needs its embedding. No two are alike. They
arrive as a Poisson process in an open loop, next to exact hits. The gateway has the first core, and its endpoint, which
answers at once, has the last one. The encoder's capacity is measured before, by single texts on the gateway's core.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.default_gateway import ROOT, Extras, Gateway, encoder, gateway, heads, token_counter
from bench.gateways import free_port, server
from bench.load import Connection, exchange, request_bytes
from bench.process import pin
from bench.prompts import Prompt, body, prose
from bench.settings import CORES
from gateway.config.schema import EmbedderConfig

STORED = 64  # questions
HITS_PER_SECOND = 20.0
CALM, LOADED = 0.3, 3.0  # times the encoder's capacity
PATIENCE_S = 20.0
MARKS = {"hits_ms": 5.0, "misses_ms": 10.0}
# The levels of load are shares of it, and `gateway` sets another one.
SHIPPED = Extras(environ={"NEARHIT_EMBEDDER__TIMEOUT": f"{EmbedderConfig().timeout:g}s"})


def requests(tokens_wanted: int, first: int, count: int, draw: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield texts and their requests, each with an answer of its own."""
    sentences = max(1, round(tokens_wanted / 13))
    for number in range(first, first + count):
        text = f"Which sentence of these was written first, for reader {number}? {prose(draw, sentences)}"
        head = "Authorization: Bearer bench\r\n"
        yield text, request_bytes(body(Prompt(text, number), system=False), headers=head)


class Clients:
    """`Clients` keeps connections open. A request takes a free one, or opens another."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[Connection] = []

    async def ask(self, request: bytes) -> float | None:
        """Return seconds; None: no answer, or none with 200."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                link = self._free.pop() if self._free else await asyncio.open_connection("127.0.0.1", self._port)
                took = await exchange(link, request)
        except (OSError, asyncio.IncompleteReadError, TimeoutError, AssertionError):
            return None
        self._free.append(link)
        return took


@dataclass
class Phase:
    """A load held for a while. `load`: times the encoder's capacity. Latencies are seconds."""

    load: float
    seconds: float
    hits: list[float] = field(default_factory=list)
    misses: list[float] = field(default_factory=list)
    failed: int = 0
    levels: Counter[int] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)

    def record(self, took: float | None, *, hit: bool) -> None:
        if took is None:
            self.failed += 1
        else:
            (self.hits if hit else self.misses).append(took)

    def row(self) -> str:
        asked = len(self.hits) + len(self.misses) + self.failed
        figures = [f"{self.load:g}", f"{asked / self.seconds:.0f}", str(self.failed)]
        figures += [f"{quantile_ms(each, q):.1f}" for each in (self.hits, self.misses) for q in (0.5, 0.99)]
        steps = ", ".join(f"{step} {count}" for step, count in sorted(self.left_out.items()) if count) or "nothing"
        return f"| {' | '.join([*figures, str(max(self.levels, default=0)), steps])} |"


def quantile_ms(seconds: Sequence[float], q: float) -> float:
    ordered = sorted(seconds)
    return 1e3 * ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else math.nan


def dropped_work(to: Gateway) -> Counter[str]:
    """Return the pieces of work left out so far, and the questions that the screen let go."""
    found = Counter[str]()
    for (name, labels), value in to.metrics().items():
        if name == "nearhit_left_out_total":
            found[labels.split('"')[1]] += int(value)
        elif name == "nearhit_refusals_total" and 'reason="screen"' in labels:
            found["let go by the screen"] += int(value)
    return found


async def run_load(to: Gateway, phase: Phase, rate: float, misses: Iterator[bytes], hit: bytes) -> None:
    """Send `rate` misses a second, whatever comes back, and hits beside them."""
    clients, draw, before = Clients(to.port), random.Random(5), dropped_work(to)
    started, due, due_hit, tasks = time.perf_counter(), 0.0, 0.0, dict[asyncio.Task[float | None], bool]()
    watch = asyncio.create_task(_watch(to, phase))
    while min(due, due_hit) < phase.seconds:
        is_hit = due_hit < due
        await asyncio.sleep(started + min(due, due_hit) - time.perf_counter())
        tasks[asyncio.create_task(clients.ask(hit if is_hit else next(misses)))] = is_hit
        if is_hit:
            due_hit += 1 / HITS_PER_SECOND
        else:
            due += draw.expovariate(rate)
    for task, is_hit in tasks.items():
        phase.record(await task, hit=is_hit)
    watch.cancel()
    phase.left_out = dropped_work(to) - before


async def _watch(to: Gateway, phase: Phase) -> None:
    """Record the level of load each second."""
    while True:
        metrics = await asyncio.to_thread(to.metrics)
        phase.levels[int(max(n for (name, _), n in metrics.items() if name == "nearhit_load_level"))] += 1
        await asyncio.sleep(1.0)


async def measure(options: argparse.Namespace) -> Sequence[Phase]:
    draw, up = random.Random(3), free_port()
    phases = [Phase(CALM, options.seconds), Phase(LOADED, options.seconds)]
    with contextlib.ExitStack() as stack:
        stack.enter_context(server(["bench.servers", "default", str(up)], up))
        alone = stack.enter_context(encoder())
        pin(alone.pid, CORES[0])
        stored = list(requests(options.tokens, 0, STORED, draw))
        texts = [text for text, _ in stored[:16]]
        capacity = 1e6 / min(alone.cost_us(texts) for _ in range(3))
        os.sched_setaffinity(0, {CORES[0]})  # which the gateway inherits
        to = stack.enter_context(gateway("this", options.tree, up, SHIPPED))
        os.sched_setaffinity(0, {CORES[-1]})
        await heads(to, [request for _, request in stored])
        counted = sum(map(token_counter(), texts)) / len(texts)
        print(f"{counted:.0f} tokens a question; the encoder bears {capacity:.0f} a second", flush=True)
        number = STORED
        for phase in phases:
            rate = phase.load * capacity
            count = int(2 * rate * phase.seconds) + 100
            misses = (request for _, request in requests(options.tokens, number, count, draw))
            await run_load(to, phase, rate, misses, stored[0][1])
            number += count
    return phases


def verdicts(phases: Sequence[Phase]) -> Iterator[tuple[str, float, bool]]:
    """Yield each mark, the figure, and whether it is met."""
    loaded = phases[-1]
    yield "failed = 0", loaded.failed, loaded.failed == 0
    for name, took, mark in (("exact hits", loaded.hits, "hits_ms"), ("misses", loaded.misses, "misses_ms")):
        p99 = quantile_ms(took, 0.99)
        yield f"p99 of {name} <= {MARKS[mark]:g} ms", p99, p99 <= MARKS[mark]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.encoder_load", description=__doc__)
    parser.add_argument("--tokens", type=int, default=100, help="of a question")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each load")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout whose gateway is measured")
    options = parser.parse_args()
    phases = asyncio.run(measure(options))
    titles = ["load", "asked/s", "failed", "hits p50 ms", "p99", "misses p50 ms", "p99", "level", "left out"]
    print("\n".join(f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles))))
    print("\n".join(phase.row() for phase in phases))
    for mark, figure, met in verdicts(phases):
        print(f"{'met' if met else 'MISSED':<7}{mark:<32}{figure:.1f}")


if __name__ == "__main__":
    main()
