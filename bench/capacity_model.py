"""Compares the formulas of `nearhit capacity` with a simulation, and both with gateways that share one store.

`make bench-capacity` runs it. Poisson arrivals come at several rates: a fifth are exact hits, a fifth semantic hits,
and the rest misses. The unit costs come from gateway/features/capacity/costs.yaml.

Other load on the machine changes the results, so two columns show it. "costs" is the cost of the same work in the run,
relative to the file, without the cost of an idle gateway. "starved" is the time that ready threads waited for a
processor, in per cent of their work. Rows above 50 % have a star: their p95 shows the machine, not the formulas.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import heapq
import itertools
import os
import random
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.coalescing import valkey
from bench.fixtures import other_case
from bench.gateways import GatewayProcess, free_port, gateway_of, server
from bench.overload import Clients, Observation
from bench.process import cpu_seconds, loop_seconds, starved_seconds
from bench.protocols import QUESTION
from bench.unit_costs import CONFIG, POLICY
from bench.unit_costs import Bench as Questions
from gateway.features.capacity.costs import Costs, load_costs
from gateway.features.capacity.demand import Demand
from gateway.features.capacity.plan import wait_quantile_s, work_per_request

STARVED = 0.5  # of the time worked
SHARES = {"exact": 0.2, "semantic": 0.2, "miss": 0.6}


@dataclass(frozen=True, slots=True)
class Kind:
    """The seconds of one request: of the event loop, of the threads beside it, and elsewhere (store, upstream)."""

    share: float
    loop_s: float
    threads_s: float
    elsewhere_s: float


def kinds_of(costs: Costs, alone: Mapping[str, float]) -> dict[str, Kind]:
    """Return the kinds. `alone`: seconds of an answer while nothing else is asked, by kind."""
    spent = {
        "exact": (costs.exact_loop_us, 0.0),
        "semantic": (costs.semantic_loop_us, costs.semantic_threads_us),
        "miss": (costs.miss_loop_us, costs.miss_threads_us),
    }
    return {
        name: Kind(SHARES[name], loop / 1e6, threads / 1e6, max(0.0, alone.get(name, 0.0) - (loop + threads) / 1e6))
        for name, (loop, threads) in spent.items()
    }


@dataclass(eq=False)
class Station:
    """One server with one queue."""

    waiting: deque[Job] = field(default_factory=deque)
    busy: bool = False
    worked: float = 0.0


@dataclass(eq=False)
class Job:
    """A request. `steps`: (where, seconds); nowhere is a delay that takes no server."""

    came: float
    steps: Iterator[tuple[Station | None, float]]
    took: float = 0.0
    service: float = 0.0


class Simulation:
    """Stations that need one of `cores` to work; who is ready first works first, to its end."""

    def __init__(self, cores: int) -> None:
        self.free = cores
        self.ready: deque[Station] = deque()
        self.events: list[tuple[float, int, Job, Station | None]] = []
        self.numbers = itertools.count()

    def run(self, jobs: Iterable[Job]) -> None:
        """Run until the last job is done."""
        for job in jobs:
            self._schedule(job.came, job, None)
        while self.events:
            now, _, job, done = heapq.heappop(self.events)
            if done is not None:
                done.busy = False
                self.free += 1
                self._enqueue(done)
            self._next(now, job)
            self._start(now)

    def _schedule(self, when: float, job: Job, station: Station | None) -> None:
        heapq.heappush(self.events, (when, next(self.numbers), job, station))

    def _next(self, now: float, job: Job) -> None:
        station, seconds = next(job.steps, (None, -1.0))
        if seconds < 0:
            job.took = now - job.came
        elif station is None:
            self._schedule(now + seconds, job, None)
        else:
            job.service = seconds
            station.waiting.append(job)
            self._enqueue(station)

    def _enqueue(self, station: Station) -> None:
        if station.waiting and not station.busy and station not in self.ready:
            self.ready.append(station)

    def _start(self, now: float) -> None:
        while self.free and self.ready:
            station = self.ready.popleft()
            job = station.waiting.popleft()
            station.busy, self.free = True, self.free - 1
            station.worked += job.service
            self._schedule(now + job.service, job, station)


@dataclass(frozen=True, slots=True)
class Figures:
    """Utilisations are of one core, the mean of all gateways; `costs`: the work of a request over what was expected."""

    loop: float
    threads: float
    p95_ms: float
    costs: float = 1.0
    starved: float = 0.0  # over loop and threads


def simulate(kinds: Mapping[str, Kind], gateways: int, rate: float, seconds: float, cores: int, seed: int) -> Figures:
    draw, at, jobs = random.Random(seed), 0.0, list[Job]()
    stations = [(Station(), Station()) for _ in range(gateways)]
    names, weights = list(kinds), [kind.share for kind in kinds.values()]
    for number in itertools.count():
        at += draw.expovariate(rate)
        if at > seconds:
            break
        loop, threads = stations[number % gateways]
        kind = kinds[draw.choices(names, weights)[0]]
        first = (loop, kind.loop_s / 2)
        between = [(threads, kind.threads_s)] if kind.threads_s else []
        jobs.append(Job(at, iter([first, *between, (None, kind.elsewhere_s), (loop, kind.loop_s / 2)])))
    Simulation(cores).run(jobs)
    span = seconds * gateways
    return Figures(
        sum(loop.worked for loop, _ in stations) / span,
        sum(threads.worked for _, threads in stations) / span,
        1e3 * quantile([job.took for job in jobs], 0.95),
    )


def predict(kinds: Mapping[str, Kind], costs: Costs, gateways: int, rate: float) -> Figures:
    """Return the figures of the plan: each gateway by itself, on cores of its own.

    The p95 is the time that 95 % of the answers do not exceed without a queue, plus both waits that 95 % do not
    exceed. That is more than the p95 of the sum.
    """
    demand = Demand(rate, 0.4, 1e5, semantic_share=0.5, stream_share=0.0, peak_to_mean=1.0, index="faiss")
    work = work_per_request(replace(demand, rps=rate), costs, "faiss")
    each = rate / gateways
    waits = wait_quantile_s(each, work.loop, 0.95, work.loop_replication)
    waits += wait_quantile_s(each, work.threads, 0.95, work.threads_replication)
    unqueued = max(kind.loop_s + kind.threads_s + kind.elsewhere_s for kind in kinds.values() if kind.share > 0.05)
    return Figures(each * work.loop.mean_s, each * work.threads.mean_s, 1e3 * (unqueued + waits))


def quantile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


class RealGateways:
    """Gateways on one store, asked in turn."""

    def __init__(self, gateways: Sequence[GatewayProcess]) -> None:
        self.gateways = gateways
        self.clients = [Clients(at.port) for at in gateways]
        self.questions = Questions(1, 1)

    async def ask(self, kind: str, number: int, started: float) -> Observation:
        text = {"exact": QUESTION, "semantic": other_case(self.questions.draw), "miss": self.questions.new_question()}[
            kind
        ]
        return await self.clients[number % len(self.clients)].ask(text, started, "missing" if kind == "miss" else "m")

    async def lone_latencies(self, count: int) -> dict[str, float]:
        """Return medians of answers one after the other, when everything is warm."""
        for number in range(4 * len(self.gateways)):
            await self.ask("exact", number, 0.0)
        await asyncio.sleep(1)  # for all of them to have it
        took: dict[str, list[float]] = {kind: [] for kind in SHARES}
        for number in range(count):
            for kind, seen in took.items():
                seen.append((await self.ask(kind, number, 0.0)).took)
        return {kind: statistics.median(seen) for kind, seen in took.items()}

    def cpu_seconds_so_far(self) -> tuple[float, float, float]:
        """Return the seconds of event loops, of threads, and of waiting for a processor, over all gateways."""
        loops = sum(loop_seconds(at.process.pid) for at in self.gateways)
        threads = sum(cpu_seconds(at.process.pid) for at in self.gateways) - loops
        return loops, threads, sum(starved_seconds(at.process.pid) for at in self.gateways)

    async def idle_load(self, seconds: float) -> float:
        """Return the share of one core that each gateway takes without requests."""
        loops, threads, _ = self.cpu_seconds_so_far()
        await asyncio.sleep(seconds)
        later = self.cpu_seconds_so_far()
        return (later[0] - loops + later[1] - threads) / seconds / len(self.gateways)

    async def run_load(
        self, rate: float, seconds: float, expected: Figures, idle: float, seed: int
    ) -> tuple[Figures, float]:
        """Hold the load, and return the figures and the lateness of the requests (95 %, ms)."""
        draw, due, late = random.Random(seed), 0.0, list[float]()
        tasks = list[asyncio.Task[Observation]]()
        before, started = self.cpu_seconds_so_far(), time.perf_counter()
        while due < seconds:
            await asyncio.sleep(max(0.0, started + due - time.perf_counter()))
            late.append(time.perf_counter() - started - due)
            kind = draw.choices(list(SHARES), list(SHARES.values()))[0]
            tasks.append(asyncio.create_task(self.ask(kind, len(tasks), started)))
            due += draw.expovariate(rate)
        seen = await asyncio.gather(*tasks)
        if failed := [one for one in seen if one.status != 200]:
            print(f"{len(failed)} of {len(seen)} were not answered: {failed[0]}", file=sys.stderr)
        span = (time.perf_counter() - started) * len(self.gateways)
        loops, threads, starved = ((b - a) / span for a, b in zip(before, self.cpu_seconds_so_far(), strict=True))
        # The rate that was drawn and held, not the one that was wished for.
        held = len(seen) * len(self.gateways) / span / rate
        costs = (loops + threads - idle) / ((expected.loop + expected.threads) * held)
        p95 = 1e3 * quantile([one.took for one in seen], 0.95)
        return Figures(loops, threads, p95, costs, starved / (loops + threads)), 1e3 * quantile(late, 0.95)


def line(*figures: Figures) -> str:
    shown = "".join(f"{100 * f.loop:>7.1f}{100 * f.threads:>7.1f}{f.p95_ms:>8.1f}  " for f in figures)
    seen = figures[-1]
    return f"{shown}{seen.costs:>6.2f}{100 * seen.starved:>9.0f}{'*' if seen.starved > STARVED else ' '}"


async def compare(count: int, arguments: argparse.Namespace, upstream: int, costs: Costs) -> list[float]:
    ratios = list[float]()
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(valkey())
        given = {"upstream": upstream, "embedder": arguments.embedder, "store": store, "front": "1B"}
        real = RealGateways([stack.enter_context(gateway_of(CONFIG, POLICY, **given)) for _ in range(count)])
        alone = await real.lone_latencies(30)
        kinds, idle = kinds_of(costs, alone), await real.idle_load(3.0)
        print(f"{count:>8}{'':>7}  {100 * idle:.1f} % of a core each while nobody asks", flush=True)
        for rate in arguments.rates:
            formula = predict(kinds, costs, count, rate)
            model = simulate(kinds, count, rate, 20 * arguments.seconds, os.cpu_count() or 1, seed=1)
            seen, late = await real.run_load(rate, arguments.seconds, formula, idle, seed=2)
            ratios.append(seen.costs)
            print(f"{count:>8}{rate:>7.0f}  {line(formula, model, seen)}{late:>8.1f}", flush=True)
    return ratios


async def compare_all(arguments: argparse.Namespace) -> None:
    costs, upstream = load_costs(arguments.costs), free_port()
    print(f"{'':>17}{'formula':^24}{'simulation':^24}{'measured':^24}")
    columns = f"{'loop %':>7}{'thr. %':>7}{'p95 ms':>8}  "
    print(f"{'gateways':>8}{'rate':>7}  {3 * columns}{'costs':>6}{'starved %':>10}{'late ms':>8}")
    ratios = list[float]()
    with server(["bench.servers", "upstream", str(upstream)], upstream):
        for count in arguments.gateways:
            ratios += await compare(count, arguments, upstream, costs)
    print(
        f"the work of a request was {min(ratios):.2f} to {max(ratios):.2f} times what costs.yaml says of it, median "
        f"{statistics.median(ratios):.2f}; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-capacity", description=__doc__)
    parser.add_argument("--gateways", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rates", type=float, nargs="+", default=[20.0, 40.0, 80.0], help="of all gateways together")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--embedder", default="onnx")
    parser.add_argument("--costs", type=Path, help="a file of unit costs")
    asyncio.run(compare_all(parser.parse_args()))


if __name__ == "__main__":
    main()
