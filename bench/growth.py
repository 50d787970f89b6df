"""Measures how the cost of a request grows: with its body, connections, stored entries, and routes of the policy.

`make bench-growth` runs a real gateway (several for routes and entries), a bare aiohttp server and a bare proxy. It
measures p50 and the CPU of the gateway's process, as a ratio to the bare server at the same point in the same round. It
writes JSON, and draws it if `--tools` has matplotlib.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from redis import Redis

from bench.fixtures import CONFIG, POLICY, body, other_case
from bench.gateways import EXACT_CACHE, BareServers, GatewayProcess, gateway_of, start_bare_servers
from bench.index_start import STORE_BYTES, fill_store, get
from bench.load import Load, request_bytes, run
from bench.process import cpu_seconds, rss_mb, starved_seconds
from bench.protocols import QUESTION
from bench.questions import Questions
from bench.rows import FIXED, PROXY, STORED
from gateway.adapters.redis.embedded_valkey import EmbeddedValkey
from gateway.adapters.redis.keyspace import ONE_SERVER

SIZES = (1024, 4096, 16384, 65536, 262144, 1000000)
CONNECTIONS = (1, 4, 16, 64, 256, 1000)
ROUTES = (1, 4, 16, 64)
ENTRIES = (0, 10_000, 100_000, 1_000_000)
SETTLE_S, CALM = 300.0, 0.25  # of a processor wanted: now and then all entries are compared with the store's
MOST_BYTES = 64 * 2**20  # of bodies at a point and round
EXACT = EXACT_CACHE.replace(
    "routes:\n", "routes:\n  - {name: through, match: {model: uncached}, route: {backend: main}}\n"
)
WIDE = CONFIG.replace("/v1}}", "/v1, max_concurrency: 2048, adaptive: off}}").replace(
    "admin: 127.0.0.1:{admin}", "admin: 127.0.0.1:{admin}, max_inflight: 4096"
)
ON_DISK = f"""data_dir: {{folder}}
index: {{{{max_entries: {2 * ENTRIES[-1]}}}}}
store: {{{{max_memory: {STORE_BYTES}, max_entries: {2 * ENTRIES[-1]}, front_size: 1B, timeout: 5s}}}}
"""


@dataclass(frozen=True, slots=True)
class Point:
    """Medians of the rounds at `x` (bytes, connections, entries, routes); the ratio is to the bare server at it."""

    curve: str
    row: str
    x: int
    cpu_us: float
    x_fixed: float
    x_fixed_range: tuple[float, float]
    p50_ms: float


@dataclass
class Growth:
    """Loads by curve, row and point."""

    requests: int
    rounds: int
    loads: dict[tuple[str, str, int], list[Load]] = field(default_factory=dict)
    memory: dict[int, float] = field(default_factory=dict)  # MB of a gateway with so many entries
    draw: random.Random = field(default_factory=lambda: random.Random(9))

    async def add(
        self,
        curve: str,
        row: str,
        x: int,
        at: tuple[int, int],
        bodies: Sequence[bytes],
        connections: int,
        expect: str = "",
    ) -> None:
        """Run a load and keep it. `at`: port and process."""
        asked = [request_bytes(each) for each in bodies]
        load = await run(*at, asked, connections=connections, expect=expect.encode())
        self.loads.setdefault((curve, row, x), []).append(load)

    def points(self) -> Iterator[Point]:
        for (curve, row, x), loads in self.loads.items():
            floors = self.loads[curve, FIXED, x]
            ratios = [load.cpu_us / floor.cpu_us for load, floor in zip(loads, floors, strict=True)]
            yield Point(
                curve=curve,
                row=row,
                x=x,
                cpu_us=statistics.median(load.cpu_us for load in loads),
                x_fixed=statistics.median(ratios),
                x_fixed_range=(min(ratios), max(ratios)),
                p50_ms=statistics.median(load.p50_ms for load in loads),
            )


def address_of(it: GatewayProcess) -> tuple[int, int]:
    return it.port, it.process.pid


def question_of_size(size: int, model: str = "bench", **fields: object) -> bytes:
    return body(QUESTION + " more" * ((size - 900) // 5), model, **fields)


async def bodies(growth: Growth, there: BareServers) -> None:
    """Measure bodies of each size at 8 connections.

    The front knows requests by their bytes; a request that it has not seen is parsed.
    """
    note = partial(growth.add, "body")
    with gateway_of(WIDE, EXACT, embedder="hash", upstream=there.upstream, more="") as it:
        for size in SIZES:
            await run(*address_of(it), [request_bytes(question_of_size(size))], connections=1)
        for _ in range(growth.rounds):
            for size in SIZES:
                count = max(16, min(growth.requests, MOST_BYTES // size))
                same, uncached = [question_of_size(size)] * count, [question_of_size(size, "uncached")] * count
                fresh = [question_of_size(size, metadata={"n": growth.draw.getrandbits(60)}) for _ in range(count // 4)]
                await note(FIXED, size, there.fixed, same, 8)
                await note(PROXY, size, there.proxy, same, 8)
                await note("exact hit", size, address_of(it), same, 8, "detail=exact")
                await note("exact hit, bytes not seen before", size, address_of(it), fresh, 8, "detail=exact")
                await note("pass-through miss", size, address_of(it), uncached, 8, "detail=policy")


async def connections(growth: Growth, there: BareServers) -> None:
    note = partial(growth.add, "connections")
    with gateway_of(WIDE, EXACT, embedder="hash", upstream=there.upstream, more="") as it:
        await run(*address_of(it), [request_bytes(body(QUESTION))], connections=1)
        for _ in range(growth.rounds):
            for crowd in CONNECTIONS:
                count = max(growth.requests, 3 * crowd)
                same, uncached = [body(QUESTION)] * count, [body(QUESTION, "uncached")] * count
                await note(FIXED, crowd, there.fixed, same, crowd)
                await note(PROXY, crowd, there.proxy, same, crowd)
                await note("exact hit", crowd, address_of(it), same, crowd, "detail=exact")
                await growth.add(
                    "connections", "pass-through miss", crowd, address_of(it), uncached, crowd, "detail=policy"
                )


def policy_with_routes(count: int) -> str:
    """Return a policy with `count` routes, of which the last one matches."""
    rules = [
        f'  - {{name: r{i}, match: {{path: /v1/chat/completions, model: "other-{i}-*", headers: {{x-app: app{i}}}}}, '
        "cache: {exact: {ttl: 1h}}, route: {backend: main}}\n"
        for i in range(count - 1)
    ]
    return EXACT.replace("  - name: default", "".join(rules) + "  - name: default")


async def routes(growth: Growth, there: BareServers) -> None:
    note = partial(growth.add, "routes")
    with ExitStack() as stack:
        places = {}
        for count in ROUTES:
            it = stack.enter_context(
                gateway_of(CONFIG, policy_with_routes(count), embedder="hash", upstream=there.upstream, more="")
            )
            places[count] = address_of(it)
            await run(*places[count], [request_bytes(body(QUESTION))], connections=1)
        for _ in range(growth.rounds):
            for count, at in places.items():
                same = [body(QUESTION)] * growth.requests
                some = growth.requests // 4
                fresh = [body(QUESTION, metadata={"n": growth.draw.getrandbits(60)}) for _ in range(some)]
                await note(FIXED, count, there.fixed, same, 8)
                await note("exact hit", count, at, same, 8, "detail=exact")
                await note("exact hit, bytes not seen before", count, at, fresh, 8, "detail=exact")


async def entries(growth: Growth, there: BareServers, counts: Sequence[int]) -> None:
    """Measure with that many entries in the scope of the questions; the front has room for none."""
    note = partial(growth.add, "entries")
    for count in counts:
        with tempfile.TemporaryDirectory() as folder:
            more = ON_DISK.format(folder=folder)
            given: dict[str, Any] = {"embedder": "hash", "upstream": there.upstream, "more": more}
            with gateway_of(CONFIG, POLICY, **given) as it:
                await run(*address_of(it), [request_bytes(each) for each in (body(QUESTION), *STORED)], connections=1)
            if count:
                stored = Questions(7).sample(count)
                await fill_store(Path(folder), stored, await scope_in(Path(folder)))
                del stored
            with gateway_of(CONFIG, POLICY, **given) as it:
                while not get(f"http://127.0.0.1:{it.port}/readyz").get("index_ready"):
                    await asyncio.sleep(0.1)
                await wait_until_settled(it.process.pid)
                growth.memory[count] = rss_mb(it.process.pid)
                for _ in range(growth.rounds):
                    exact = [STORED[i % len(STORED)] for i in range(growth.requests)]
                    alike = [body(other_case(growth.draw)) for _ in range(growth.requests // 2)]
                    await note(FIXED, count, there.fixed, exact, 8)
                    await growth.add(
                        "entries", "exact hit, from the store", count, address_of(it), exact, 8, "detail=exact"
                    )
                    await note("semantic hit (hash)", count, address_of(it), alike, 8, "detail=semantic")


async def wait_until_settled(pid: int) -> None:
    """Wait for the work after a start: large scopes get another form of their index."""
    until, calm = time.monotonic() + SETTLE_S, 0
    while calm < 3 and time.monotonic() < until:
        before = cpu_seconds(pid) + starved_seconds(pid)
        await asyncio.sleep(1)
        calm = calm + 1 if cpu_seconds(pid) + starved_seconds(pid) - before < CALM else 0


async def scope_in(data_dir: Path) -> str:
    """Return the scope of the entries that a gateway has left there."""
    store = await EmbeddedValkey.start(data_dir, max_memory=STORE_BYTES)
    try:
        with Redis.from_url(store.url) as client:
            name = next(iter(client.scan_iter(match=ONE_SERVER.entry("*"))))
            found: bytes = client.hget(name, "scope")
            return found.decode()
    finally:
        await store.stop()


def table(growth: Growth) -> Iterator[str]:
    yield f"{'':<14}{'at':>9}  {'':<34}{'CPU us':>9}{'x fixed':>9}{'(range)':>13}{'p50 ms':>9}"
    for point in growth.points():
        spread = "{:.2f}-{:.2f}".format(*point.x_fixed_range)
        yield (
            f"{point.curve:<14}{point.x:>9,}  {point.row:<34}{point.cpu_us:>9.0f}{point.x_fixed:>9.2f}"
            f"{spread:>13}{point.p50_ms:>9.3f}"
        )
    for count, megabytes in growth.memory.items():
        yield f"memory of a gateway with {count:,} entries: {megabytes:.0f} MB"


async def measure(growth: Growth, curves: Sequence[str], counts: Sequence[int]) -> None:
    with ExitStack() as stack:
        there = start_bare_servers(stack)
        for name, work in {"body": bodies, "connections": connections, "routes": routes}.items():
            if name in curves:
                await work(growth, there)
        if "entries" in curves:
            await entries(growth, there, counts)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-growth", description=__doc__)
    parser.add_argument("--requests", type=int, default=1000, help="a point and round; of large bodies fewer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--curve", action="append", choices=("body", "connections", "routes", "entries"), default=[])
    parser.add_argument("--entries", type=int, action="append", help=f"instead of {ENTRIES}; repeatable")
    parser.add_argument("--json", type=Path, default=Path("build/growth.json"))
    parser.add_argument("--picture", type=Path, help="draw it here")
    parser.add_argument("--tools", default=sys.executable, help="Python with matplotlib")
    given = parser.parse_args()
    growth, began = Growth(given.requests, given.rounds), time.perf_counter()
    curves = given.curve or ("body", "connections", "routes", "entries")
    asyncio.run(measure(growth, curves, given.entries or ENTRIES))
    print("\n".join(table(growth)))
    print(f"({time.perf_counter() - began:.0f} s)")
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(
        json.dumps({"points": list(map(asdict, growth.points())), "memory_mb": growth.memory}, indent=1)
    )
    if given.picture:
        subprocess.run([given.tools, "-m", "bench.growth_picture", str(given.json), str(given.picture)], check=True)


if __name__ == "__main__":
    main()
