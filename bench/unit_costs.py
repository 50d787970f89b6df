"""Measures the unit costs of `nearhit capacity`.

They are the bytes of an entry, and the CPU of a gateway and of its store. The CPU is that of each kind of request, each
event of a stream, and each change of another gateway. `make bench-unit-costs` runs it. Copy the figures to
gateway/features/capacity/costs.yaml, with the date and the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, fields
from functools import partial

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from bench.coalescing import valkey
from bench.fixtures import body, other_case
from bench.gateways import GatewayProcess, free_port, gateway_of
from bench.load import request_bytes, run
from bench.process import cpu_seconds, loop_seconds, rss_mb
from bench.protocols import BODY, QUESTION
from bench.replicas import WORDS, write
from bench.servers import WHOLE
from gateway.cache.model_factory import build_encoder
from gateway.config.schema import EmbedderConfig

CONFIG = """
version: 1
server: {{listen: 127.0.0.1:{port}, admin: 127.0.0.1:{admin}}}
embedder: {{adapter: {embedder}}}
store: {{url: "{store}", timeout: 5s, front_size: {front}}}
backends:
  main: {{adapter: openai, url: http://127.0.0.1:{upstream}/v1}}
"""
# To misses everything is too unlike: the neighbours are looked at and refused.
POLICY = """
version: 1
routes:
  - name: missing
    match: {model: missing}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.9999}}
    route: {backend: main}
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.9}}
    route: {backend: main}
"""
EVENT = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1700000000,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'
)
LAST = EVENT.replace(b'{"content":" word"}', b"{}").replace(b"null}]", b'"stop"}]')
SHORT, LONG = 20, 220  # events of a stream


def connect(url: str) -> closing[redis.Redis]:
    """Connect to a store that may still be starting."""
    return closing(redis.Redis.from_url(url, retry=Retry(ConstantBackoff(0.05), 200)))


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds, and bytes, so far: of the gateway's event loop, its other threads, and the store."""

    loop: float
    threads: float
    store: float
    sent: float  # by the store
    memory: float  # of the store

    def since(self, before: Usage, count: int) -> Usage:
        """Return the difference of each figure, divided by `count`."""
        return Usage(*((getattr(self, f.name) - getattr(before, f.name)) / count for f in fields(Usage)))


def usage_so_far(pid: int | None, store: redis.Redis) -> Usage:
    """Return the usage so far. `pid`: of the gateway; None: there is none."""
    told = store.info()
    loop = 0.0 if pid is None else loop_seconds(pid)
    threads = 0.0 if pid is None else cpu_seconds(pid) - loop
    cpu = told["used_cpu_user"] + told["used_cpu_sys"]
    return Usage(loop, threads, cpu, told["total_net_output_bytes"], told["used_memory"])


