"""Measures 3 and 10 times as many requests as a backend can serve, with real processes and sockets.

Arrivals are Poisson in an open loop. The backend has few workers, its own queue, and lognormal service times.

`make bench-overload` runs it. `--workers`, `--mean`, `--sigma` and `--seconds` change the backend; `--adaptive off`
compares without the adaptive limit.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import random
import re
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import uvloop

from bench.gateways import EXACT_CACHE, free_port, gateway_of, server
from bench.process import rss_mb
from bench.protocols import BODY

CONFIG = """
version: 1
server: {{listen: 127.0.0.1:{port}, admin: 127.0.0.1:{admin}}}
embedder: {{adapter: hash}}
backends:
  main: {{adapter: openai, url: http://127.0.0.1:{upstream}/v1, adaptive: {adaptive}}}
"""
KNOWN = "What is served from the cache?"
HITS_PER_SECOND = 10.0
CALM = 0.8  # of the capacity: what latencies are compared with
PATIENCE_S = 20.0
MARKS = {"goodput": 0.9, "latency": 2.0, "reject_s": 0.05, "recovery_s": 60.0}


async def stub(port: int, workers: int, mean_s: float, sigma: float) -> None:
    """Run an endpoint that works on that many calls at once; the others queue."""
    draw, places, body = random.Random(5), asyncio.Semaphore(workers), BODY
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                sent = (await reader.readuntil(b"\r\n\r\n")).lower()
                at = sent.index(b"content-length:")
                await reader.readexactly(int(sent[at + 15 :].split(b"\r\n", 1)[0]))
                async with places:
                    await asyncio.sleep(draw.lognormvariate(math.log(mean_s) - sigma**2 / 2, sigma))
                writer.write(head + body)
                await writer.drain()
        writer.close()

    await (await asyncio.start_server(answer, "127.0.0.1", port, backlog=4096)).serve_forever()


@dataclass(frozen=True, slots=True)
class Observation:
    """One answer. Seconds from the start of the phase, and from the sending of the request."""

    at: float
    took: float
    status: int  # 0: none
    retry_after: bool


class Clients:
    """Connections that are kept open; a request takes a free one or opens another."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, question: str, started: float, model: str = "m") -> Observation:
        sent = time.perf_counter()
        try:
            async with asyncio.timeout(PATIENCE_S):
                status, retry_after = await self._exchange(question, model)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            status, retry_after = 0, False
        return Observation(sent - started, time.perf_counter() - sent, status, retry_after)

    async def _exchange(self, question: str, model: str) -> tuple[int, bool]:
        opened = self._free.pop() if self._free else await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = opened
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": question}]}).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            assert length is not None, head
            await reader.readexactly(int(length[1]))
        except BaseException:
            writer.close()
            raise
        self._free.append(opened)
        return int(head[9:12]), b"retry-after:" in head.lower()


@dataclass
class Phase:
    """The results of a load held for a while."""

    name: str
    load: float  # of the capacity
    seconds: float
    asked: list[Observation] = field(default_factory=list)
    hits: list[Observation] = field(default_factory=list)
    shed: Counter[str] = field(default_factory=Counter)
    limit: float = 0.0
    rss: float = 0.0

    @property
    def answered(self) -> list[Observation]:
        return [seen for seen in self.asked if seen.status == 200]

    @property
    def rejects(self) -> list[Observation]:
        return [seen for seen in self.asked if seen.status in (429, 503)]

    @property
    def goodput(self) -> float:
        return len(self.answered) / self.seconds


def quantile(seen: Sequence[Observation], q: float) -> float:
    took = sorted(one.took for one in seen)
    return took[min(len(took) - 1, int(q * len(took)))] if took else math.nan


async def run_load(phase: Phase, clients: Clients, rate: float, draw: random.Random) -> None:
    """Send `rate` requests a second, whatever comes back, with hits beside them, and wait for the last answer."""
    started = time.perf_counter()
    tasks: dict[asyncio.Task[Observation], bool] = {}
    due, due_hit = 0.0, 0.0
    while min(due, due_hit) < phase.seconds:
        hit = due_hit < due
        await asyncio.sleep(started + min(due, due_hit) - time.perf_counter())
        question = KNOWN if hit else f"question {draw.getrandbits(60):x}"
        tasks[asyncio.create_task(clients.ask(question, started))] = hit
        if hit:
            due_hit += 1 / HITS_PER_SECOND
        else:
            due += draw.expovariate(rate)
    for task, hit in tasks.items():
        (phase.hits if hit else phase.asked).append(await task)


def scrape(admin: int) -> tuple[Counter[str], float]:
    """Return the refusals by reason since the start, and the backend's limit now."""
    with urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics") as response:
        text = response.read().decode()
    shed = Counter({m[1]: int(float(m[2])) for m in re.finditer(r'nearhit_shed_total\{reason="(.+?)"\} (\S+)', text)})
    limit = re.search(r"nearhit_backend_limit\{.*?\} (\S+)", text)
    return shed, float(limit[1]) if limit else math.nan


@contextlib.contextmanager
def gateway(upstream: int, adaptive: str) -> Iterator[tuple[int, int, int]]:
    """Run a gateway, and yield its process id, port and admin port."""
    with gateway_of(CONFIG, EXACT_CACHE, upstream=upstream, adaptive=adaptive) as it:
        yield it.process.pid, it.port, it.admin


async def measure(options: argparse.Namespace) -> list[Phase]:
    capacity, upstream, draw = options.workers / options.mean, free_port(), random.Random(3)
    plan = [("warm", CALM, 8.0), ("calm", CALM, options.seconds), ("1x", 1.0, options.seconds)]
    plan += [(name, load, s) for load in (3.0, 10.0) for name, load, s in
             ((f"{load:g}x", load, options.seconds), (f"after {load:g}x", CALM, 10.0))]  # fmt: skip
    phases = [Phase(*planned) for planned in plan]
    command = ["bench.overload", "stub", str(upstream), str(options.workers), str(options.mean), str(options.sigma)]
    with server(command, upstream), gateway(upstream, options.adaptive) as (pid, port, admin):
        clients, before = Clients(port), Counter[str]()
        await clients.ask(KNOWN, 0.0)
        for phase in phases:
            await run_load(phase, clients, phase.load * capacity, draw)
            shed, phase.limit = scrape(admin)
            phase.shed, before, phase.rss = shed - before, shed, rss_mb(pid)
            print(f"{phase.name} done", file=sys.stderr)
    return phases


def recovery_s(after: Phase, calm: Phase) -> float:
    """Return the seconds until none is refused and half are answered about as soon as in the calm."""
    for second in range(int(after.seconds)):
        asked = [seen for seen in after.asked if second <= seen.at < second + 1]
        if all(s.status == 200 for s in asked) and quantile(asked, 0.5) <= 1.5 * quantile(calm.asked, 0.5):
            return float(second)
    return math.inf


def table(phases: Sequence[Phase]) -> Iterator[str]:
    columns = ("asked/s", "good/s", "p50 ms", "p99 ms", "rejects", "p99 ms", "max ms", "hits p99", "limit", "RSS MB")
    yield f"{'':<10}" + "".join(f"{column:>9}" for column in columns) + "  refused"
    for phase in phases:
        figures = (
            f"{len(phase.asked) / phase.seconds:.0f}", f"{phase.goodput:.1f}",
            f"{1e3 * quantile(phase.answered, 0.5):.0f}", f"{1e3 * quantile(phase.answered, 0.99):.0f}",
            len(phase.rejects), f"{1e3 * quantile(phase.rejects, 0.99):.1f}", f"{1e3 * quantile(phase.rejects, 1):.1f}",
            f"{1e3 * quantile(phase.hits, 0.99):.1f}", f"{phase.limit:.0f}", f"{phase.rss:.0f}",
        )  # fmt: skip
        shed = ", ".join(f"{reason} {count}" for reason, count in sorted(phase.shed.items()))
        yield f"{phase.name:<10}" + "".join(f"{figure:>9}" for figure in figures) + f"  {shed}"


def verdicts(phases: Sequence[Phase]) -> Iterator[tuple[str, float, bool]]:
    """Yield each mark, the measured figure, and whether it holds."""
    by = {phase.name: phase for phase in phases}
    calm, peak = by["calm"], max(phase.goodput for phase in phases)
    for name in ("3x", "10x"):
        phase, after = by[name], by[f"after {name}"]
        good, slower = phase.goodput / peak, quantile(phase.answered, 0.99) / quantile(calm.answered, 0.99)
        reject, told = quantile(phase.rejects, 0.99), sum(seen.retry_after for seen in phase.rejects)
        yield f"{name}: goodput / peak >= 0.9", good, good >= MARKS["goodput"]
        yield f"{name}: p99 of admitted / p99 at {CALM:g}x <= 2", slower, slower <= MARKS["latency"]
        yield f"{name}: p99 of rejects < 50 ms", 1e3 * reject, reject < MARKS["reject_s"]
        yield f"{name}: share of rejects with Retry-After = 1", told / len(phase.rejects), told == len(phase.rejects)
        lost = len(phase.asked) - len(phase.answered) - len(phase.rejects)
        yield f"{name}: neither answered nor refused = 0", lost, lost == 0
        failed = sum(seen.status != 200 for seen in phase.hits)
        yield f"{name}: hits not served = 0", failed, failed == 0
        back = recovery_s(after, calm)
        yield f"{name}: seconds to recover <= 60", back, back <= MARKS["recovery_s"]
    grown = by["10x"].rss - by["calm"].rss
    yield "memory at 10x less at calm, MB <= 50", grown, grown <= 50


def main(options: argparse.Namespace) -> None:
    phases = uvloop.run(measure(options))
    print(f"\n{options.workers} workers, {1e3 * options.mean:.0f} ms lognormal (sigma {options.sigma}): "
          f"{options.workers / options.mean:.0f} a second; adaptive {options.adaptive}\n")  # fmt: skip
    print("\n".join(table(phases)), end="\n\n")
    for mark, value, met in verdicts(phases):
        print(f"{'met ' if met else 'MISSED':<7}{mark:<52}{value:>9.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["stub"]:
        uvloop.run(stub(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5])))
    else:
        parser = argparse.ArgumentParser(prog="python -m bench.overload", description=__doc__)
        parser.add_argument("--workers", type=int, default=10, help="calls that the backend works on at once")
        parser.add_argument("--mean", type=float, default=0.4, help="seconds that it works on one")
        parser.add_argument("--sigma", type=float, default=0.5, help="their spread, of the logarithm")
        parser.add_argument("--seconds", type=float, default=20.0, help="of each load")
        parser.add_argument("--adaptive", choices=("on", "off"), default="on")
        main(parser.parse_args())
