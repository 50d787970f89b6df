"""Measures semantic hits with the real embedder: on one core, with two workers, and next to exact hits.

`make bench-semantic` needs a machine with two idle cores (two minutes). It takes one of `--only one-core workers
beside`.

one-core: the gateway, its store and all their threads share one core, and the load has the other. It runs with a fixed
threshold, and with a promise, for which the verifier judges each hit.
workers: one worker on one core is compared with two workers on a core each; the load uses the rest of the processor.
beside: exact hits come at a steady rate, alone and together with as many semantic hits as the gateway answers.

CPU is the scheduler's count for the threads of the gateway and its store. One second divided by the CPU of a hit is the
rate of a core without other work, at any load of the machine. The CPU of the load is printed too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import uvloop

from bench.fixtures import CONFIG, POLICY, body, other_case
from bench.gateways import GatewayProcess, free_port, gateway_of, server
from bench.load import exchange, request_bytes, run
from bench.process import children, children_of, cpu_seconds, pin
from bench.protocols import QUESTION

ROUNDS, SECONDS, RATE, CONNECTIONS = 5, 3.0, 100.0, 32
KINDS: dict[str, tuple[Callable[[random.Random], bytes], bytes]] = {
    "exact": (lambda _: body(QUESTION), b"detail=exact"),
    "semantic": (lambda draw: body(other_case(draw)), b"detail=semantic"),
}
POLICIES = {"min_similarity": POLICY, "max_wrong_hits": POLICY.replace("min_similarity: 0.9", "max_wrong_hits: 5%")}


async def ask_for(port: int, kind: str, connections: int, seconds: float, *, warming: bool = False) -> list[float]:
    """Return the seconds of each answer; as many as there are in that time. `warming`: accept any answer."""
    made, expect = KINDS[kind]
    expect = b"" if warming else expect
    draw, took, until = random.Random(), list[float](), time.perf_counter() + seconds

    async def ask() -> None:
        opened = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < until:
            took.append(await exchange(opened, request_bytes(made(draw)), expect))
        opened[1].close()

    await asyncio.gather(*(ask() for _ in range(connections)))
    return took


async def send_steadily(port: int, seconds: float) -> list[float]:
    """Send exact hits, `RATE` a second whatever comes back. Return the seconds since each was due."""
    made, expect = KINDS["exact"]
    request, began, took = request_bytes(made(random.Random())), time.perf_counter(), list[float]()
    free = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]

    async def send(due: float) -> None:
        opened = free.pop() if free else await asyncio.open_connection("127.0.0.1", port)
        await exchange(opened, request, expect)
        took.append(time.perf_counter() - due)
        free.append(opened)

    async with asyncio.TaskGroup() as group:
        for at in range(int(RATE * seconds)):
            due = began + at / RATE
            await asyncio.sleep(due - time.perf_counter())
            group.create_task(send(due))
    for _, writer in free:
        writer.close()
    return took


async def run_in_process(module: str, *arguments: object) -> Any:
    """Return the JSON that the module prints for these arguments in another process."""
    words = ["-m", module, "--part", *map(str, arguments)]
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    if process.returncode:
        raise SystemExit(f"{words} ended with {process.returncode}")
    return json.loads(said)


def quantiles(took: Sequence[float]) -> tuple[float, float]:
    """Return p50 and p99 in ms."""
    ordered = sorted(took)
    return 1e3 * statistics.median(ordered), 1e3 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


def spread(values: Sequence[float], form: str = ".2f") -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


@contextlib.contextmanager
def gateway(workers: int = 1, policy: str = POLICY) -> Iterator[GatewayProcess]:
    up = free_port()
    config = CONFIG.replace("admin: 127.0.0.1:{admin}", "admin: 127.0.0.1:{admin}, workers: {workers}")
    with (
        server(["bench.servers", "upstream", str(up)], up),
        gateway_of(config, policy, embedder="onnx", upstream=up, more="", workers=workers) as it,
    ):
        yield it


async def warm_up(it: GatewayProcess) -> None:
    await run(it.port, it.process.pid, [request_bytes(body(QUESTION))], connections=1)
    await ask_for(it.port, "semantic", 8, 2.0, warming=True)
    await ask_for(it.port, "exact", 8, 0.5, warming=True)


def process_family(it: GatewayProcess) -> list[int]:
    """Return the gateway's process and its children: its store, its workers."""
    return [it.process.pid, *children(it.process.pid)]


