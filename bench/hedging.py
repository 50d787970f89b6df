"""Measures the effect of hedging on the tail, and its cost.

A real gateway runs in front of two endpoints on real sockets. Their answers take a lognormal time, and sometimes ten
times as long. Requests are Poisson arrivals. The time is drawn per call, so that a stall belongs to the call and not to
the request.

`make bench-hedging` runs it; `--sigma`, `--stalls` and `--stall` change the endpoints.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import uvloop

from bench.fixtures import body
from bench.gateways import free_port, gateway_of
from bench.protocols import BODY

MODES = {
    "one upstream at a time": "off",
    "hedge after p95, 5 %": "{after: p95, budget: 5%}",
    "hedge after p90, 10 %": "{after: p90, budget: 10%}",
}
WARM = 0.2  # share of the requests that are not counted: the gateway has to see the upstreams first
CONFIG = """
version: 1
server: {{listen: 127.0.0.1:{port}, admin: 127.0.0.1:{admin}}}
embedder: {{adapter: hash}}
backends:
  main:
    adapter: openai
    upstreams: [{upstreams}]
    hedge: {hedge}
    retries: {{budget: 0}}  # nothing fails here: each call beyond one a request is a hedge
    max_concurrency: 1024
    adaptive: off  # the endpoints bear any number of calls
"""
POLICY = """
version: 1
routes: [{name: default, match: {}, route: {backend: main}}]
"""
HEAD = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()


@dataclass(frozen=True, slots=True)
class Scenario:
    """The latency of the endpoints: seconds, standard deviation of the logarithm, share of stalls, their factor."""

    median_s: float
    sigma: float
    stalls: float
    stall: float

    def draw(self, draw: random.Random) -> float:
        took = self.median_s * draw.lognormvariate(0.0, self.sigma)
        return took * self.stall if draw.random() < self.stalls else took


class Endpoint:
    """Works on any number of calls at once."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.port = free_port()
        self.calls = 0
        self._scenario, self._draw = scenario, random.Random(seed)

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        async with await asyncio.start_server(self._connection, "127.0.0.1", self.port):
            yield

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                await read_message(reader)
                self.calls += 1
                await asyncio.sleep(self._scenario.draw(self._draw))
                writer.write(HEAD + BODY)
        writer.close()


async def read_message(reader: asyncio.StreamReader) -> bytes:
    """Read a message that has a Content-Length, and return its head."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    at = head.index(b"content-length:")
    await reader.readexactly(int(head[at + 15 :].split(b"\r\n", 1)[0]))
    return head


class Client:
    """Connections are kept for later requests."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, number: int) -> None:
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self._port)
        sent = body(f"number {number}.")
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(sent)}\r\n\r\n".encode() + sent)
        answer = await read_message(reader)
        if not answer.startswith(b"http/1.1 200"):
            raise AssertionError(answer.decode())
        self._idle.append((reader, writer))

    def close(self) -> None:
        for _, writer in self._idle:
            writer.close()


@contextlib.contextmanager
def gateway(ports: list[int], hedge: str) -> Iterator[int]:
    upstreams = ", ".join(f"http://127.0.0.1:{each}/v1" for each in ports)
    with gateway_of(CONFIG, POLICY, upstreams=upstreams, hedge=hedge) as it:
        yield it.port


async def measure_mode(hedge: str, scenario: Scenario, requests: int, rate: float) -> tuple[list[float], float]:
    """Return the sorted seconds of each request that counts, and the calls per request."""
    endpoints = [Endpoint(scenario, seed) for seed in (1, 2)]
    async with endpoints[0].serve(), endpoints[1].serve():
        with gateway([each.port for each in endpoints], hedge) as port:
            client, draw, loop = Client(port), random.Random(3), asyncio.get_running_loop()

            async def send(number: int, due: float) -> float:
                await asyncio.sleep(due - loop.time())
                await client.ask(number)
                return loop.time() - due

            at, tasks = loop.time() + 0.2, []
            for number in range(requests):
                at += draw.expovariate(rate)
                tasks.append(asyncio.create_task(send(number, at)))
            took = await asyncio.gather(*tasks)
            client.close()
    return sorted(took[int(WARM * requests) :]), sum(each.calls for each in endpoints) / requests


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-hedging", description=__doc__)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--rate", type=float, default=60.0, help="requests a second")
    parser.add_argument("--median", type=float, default=0.05, help="seconds")
    parser.add_argument("--sigma", type=float, default=0.3)
    parser.add_argument("--stalls", type=float, default=0.02, help="share of the calls")
    parser.add_argument("--stall", type=float, default=10.0, help="times as long")
    given = parser.parse_args()
    scenario = Scenario(given.median, given.sigma, given.stalls, given.stall)
    print(f"{scenario}, {given.requests} requests at {given.rate:g} a second, the first {WARM:.0%} not counted")
    print(f"{'':<26}{'p50 ms':>9}{'p95 ms':>9}{'p99 ms':>9}{'p99.9 ms':>10}{'extra calls':>13}")
    for mode, hedge in MODES.items():
        took, calls = uvloop.run(measure_mode(hedge, scenario, given.requests, given.rate))
        cells = [f"{1e3 * took[int(q * (len(took) - 1))]:>9.0f}" for q in (0.5, 0.95, 0.99)]
        print(f"{mode:<26}{''.join(cells)}{1e3 * took[int(0.999 * (len(took) - 1))]:>10.0f}{calls - 1:>13.1%}")


if __name__ == "__main__":
    main()
