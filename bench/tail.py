"""Measures the tail of latencies under a steady load, the stalls of the event loop, and the growth of memory.

`make bench-tail`: a real gateway for each embedder gets Poisson arrivals (open loop, seeded) for a minute, a mix of
hits, misses and streams. The rate loads its busier half (the event loop or the other threads) to 70 %. A closed loop
with the same mix measures that rate first. Latencies start when a request is sent. The delay of the sender is shown
too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import re
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import uvloop

from bench.fixtures import CONFIG, body, new_question, other_case
from bench.gateways import GatewayProcess, free_port, gateway_of, server
from bench.load import Connection, exchange, request_bytes
from bench.process import cpu_seconds, loop_seconds, rss_mb
from bench.protocols import EVENTS, QUESTION
from bench.rows import REFUSING, sentence

SHARE = 0.7  # of one processor
MEASURED = 2000  # requests by which it is found out what one takes
AT_ONCE = 16
SCOPES = 64  # that misses come from
STALL = re.compile(r'^nearhit_loop_stalls_total\{cause="(\w+)"\} (\S+)', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of request. `part`: its share of all requests. `made`: makes a body."""

    name: str
    part: float
    made: Callable[[random.Random], bytes]
    expect: bytes
    events: int = 0


KINDS = (
    Kind("exact hit", 0.60, lambda _: body(QUESTION), b"detail=exact"),
    Kind("semantic hit", 0.15, lambda draw: body(other_case(draw)), b"detail=semantic"),
    Kind("miss, stored", 0.10, lambda draw: sentence(draw, draw.randrange(SCOPES)), b"fwd=miss"),
    Kind("stream hit", 0.10, lambda _: body(QUESTION, "long", stream=True), b"detail=exact", EVENTS),
    Kind(
        "live stream",
        0.05,
        lambda draw: body(new_question(draw), f"missing-{draw.randrange(SCOPES)}", stream=True),
        b"fwd=miss",
        EVENTS,
    ),
)


@dataclass
class Result:
    """The result of a run.

    `took`: seconds by kind. `failed`: refused, or answered as another kind. `late`: seconds between the due time of a
    request and its sending. `first_failed`: the reason of the first failure.
    """

    embedder: str
    rate: float
    cpu_us: float  # a request, in the closed loop before
    busy: float = 0.0  # part of the minute that the event loop computed
    took: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    first_failed: str = ""
    late: list[float] = field(default_factory=list)
    stalls: Mapping[str, int] = field(default_factory=dict)
    longest: Mapping[str, object] | None = None
    rss_before_mb: float = 0.0
    rss_after_mb: float = 0.0

    def rows(self) -> Iterator[tuple[str, list[float]]]:
        """Yield each kind's latencies, and all but those of live streams, which take as long as the endpoint does."""
        yield from self.took.items()
        yield (
            "all that the gateway times",
            [s for kind, took in self.took.items() if kind != "live stream" for s in took],
        )