async def workers_of(it: GatewayProcess, count: int) -> list[int]:
    """Return the workers as soon as there are that many. The supervisor listens before it has any."""
    while True:
        found = children_of(it.process.pid, b"gateway")
        if len(found) == count:
            return found
        await asyncio.sleep(0.1)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The figures of one round: answers per second, CPU per hit in us, and the share of a core that the load took."""

    rate: float
    cpu_us: float
    load: float


async def measure_load(it: GatewayProcess, processes: int = 1) -> LoadResult:
    """Measure semantic hits over CONNECTIONS connections of that many processes."""
    cpu = sum(map(cpu_seconds, process_family(it)))
    each = ("bench.semantic", it.port, "semantic", CONNECTIONS // processes, SECONDS)
    asking = [run_in_process(*each) for _ in range(processes)]
    counts, loads = zip(*await asyncio.gather(*asking), strict=True)
    spent = sum(map(cpu_seconds, process_family(it))) - cpu
    return LoadResult(sum(counts) / SECONDS, 1e6 * spent / sum(counts), sum(loads) / SECONDS)


def summary(name: str, rounds: Sequence[LoadResult], cores: int = 1) -> str:
    rates, costs, loads = zip(*((each.rate, each.cpu_us, each.load) for each in rounds), strict=True)
    a_second = cores * 1e6 / statistics.median(costs)
    return (
        f"{name}: {spread(rates, '.0f')} semantic hits/s; CPU {spread(costs, '.0f')} us a hit, so {a_second:.0f}/s; "
        f"the load took {spread(loads)} of a core"
    )


async def measure_one_core() -> None:
    cores = sorted(os.sched_getaffinity(0))
    for name, policy in POLICIES.items():
        with gateway(policy=policy) as it:
            pin(it.process.pid, cores[0])
            os.sched_setaffinity(0, cores[1:] or cores)  # and of the processes that ask
            await warm_up(it)
            rounds = [await measure_load(it) for _ in range(ROUNDS)]
            os.sched_setaffinity(0, cores)
        print(summary(f"one core, {name}", rounds), flush=True)


async def measure_workers() -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    found: dict[int, list[LoadResult]] = {1: [], 2: []}
    with gateway(1) as one, gateway(2) as two:
        pin(one.process.pid, cores[0])
        both = await workers_of(two, 2)
        await warm_up(one)
        await warm_up(two)
        for pid, core in zip(both, cores, strict=True):
            pin(pid, core)
        for _ in range(ROUNDS):
            for count, it in ((1, one), (2, two)):
                found[count].append(await measure_load(it, processes=2))
    for count, name in ((1, "one worker on a core"), (2, "two workers on a core each")):
        print(summary(name, found[count], count))
    ratios = [b.rate / a.rate for a, b in zip(found[1], found[2], strict=True)]
    spent = [a.cpu_us / b.cpu_us for a, b in zip(found[1], found[2], strict=True)]
    print(f"two workers beside one: {spread(ratios)} x the hits/s; by CPU a hit {2 * statistics.median(spent):.2f} x")


async def measure_mixed() -> None:
    found: dict[str, list[tuple[float, float]]] = {"alone": [], "beside semantic hits": []}
    rates = []
    with gateway() as it:
        await warm_up(it)
        for _ in range(ROUNDS):
            found["alone"].append(quantiles(await send_steadily(it.port, SECONDS)))
            asking = run_in_process("bench.semantic", it.port, "semantic", CONNECTIONS, SECONDS + 1.5)
            other = asyncio.create_task(asking)
            await asyncio.sleep(1.0)  # it starts
            found["beside semantic hits"].append(quantiles(await send_steadily(it.port, SECONDS)))
            rates.append((await other)[0] / (SECONDS + 1.5))
    for name, rounds in found.items():
        p50, p99 = zip(*rounds, strict=True)
        print(f"exact hits, {RATE:.0f}/s, {name}: p50 {spread(p50)} ms, p99 {spread(p99)} ms")
    print(f"beside them: {spread(rates, '.0f')} semantic hits/s")


SECTIONS = {"one-core": measure_one_core, "workers": measure_workers, "beside": measure_mixed}


async def part(port: str, kind: str, connections: str, seconds: str) -> None:
    """Print the number of answers, and the CPU seconds of the client."""
    cpu = time.process_time()
    count = len(await ask_for(int(port), kind, int(connections), float(seconds)))
    print(json.dumps([count, time.process_time() - cpu]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--part", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        uvloop.run(part(*given.part))
        return
    for name in given.only:
        uvloop.run(SECTIONS[name]())


if __name__ == "__main__":
    main()
