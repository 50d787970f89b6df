"""Measures the cost of API keys: CPU and latency of exact hits, and the delay of a revocation.

The hits use forwarded credentials, a key of the configuration, and a key of the store, with and without the front
(`Cache-Control: max-age` bypasses it). The delay is the time for which another gateway on the same store still accepts
a revoked key that is in use.

`make bench-keys` runs real gateways, one process each. Rounds alternate between the settings.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import aiohttp

from bench.fixtures import body
from bench.gateways import EXACT_CACHE, free_port, gateway_of, server
from bench.load import Load, run
from bench.protocols import QUESTION
from gateway.config.key_format import digest_of
from tests.fixtures.stores import outside_server

STATIC = "sk-of-the-configuration"
KEYED = f"{{mode: keys, keys: {{acme: [{digest_of(STATIC)}]}}}}"
SETTINGS = {"passed on": "{mode: passthrough}", "configuration": KEYED, "store": KEYED}
CONFIG = """
version: 1
server: {{listen: 127.0.0.1:{port}, admin: 127.0.0.1:{admin}}}
embedder: {{adapter: hash}}
store: {{url: "{store}"}}
auth: {auth}
backends:
  main: {{adapter: openai, url: http://127.0.0.1:{upstream}/v1}}
"""


def request(key: str, more: str = "") -> bytes:
    content = body(QUESTION)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n{more}"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


async def create_key(session: aiohttp.ClientSession, admin: int) -> tuple[str, str]:
    """Return a key's id, and the key."""
    async with session.post(f"http://127.0.0.1:{admin}/admin/keys", json={"name": "b", "tenant": "acme"}) as answer:
        said = await answer.json()
    return said["id"], said["key"]


async def costs(up: int, requests: int, rounds: int) -> dict[tuple[str, int, str], list[Load]]:
    loads: dict[tuple[str, int, str], list[Load]] = {}
    with ExitStack() as stack:
        places = {}
        for name, auth in SETTINGS.items():
            it = stack.enter_context(gateway_of(CONFIG, EXACT_CACHE, store="embedded", auth=auth, upstream=up))
            key = STATIC
            if name == "store":
                async with aiohttp.ClientSession() as session:
                    _, key = await create_key(session, it.admin)
            places[name] = (it.port, it.process.pid, key)
            await run(it.port, it.process.pid, [request(key)], connections=1)
        for number in range(rounds + 1):
            for kind, more in (("front", ""), ("stages", "Cache-Control: max-age=9999\r\n")):
                for connections in (1, 32):
                    for name, (port, pid, key) in places.items():
                        asked = [request(key, more)] * requests
                        load = await run(port, pid, asked, connections=connections, expect=b"detail=exact")
                        if number:  # the first round warms up
                            loads.setdefault((kind, connections, name), []).append(load)
    return loads


async def revocations(up: int, times: int) -> list[float]:
    """Return the seconds from the answer to the revocation until the other gateway refuses; asked every 2 ms."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store = stack.enter_context(outside_server(folder)).url
        first, second = (
            stack.enter_context(gateway_of(CONFIG, EXACT_CACHE, store=store, auth=KEYED, upstream=up)) for _ in range(2)
        )
        async with aiohttp.ClientSession() as session:
            return [await _revocation_delay(session, first.admin, second.port) for _ in range(times)]


async def _revocation_delay(session: aiohttp.ClientSession, admin: int, port: int) -> float:
    identity, key = await create_key(session, admin)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    async def status() -> int:
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        async with session.post(url, data=body(QUESTION), headers=headers) as answer:
            await answer.read()
            return answer.status

    for _ in range(3):
        assert await status() == 200
    async with session.post(f"http://127.0.0.1:{admin}/admin/keys/{identity}/revoke") as answer:
        assert answer.status == 200
    began = time.perf_counter()
    while await status() == 200:
        await asyncio.sleep(0.002)
    return time.perf_counter() - began


def table(loads: dict[tuple[str, int, str], list[Load]]) -> str:
    lines = [
        f"{'exact hit by':<14}{'c':>3} {'credentials':>14} {'CPU us':>8} {'more us':>8} {'p50 ms':>8} {'p99 ms':>8}"
    ]
    for (kind, connections, name), some in loads.items():
        base = loads[kind, connections, "passed on"]
        more = statistics.median(load.cpu_us - other.cpu_us for load, other in zip(some, base, strict=True))
        cpu, p50, p99 = (
            statistics.median(getattr(load, field) for load in some) for field in ("cpu_us", "p50_ms", "p99_ms")
        )
        lines.append(f"{kind:<14}{connections:>3} {name:>14} {cpu:>8.1f} {more:>8.1f} {p50:>8.3f} {p99:>8.3f}")
    return "\n".join(lines)


async def measure(requests: int, rounds: int, times: int) -> None:
    up = free_port()
    with server(["bench.servers", "upstream", str(up)], up):
        print(table(await costs(up, requests, rounds)), flush=True)
        took = sorted(await revocations(up, times))
    middle, last = 1e3 * statistics.median(took), 1e3 * took[-1]
    print(f"revoked elsewhere, let in for: median {middle:.0f} ms, longest of {times} {last:.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--revocations", type=int, default=20)
    given = parser.parse_args()
    asyncio.run(measure(given.requests, given.rounds, given.revocations))


if __name__ == "__main__":
    main()