class Clients:
    """Connections that are kept; a request takes a free one or opens another."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[Connection] = []
        self.first_failed = ""

    async def ask(self, kind: Kind, draw: random.Random) -> float | None:
        """Return seconds; None: refused, or not answered as it should be."""
        opened = self._free.pop() if self._free else await asyncio.open_connection("127.0.0.1", self._port)
        try:
            seconds = await exchange(opened, request_bytes(kind.made(draw)), kind.expect, kind.events)
        except (AssertionError, OSError, asyncio.IncompleteReadError) as error:
            opened[1].close()
            self.first_failed = self.first_failed or f"{kind.name}: {error!r}"
            return None
        self._free.append(opened)
        return seconds

    def close(self) -> None:
        for _, writer in self._free:
            writer.close()


def draw_kind(draw: random.Random) -> Kind:
    return draw.choices(KINDS, [kind.part for kind in KINDS])[0]


async def cpu_seconds_per_request(it: GatewayProcess, clients: Clients, draw: random.Random) -> float:
    """Return CPU seconds per request of the mix: of the event loop, or of all other threads if that is more."""
    left = iter(range(MEASURED))

    async def send() -> None:
        for _ in left:
            await clients.ask(draw_kind(draw), draw)

    loop, all_threads = loop_seconds(it.process.pid), cpu_seconds(it.process.pid)
    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(send())
    loop, all_threads = loop_seconds(it.process.pid) - loop, cpu_seconds(it.process.pid) - all_threads
    return max(loop, all_threads - loop) / MEASURED


async def run_load(result: Result, clients: Clients, draw: random.Random, seconds: float) -> None:
    """Send requests at the rate, whatever comes back, and wait for the last answer."""
    result.took, result.failed = {kind.name: [] for kind in KINDS}, {kind.name: 0 for kind in KINDS}
    began, due = time.perf_counter(), 0.0

    async def send(kind: Kind) -> None:
        seconds = await clients.ask(kind, draw)
        if seconds is None:
            result.failed[kind.name] += 1
        else:
            result.took[kind.name].append(seconds)

    async with asyncio.TaskGroup() as group:
        while due < seconds:
            await asyncio.sleep(began + due - time.perf_counter())
            result.late.append(time.perf_counter() - began - due)
            group.create_task(send(draw_kind(draw)))
            due += draw.expovariate(result.rate)


async def measure(embedder: str, share: float, seconds: float, seed: int) -> Result:
    up, draw = free_port(), random.Random(seed)
    with (
        server(["bench.servers", "upstream", str(up)], up),
        gateway_of(CONFIG, REFUSING, embedder=embedder, upstream=up, more="") as it,
    ):
        clients = Clients(it.port)
        opened = await asyncio.open_connection("127.0.0.1", it.port)
        for stored in (body(QUESTION), body(QUESTION, "long")):
            await exchange(opened, request_bytes(stored))
        opened[1].close()
        await cpu_seconds_per_request(it, clients, draw)  # warms up
        each = await cpu_seconds_per_request(it, clients, draw)
        result = Result(embedder, share / each, 1e6 * each, rss_before_mb=rss_mb(it.process.pid))
        stalls, cpu, began = stalls_of(it), loop_seconds(it.process.pid), time.perf_counter()
        clients.first_failed = ""
        await run_load(result, clients, draw, seconds)
        result.first_failed = clients.first_failed
        result.busy = (loop_seconds(it.process.pid) - cpu) / (time.perf_counter() - began)
        result.stalls = {cause: count - stalls[cause] for cause, count in stalls_of(it).items()}
        result.longest = json.loads(_get(it, "/admin/stats"))["loop"]["longest"]
        result.rss_after_mb = rss_mb(it.process.pid)
        clients.close()
    return result


def stalls_of(it: GatewayProcess) -> dict[str, int]:
    """Return the stalls since the start, by cause."""
    return {cause: int(float(count)) for cause, count in STALL.findall(_get(it, "/metrics"))}


def _get(it: GatewayProcess, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{it.admin}{path}") as answer:
        text: str = answer.read().decode()
    return text


def quantile_ms(seconds: list[float], q: float) -> float:
    ordered = sorted(seconds) or [math.nan]
    return 1e3 * ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def lines(result: Result) -> Iterator[str]:
    yield (
        f"{result.embedder}: {result.rate:.0f} requests/s of {result.cpu_us:.0f} us each; "
        f"the event loop computed {100 * result.busy:.0f} % of the time"
    )
    yield f"{'':<28}{'requests':>9}{'p50 ms':>9}{'p99 ms':>9}{'p99.9 ms':>9}{'most ms':>9}{'failed':>8}"
    for name, took in (*result.rows(), ("(sent late by)", result.late)):
        quantiles = "".join(f"{quantile_ms(took, q):>9.2f}" for q in (0.5, 0.99, 0.999, 1))
        yield f"{name:<28}{len(took):>9}{quantiles}{result.failed.get(name) or '':>8}"
    if result.first_failed:
        yield f"the first that failed: {result.first_failed}"
    stalls = ", ".join(f"{cause} {count}" for cause, count in result.stalls.items())
    own = sum(count for cause, count in result.stalls.items() if cause != "starved")
    yield f"stalls of 20 ms and more: {stalls}; {'none of its own making' if not own else f'{own} of its own making'}"
    yield f"the longest since its start: {result.longest or 'none'}"
    yield f"RSS {result.rss_before_mb:.0f} MB before, {result.rss_after_mb:.0f} MB after"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-tail", description=__doc__)
    parser.add_argument("--embedder", action="append", choices=("hash", "onnx"), help="repeatable; default: both")
    parser.add_argument("--share", type=float, default=SHARE, help="of one processor")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=9)
    parser.add_argument("--json", type=Path, help="write every latency here")
    given = parser.parse_args()
    results = [
        uvloop.run(measure(embedder, given.share, given.seconds, given.seed))
        for embedder in given.embedder or ("hash", "onnx")
    ]
    print("\n\n".join("\n".join(lines(result)) for result in results))
    if given.json:
        given.json.write_text(json.dumps([asdict(result) for result in results]))


if __name__ == "__main__":
    main()