@asynccontextmanager
async def endpoint() -> AsyncIterator[int]:
    """Run an endpoint that answers at once. A stream has `max_tokens` events, 2 ms apart, one write each."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            while head := await head_of(reader):
                asked = json.loads(await reader.readexactly(length_of(head)))
                if not asked.get("stream"):
                    writer.write(WHOLE)
                    continue
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
                )
                for event in [EVENT] * asked["max_tokens"] + [LAST, b"data: [DONE]\n\n"]:
                    writer.write(b"%x\r\n%s\r\n" % (len(event), event))
                    await asyncio.sleep(0.002)
                writer.write(b"0\r\n\r\n")

    port = free_port()
    async with await asyncio.start_server(answer, "127.0.0.1", port):
        yield port


async def head_of(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
        return b""  # cancelled: the bench is over, and 3.11 would print a traceback of each connection


def length_of(head: bytes) -> int:
    lowered = head.lower()
    at = lowered.index(b"content-length:")
    return int(lowered[at + 15 :].split(b"\r\n", 1)[0])


class Bench:
    """Medians over the rounds, by name."""

    def __init__(self, requests: int, rounds: int) -> None:
        self.requests, self.rounds = requests, rounds
        self.draw = random.Random(11)
        self.rows: dict[str, Usage] = {}
        self.memory_mb = 0.0

    def new_question(self) -> str:
        """Return a question as long as the known one, some 25 tokens."""
        words = " ".join(self.draw.choices(WORDS, k=14))
        return f"How do I {words} number {self.draw.randrange(10**9)}?"

    def new_bytes(self) -> bytes:
        """Return the known question in bytes that the front does not know."""
        return body(QUESTION, metadata={"n": self.draw.getrandbits(60)})

    async def row(
        self, name: str, at: GatewayProcess, store: redis.Redis, made: Callable[[], bytes], expect: bytes, part: int = 1
    ) -> None:
        count, rounds = self.requests // part, list[Usage]()
        for _ in range(self.rounds + 1):
            requests = [request_bytes(made()) for _ in range(count)]
            before = usage_so_far(at.process.pid, store)
            await run(at.port, at.process.pid, requests, connections=8, expect=expect)
            rounds.append(usage_so_far(at.process.pid, store).since(before, count))
        self.record(name, rounds[1:])  # the first warms up

    def record(self, name: str, rounds: list[Usage]) -> None:
        self.rows[name] = Usage(*(statistics.median(getattr(r, f.name) for r in rounds) for f in fields(Usage)))
        print(self.line(name), flush=True)

    def line(self, name: str) -> str:
        row = self.rows[name]
        return (
            f"{name:<32}{1e6 * row.loop:>9.0f}{1e6 * row.threads:>9.0f}{1e6 * row.store:>9.0f}"
            f"{row.sent:>9.0f}{row.memory:>9.0f}"
        )

    async def requests_of(self, upstream: int, embedder: str, front: str) -> None:
        with valkey() as url, gateway_of(CONFIG, POLICY, upstream=upstream, embedder=embedder, store=url,
                                         front=front) as at, connect(url) as store:  # fmt: skip
            await run(at.port, at.process.pid, [request_bytes(body(QUESTION))], connections=1)
            if front == "1B":
                await self.row("exact hit, from the store", at, store, self.new_bytes, b"exact")
                words = (body(other_case(self.draw)) for _ in itertools.count())
                await self.row("semantic hit, from the store", at, store, lambda: next(words), b"semantic", 8)
                return
            await self.row("exact hit, same bytes", at, store, lambda: body(QUESTION), b"exact")
            await self.row("exact hit, other bytes", at, store, self.new_bytes, b"exact")
            await self.row("semantic hit", at, store, lambda: body(other_case(self.draw)), b"semantic", 8)
            await self.row("miss, stored", at, store, lambda: body(self.new_question(), "missing"), b"stored", 8)
            for events in (SHORT, LONG):
                made = self.streams(events)
                await self.row(f"miss, stream of {events} events", at, store, partial(next, made), b"", 20)
            self.memory_mb = rss_mb(at.process.pid)

    def streams(self, events: int) -> Iterator[bytes]:
        while True:
            yield body(self.new_question(), "missing", stream=True, max_tokens=events)

    def embedding(self) -> None:
        """Measure the encoder in one thread without waits for the interpreter: texts as long as the misses'."""
        encoder = build_encoder(EmbedderConfig(adapter="onnx", threads=1))
        rounds = list[Usage]()
        for _ in range(self.rounds + 1):
            texts = [self.new_question() for _ in range(self.requests // 8)]
            begun = time.thread_time()
            encoder.encode(texts)
            rounds.append(Usage(0.0, (time.thread_time() - begun) / len(texts), 0.0, 0.0, 0.0))
        self.record("embedding", rounds[1:])

    async def changes(self, upstream: int, rate: int, seconds: float) -> None:
        """Measure the cost of another gateway's writes, to the store and to a gateway that follows them."""
        with valkey() as url, connect(url) as store:
            before = usage_so_far(None, store)
            await write(url, rate, seconds)
            alone = usage_so_far(None, store).since(before, int(rate * seconds))
        with (
            valkey() as url,
            connect(url) as store,
            gateway_of(CONFIG, POLICY, upstream=upstream, embedder="hash", store=url, front="64MiB") as at,
        ):
            await asyncio.sleep(2)
            idle = usage_so_far(at.process.pid, store)
            await asyncio.sleep(seconds)
            rest = usage_so_far(at.process.pid, store).since(idle, 1)
            before = usage_so_far(at.process.pid, store)
            await write(url, rate, seconds)
            await asyncio.sleep(1)
            busy = usage_so_far(at.process.pid, store).since(before, 1)
        self.record("entry written by somebody else", [alone])
        count, share = int(rate * seconds), (seconds + 1) / seconds
        self.record(
            "change followed by a gateway",
            [
                Usage(
                    (busy.loop - rest.loop * share) / count,
                    (busy.threads - rest.threads * share) / count,
                    busy.store / count - alone.store - rest.store * share / count,
                    busy.sent / count - alone.sent - rest.sent * share / count,
                    0.0,
                )
            ],
        )


async def measure(arguments: argparse.Namespace) -> None:
    bench = Bench(arguments.requests, arguments.rounds)
    print(f"{'each':<32}{'loop us':>9}{'threads':>9}{'store us':>9}{'store B':>9}{'memory B':>9}")
    async with endpoint() as upstream:
        bench.embedding()
        await bench.requests_of(upstream, arguments.embedder, "64MiB")
        await bench.requests_of(upstream, arguments.embedder, "1B")
        await bench.changes(upstream, arguments.rate, 5.0)
    short, long = (bench.rows[f"miss, stream of {events} events"] for events in (SHORT, LONG))
    print(f"an event of a stream: {1e6 * (long.loop - short.loop) / (LONG - SHORT):.1f} us of the event loop")
    print(f"a gateway: {bench.memory_mb:.0f} MB with its models; an answer here has {len(BODY)} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-unit-costs", description=__doc__)
    parser.add_argument("--requests", type=int, default=1600, help="a row and round; of dear ones fewer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=int, default=500, help="entries a second that somebody else writes")
    parser.add_argument("--embedder", default="onnx")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
