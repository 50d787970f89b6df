"""Measures 1, 2 and 4 gateways on one store: their throughput, and how soon each one sees the changes of the others.

`make bench-replicas` runs it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import aiohttp
import numpy as np

from bench.coalescing import measure_burst, valkey
from bench.fixtures import body
from bench.gateways import free_port, gateway_of, server
from bench.load import request_bytes, run
from bench.process import children_of, rss_mb
from gateway.adapters.embedding.hashing import HashEncoder
from gateway.adapters.redis.client import connect
from gateway.adapters.redis.store import RedisStore
from gateway.adapters.system.clock import SystemClock
from gateway.entries import Entry
from gateway.features.replicas.change_log import ChangeLogWriter
from gateway.observability.metrics import LATENCY_BUCKETS, quantile_of

CONFIG = """
version: 1
server: {{listen: 127.0.0.1:{port}, admin: 127.0.0.1:{admin}, max_inflight: 4096, workers: {workers}}}
embedder: {{adapter: {embedder}}}
store: {{url: "{store}", timeout: 5s}}
backends:
  main: {{adapter: openai, url: http://127.0.0.1:{upstream}/v1}}
"""
POLICY = """
version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.9}}
    route: {backend: main}
"""
WORDS = [
    "password",
    "train",
    "Vienna",
    "invoice",
    "address",
    "roof",
    "solar",
    "phone",
    "garden",
    "parcel",
    "ticket",
    "seat",
]
DELAY = re.compile(r'nearhit_replication_delay_seconds_bucket\{le="([^"]+)"\} (\S+)')
INDEXED = re.compile(r'nearhit_cache_entries\{kind="index"\} (\S+)')


@dataclass(frozen=True, slots=True)
class Replica:
    pid: int
    port: int
    admin: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin}"


@contextlib.contextmanager
def replica(upstream: int, store: str, workers: int = 1, embedder: str = "hash") -> Iterator[Replica]:
    with gateway_of(CONFIG, POLICY, store=store, upstream=upstream, workers=workers, embedder=embedder) as it:
        yield Replica(it.process.pid, it.port, it.admin)


async def text(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(url) as response:
        return await response.text()


async def ask(session: aiohttp.ClientSession, at: Replica, question: str) -> str:
    headers = {"content-type": "application/json"}
    async with session.post(f"{at.url}/v1/chat/completions", data=body(question), headers=headers) as response:
        await response.read()
        return response.headers["Cache-Status"]


def traffic(count: int) -> list[str]:
    """Return repeated questions, word by word or in other words; the first ones are more frequent (Zipf)."""
    draw = random.Random(3)
    known = [f"{' '.join(draw.sample(WORDS, 6))} number {i}" for i in range(count // 4)]
    weights = [1 / (rank + 1) for rank in range(len(known))]
    forms = (str, str.upper, lambda question: f"{question}?", lambda question: f"{question}, please")
    return [draw.choice(forms)(question) for question in draw.choices(known, weights, k=count)]


async def hit_rate(session: aiohttp.ClientSession, replicas: Sequence[Replica], count: int) -> float:
    """Send the questions one after the other, each to the next gateway."""
    hits = 0
    for question, at in zip(traffic(count), itertools.cycle(replicas), strict=False):
        hits += "; hit" in await ask(session, at, question)
    return hits / count


async def throughput(replicas: Sequence[Replica], requests: int) -> tuple[float, float]:
    """Measure exact hits at all gateways at once. Return hits per second, and microseconds of CPU each."""
    bodies = [request_bytes(body("warm"))] * requests
    for at in replicas:
        await run(at.port, at.pid, bodies[:50], connections=2)
    begun = time.perf_counter()
    loads = await asyncio.gather(*(run(r.port, r.pid, bodies, connections=16, expect=b"exact") for r in replicas))
    return sum(load.requests for load in loads) / (time.perf_counter() - begun), max(load.cpu_us for load in loads)


def entry(number: int) -> Entry:
    now = time.time()
    return Entry(
        fingerprint=f"{number:064x}",
        scope=f"{number % 7:064x}",
        tenant="bench",
        route="default",
        model="m",
        operation="chat.completions",
        dialect="openai",
        question=f"question {number}",
        streamed=False,
        payload=(b"{}" * 200,),
        content_type="application/json",
        created=now,
        expires=now + 3600,
        backend="main",
        input_tokens=10,
        output_tokens=10,
        cost_dollars=0.0,
        upstream_s=0.1,
        tags=(),
    )


async def write(store: str, rate: int, seconds: float) -> float:
    """Write entries as another gateway would. Return the entries written per second."""
    encoder = HashEncoder()
    writer = RedisStore(
        connect(store),
        embedder=encoder.fingerprint,
        timeout_s=5.0,
        clock=SystemClock(),
        journal=ChangeLogWriter("bench", 200_000),
    )
    vectors = np.random.default_rng(1).standard_normal((256, encoder.dimension)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    begun, done, total = time.perf_counter(), 0, int(rate * seconds)
    while done < total:
        due = min(total, int((time.perf_counter() - begun) * rate) + 1)
        await asyncio.gather(*(writer.put(entry(i), vectors[i % 256]) for i in range(done, due)))
        done = due
        await asyncio.sleep(0.005)
    took = time.perf_counter() - begun
    await writer.close()
    return total / took


async def measure_changes(
    session: aiohttp.ClientSession, replicas: Sequence[Replica], store: str, rate: int, seconds: float
) -> str:
    before = [float(INDEXED.findall(await text(session, f"{r.admin_url}/metrics"))[0]) for r in replicas]
    counts = [await delays(session, at) for at in replicas]
    written = await write(store, rate, seconds)
    ended = time.perf_counter()
    for at, had in zip(replicas, before, strict=True):
        while float(INDEXED.findall(await text(session, f"{at.admin_url}/metrics"))[0]) < had + int(rate * seconds):
            if time.perf_counter() - ended > 60:
                raise SystemExit("an index has not followed within a minute")
            await asyncio.sleep(0.05)
    behind = time.perf_counter() - ended
    later = [await delays(session, at) for at in replicas]
    of_all = [sum(b - a for a, b in zip(*pair, strict=True)) for pair in zip(counts, later, strict=True)]
    assert all(of_all), "no gateway heard of a change"
    p50, p99 = (
        max(
            quantile_of([b - a for a, b in zip(*pair, strict=True)], LATENCY_BUCKETS, q) or 0.0
            for pair in zip(counts, later, strict=True)
        )
        for q in (0.5, 0.99)
    )
    return f"{written:>8.0f} {1e3 * p50:>8.0f} {1e3 * p99:>8.0f} {1e3 * behind:>10.0f}"


async def delays(session: aiohttp.ClientSession, at: Replica) -> list[int]:
    """Return counts by bucket, not cumulated."""
    cumulated = [int(float(count)) for _, count in DELAY.findall(await text(session, f"{at.admin_url}/metrics"))]
    if not cumulated:
        return [0] * (len(LATENCY_BUCKETS) + 1)
    return [b - a for a, b in itertools.pairwise([0, *cumulated])]


async def measure_purge(session: aiohttp.ClientSession, replicas: Sequence[Replica]) -> float:
    """Return the seconds from a purge at one gateway until the last one has stopped to serve the entry."""
    for at in replicas:
        await ask(session, at, "to be removed")
        assert "; hit" in await ask(session, at, "to be removed")
    begun = time.perf_counter()

    async def remove() -> None:
        async with session.post(f"{replicas[0].admin_url}/admin/cache/purge", json={"route": "default"}) as response:
            assert response.status == 200

    async def wait_until_gone(at: Replica) -> float:
        # Asked for with only-if-cached, so that nobody stores it anew.
        headers = {"content-type": "application/json", "cache-control": "only-if-cached"}
        while True:
            url = f"{at.url}/v1/chat/completions"
            async with session.post(url, data=body("to be removed"), headers=headers) as response:
                if response.status == 504:
                    return time.perf_counter() - begun

    removing = asyncio.create_task(remove())  # answered once the store has been swept, which may take seconds
    last = max(await asyncio.gather(*map(wait_until_gone, replicas)))
    await removing
    return last


async def measure(count: int, arguments: argparse.Namespace, upstream: int) -> str:
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(valkey())
        replicas = [stack.enter_context(replica(upstream, store)) for _ in range(count)]
        async with aiohttp.ClientSession() as session:
            rate = await hit_rate(session, replicas, arguments.questions)
            a_second, cpu_us = await throughput(replicas, arguments.requests)
            follows = await measure_changes(session, replicas, store, arguments.rate, arguments.seconds)
            removed = await measure_purge(session, replicas)
    line = await measure_burst(f"{count}", arguments.crowd, count, shared=True)
    calls = line.split()[1]
    return f"{count:>8} {a_second:>9.0f} {cpu_us:>7.0f} {100 * rate:>8.1f}{follows} {1e3 * removed:>8.0f} {calls:>8}"


async def measure_workers(count: int, arguments: argparse.Namespace, upstream: int) -> str:
    """Measure workers at one address: exact hits per second, then semantic ones, which embed; and memory."""
    with replica(upstream, "embedded", count, "onnx") as at:
        async with aiohttp.ClientSession() as session:
            while True:  # a supervisor listens before its workers do
                with contextlib.suppress(aiohttp.ClientError):
                    if "ok" in await text(session, f"{at.url}/healthz"):
                        break
                await asyncio.sleep(0.1)
            await ask(session, at, "How do I reset the password of my account?")
            await asyncio.sleep(3)  # for all of the others to have it
        exact = [request_bytes(body("How do I reset the password of my account?"))] * arguments.requests
        draw = random.Random(5)
        words = "How can I reset the password of my account"
        # Other texts with the same tokens, as the model is uncased: no memory of texts helps.
        texts = ("".join(c.upper() if draw.random() < 0.5 else c for c in words) for _ in itertools.count())
        semantic = [request_bytes(body(next(texts))) for _ in range(arguments.requests // 10)]
        await run(at.port, at.pid, exact[:200], connections=32)
        fast = await run(at.port, at.pid, exact, connections=32, expect=b"exact")
        close = await run(at.port, at.pid, semantic, connections=32, expect=b"semantic")
        pids = [at.pid] if count == 1 else [at.pid, *children_of(at.pid, b"gateway")]
        memory = sum(map(rss_mb, pids))
    return f"{count:>8} {fast.per_second:>9.0f} {close.per_second:>10.0f} {close.p50_ms:>9.1f} {memory:>8.0f}"


async def measure_all(arguments: argparse.Namespace) -> None:
    print(f"exact hits a second at all at once, and CPU of one; hits of {arguments.questions} questions in turn;")
    print(f"{arguments.rate} entries a second written by somebody else: ms until a change is in force, ms until the")
    print(f"indexes have the last; ms until a removal holds everywhere; calls of a crowd of {arguments.crowd} over all")
    columns = ("hits/s", "us", "hit %", "wrote/s", "p50", "p99", "last", "purge", "calls")
    widths = (9, 7, 8, 7, 8, 8, 10, 8, 8)
    print(f"{'gateways':>8} " + " ".join(f"{c:>{w}}" for c, w in zip(columns, widths, strict=True)))
    upstream = free_port()
    with server(["bench.servers", "upstream", str(upstream)], upstream):
        for count in arguments.gateways:
            print(await measure(count, arguments, upstream), flush=True)
        print("\nworkers behind one address, embedded store, the ONNX model in each, 32 connections")
        print(f"{'workers':>8} {'exact/s':>9} {'semantic/s':>10} {'p50 ms':>9} {'MB':>8}")
        for count in arguments.workers:
            print(await measure_workers(count, arguments, upstream), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-replicas", description=__doc__)
    parser.add_argument("--gateways", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--questions", type=int, default=2_000)
    parser.add_argument("--requests", type=int, default=10_000, help="exact hits for each gateway")
    parser.add_argument("--rate", type=int, default=1_000, help="entries a second")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--crowd", type=int, default=200)
    asyncio.run(measure_all(parser.parse_args()))


if __name__ == "__main__":
    main()
