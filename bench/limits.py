"""Measures the cost of limits: exact hits and uncached misses on routes without limits, with them, and with `hits`.

`python -m bench.limits`. One gateway with its embedded store runs in front of a canned endpoint; the model selects the
route. Each row is the median of the rounds after a warm-up round. `limits` sets requests, tokens, concurrency and cost
per tenant.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics

from bench.fixtures import CONFIG, body
from bench.gateways import free_port, gateway_of, server
from bench.load import Load, request_bytes, run

LIMITS = "requests: 100M/s, tokens: 1000M/s, concurrency: 10000, cost: {per_day: 1000000 USD}"
ROUTES = {"no limits": "", "limits": f"limits: {{{LIMITS}}}, ", "count_hits": f"limits: {{{LIMITS}, count_hits: on}}, "}


def policy() -> str:
    lines = ["version: 1", "routes:"]
    for number, limits in enumerate(ROUTES.values()):
        rest = f"{limits}route: {{backend: main}}"
        lines.append(f"  - {{name: hit{number}, match: {{model: hit{number}}}, cache: {{exact: {{ttl: 1h}}}}, {rest}}}")
        lines.append(f"  - {{name: miss{number}, match: {{model: miss{number}}}, {rest}}}")
    return "\n".join([*lines, "  - {name: default, match: {}, route: {backend: main}}", ""])


async def measure(port: int, pid: int, requests: int, rounds: int) -> dict[tuple[str, str, int], list[Load]]:
    loads: dict[tuple[str, str, int], list[Load]] = {}
    for turn in range(rounds + 1):
        for number, name in enumerate(ROUTES):
            for kind, expect in (("hit", b"detail=exact"), ("miss", b"detail=policy")):
                same = request_bytes(body("the same question", f"{kind}{number}"))
                if not turn:
                    await run(port, pid, [same], connections=1)
                for connections in (1, 4):
                    load = await run(port, pid, [same] * requests, connections=connections, expect=expect)
                    if turn:
                        loads.setdefault((kind, name, connections), []).append(load)
    return loads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    upstream = free_port()
    with (
        server(["bench.servers", "upstream", str(upstream)], upstream),
        gateway_of(CONFIG, policy(), embedder="hash", upstream=upstream, more="") as it,
    ):
        loads = asyncio.run(measure(it.port, it.process.pid, arguments.requests, arguments.rounds))
    print(f"{'':<24}{'c':>3} {'CPU us':>8} {'store us':>9} {'p50 ms':>8} {'p99 ms':>8} {'req/s':>8}")
    for (kind, name, connections), rounds in loads.items():
        cpu, store, p50, p99, rate = (
            statistics.median(getattr(load, field) for load in rounds)
            for field in ("cpu_us", "store_cpu_us", "p50_ms", "p99_ms", "per_second")
        )
        print(
            f"{kind + ', ' + name:<24}{connections:>3} {cpu:>8.0f} {store:>9.0f} {p50:>8.3f} {p99:>8.3f} {rate:>8.0f}"
        )


if __name__ == "__main__":
    main()
