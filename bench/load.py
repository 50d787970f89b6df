"""Generates a closed-loop load over keep-alive connections."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import statistics
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from bench.process import children, cpu_seconds


@dataclass(frozen=True, slots=True)
class Load:
    """Latencies are milliseconds, CPU microseconds a request."""

    requests: int
    cpu_us: float
    store_cpu_us: float
    p50_ms: float
    p99_ms: float
    per_second: float


def request_bytes(body: bytes, path: str = "/v1/chat/completions", headers: str = "") -> bytes:
    """Return a request. `headers`: more lines of the head, each with its end of line."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{headers}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def exchange(opened: Connection, request: bytes, expect: bytes = b"", events: int = 0) -> float:
    """Send a request, and return the seconds until the last byte of the answer.

    The answer must be a 200 whose head contains `expect`, and a stream must have `events` events. A bench of errors,
    or of another path than the one it names, is worse than none.
    """
    reader, writer = opened
    started = time.perf_counter()
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200") or expect not in head:
        said = await reader.read(500)
        raise AssertionError(f"expected 200 and {expect!r}, got {head.decode()}{said.decode()}")
    lowered = head.lower()
    if b"transfer-encoding: chunked" in lowered:
        got = await reader.readuntil(b"\r\n0\r\n\r\n")  # no body here has that in it
        if events and got.count(b"data: ") != events:
            raise AssertionError(f"expected {events} events, got {got.count(b'data: ')}")
    else:
        length = int(lowered[lowered.index(b"\ncontent-length:") + 16 :].split(b"\r\n", 1)[0])
        await reader.readexactly(length)
    return time.perf_counter() - started


@contextlib.asynccontextmanager
async def open_connections(
    port: int, connections: int, tls: ssl.SSLContext | None = None
) -> AsyncIterator[list[Connection]]:
    """Open connections, which end with the block. Their handshakes are over when it begins."""
    links = [await asyncio.open_connection("127.0.0.1", port, ssl=tls) for _ in range(connections)]
    try:
        yield links
    finally:
        for _, writer in links:
            writer.close()


async def _connection(
    link: Connection, requests: Iterator[bytes], expect: bytes, events: int, latencies: list[float]
) -> None:
    latencies.extend([await exchange(link, request, expect, events) for request in requests])


async def run(
    port: int,
    pid: int,
    requests: list[bytes],
    *,
    connections: int,
    expect: bytes = b"",
    events: int = 0,
    tls: ssl.SSLContext | None = None,
) -> Load:
    """Send `requests` once each, and check the answers as `exchange` does. Connecting does not count."""
    async with open_connections(port, connections, tls) as links:
        return await run_on(links, pid, requests, expect=expect, events=events)


async def run_on(
    links: Sequence[Connection], pid: int, requests: Sequence[bytes], *, expect: bytes = b"", events: int = 0
) -> Load:
    """Do as `run`, on connections that are open."""
    source = iter(requests)
    latencies: list[float] = []
    stores = children(pid)
    cpu, store_cpu, started = cpu_seconds(pid), sum(map(cpu_seconds, stores)), time.perf_counter()
    async with asyncio.timeout(300), asyncio.TaskGroup() as group:
        for link in links:
            group.create_task(_connection(link, source, expect, events, latencies))
    seconds = time.perf_counter() - started
    count = len(latencies)
    ordered = sorted(latencies)
    return Load(
        requests=count,
        cpu_us=1e6 * (cpu_seconds(pid) - cpu) / count,
        store_cpu_us=1e6 * (sum(map(cpu_seconds, stores)) - store_cpu) / count,
        p50_ms=1e3 * statistics.median(latencies),
        p99_ms=1e3 * ordered[min(count - 1, int(0.99 * count))],
        per_second=count / seconds,
    )
