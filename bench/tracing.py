"""Measures the cost of traces: CPU and latency of exact hits and of misses, at several sampling rates.

`make bench-tracing` runs real gateways, one per setting, in front of one endpoint. The receiver answers 200 to all
requests. CPU is that of the gateway's process, with the thread of the exporter. Rounds alternate between the settings.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from contextlib import ExitStack

from bench.fixtures import CONFIG, POLICY, body
from bench.gateways import free_port, gateway_of, server
from bench.load import Load, request_bytes, run
from bench.protocols import QUESTION

SETTINGS = {
    "off": "",
    "0 %": "sample: 0",
    "10 %": "sample: 10%",
    "100 %": "sample: 100%",
}
# What is asked, what the head of its answer contains, over how many connections, by what part of the requests. A miss
# takes turns with the endpoint's process: more of them at once would be refused.
KINDS = {
    "exact hit": (body(QUESTION), b"detail=exact", (1, 32), 1),
    "pass-through miss": (body(QUESTION, "uncached"), b"detail=policy", (1, 8), 4),
}


async def measure(requests: int, rounds: int) -> dict[tuple[str, int, str], list[Load]]:
    up, receiver = free_port(), free_port()
    loads: dict[tuple[str, int, str], list[Load]] = {}
    with ExitStack() as stack:
        stack.enter_context(server(["bench.servers", "upstream", str(up)], up))
        stack.enter_context(server(["bench.servers", "upstream", str(receiver)], receiver))
        endpoint = f"http://127.0.0.1:{receiver}"
        ports = {}
        for name, rule in SETTINGS.items():
            more = f"telemetry: {{traces: {{endpoint: '{endpoint}', slow: off, {rule}}}}}\n" if rule else ""
            it = stack.enter_context(gateway_of(CONFIG, POLICY, embedder="hash", upstream=up, more=more))
            ports[name] = (it.port, it.process.pid)
            await run(it.port, it.process.pid, [request_bytes(body(QUESTION))], connections=1)
        for number in range(rounds + 1):
            for kind, (given, expect, crowds, part) in KINDS.items():
                for connections in crowds:
                    for name, (port, pid) in ports.items():
                        asked = [request_bytes(given)] * (requests // part)
                        load = await run(port, pid, asked, connections=connections, expect=expect)
                        if number:  # the first round warms up
                            loads.setdefault((kind, connections, name), []).append(load)
    return loads


def table(loads: dict[tuple[str, int, str], list[Load]]) -> str:
    lines = [f"{'':<20}{'c':>3} {'traces':>7} {'CPU us':>8} {'more us':>8} {'p50 ms':>8} {'p99 ms':>8} {'req/s':>8}"]
    for (kind, connections, name), some in loads.items():
        without = loads[kind, connections, "off"]
        more = statistics.median(load.cpu_us - base.cpu_us for load, base in zip(some, without, strict=True))
        cpu, p50, p99, rate = (
            statistics.median(getattr(load, field) for load in some)
            for field in ("cpu_us", "p50_ms", "p99_ms", "per_second")
        )
        lines.append(
            f"{kind:<20}{connections:>3} {name:>7} {cpu:>8.0f} {more:>8.1f} {p50:>8.3f} {p99:>8.3f} {rate:>8.0f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print(table(asyncio.run(measure(given.requests, given.rounds))))


if __name__ == "__main__":
    main()
