"""What API keys cost: CPU and latency of exact hits with credentials that are passed on, with a key of the
configuration and with one of the store, with and without the front (`Cache-Control: max-age` goes by it); and how long
a key that was revoked on one gateway is let in by another one on the same store, while it is in use.

`make bench-keys`. Real gateways, a process each. Rounds alternate between the settings.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.__main__ import QUESTION, body, free_port, server
from bench.load import Load, run
from tests.fixtures.processes import Process, served_by_process, write_config
from tests.fixtures.stores import outside_server

STATIC = "sk-of-the-configuration"
KEYED = {"mode": "keys", "keys": {"acme": [hashlib.sha256(STATIC.encode()).hexdigest()]}}
SETTINGS: Mapping[str, Any] = {"passed on": {"mode": "passthrough"}, "configuration": KEYED, "store": KEYED}
POLICY = """
version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}}
    route: {backend: main}
"""


def request(key: str, more: str = "") -> bytes:
    content = body(QUESTION)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n{more}"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


async def opened(
    stack: AsyncExitStack, folder: Path, up: int, auth: Mapping[str, Any], **sections: Any
) -> tuple[Process, int]:
    """-> (a gateway's process, the port that clients ask)."""
    folder.mkdir()
    backend = {"adapter": "openai", "url": f"http://127.0.0.1:{up}/v1"}
    config = write_config(folder, {"main": backend}, POLICY, auth=dict(auth), **sections)
    process = await stack.enter_async_context(served_by_process(config))
    port = urlsplit(process.url).port
    assert port is not None
    return process, port


async def made(process: Process) -> tuple[str, str]:
    """-> (a key's id, the key)."""
    async with process.session.post(process.admin_url + "/admin/keys", json={"name": "b", "tenant": "acme"}) as answer:
        said = await answer.json()
    return said["id"], said["key"]


async def costs(folder: Path, up: int, requests: int, rounds: int) -> dict[tuple[str, int, str], list[Load]]:
    loads: dict[tuple[str, int, str], list[Load]] = {}
    async with AsyncExitStack() as stack:
        places = {}
        for name, auth in SETTINGS.items():
            process, port = await opened(stack, folder / name.replace(" ", "-"), up, auth)
            key = (await made(process))[1] if name == "store" else STATIC
            places[name] = (port, process.process.pid, key)
            await run(port, process.process.pid, [request(key)], connections=1)
        for number in range(rounds + 1):
            for kind, more in (("front", ""), ("stages", "Cache-Control: max-age=9999\r\n")):
                for connections in (1, 32):
                    for name, (port, pid, key) in places.items():
                        asked = [request(key, more)] * requests
                        load = await run(port, pid, asked, connections=connections, expect=b"detail=exact")
                        if number:  # the first round warms up
                            loads.setdefault((kind, connections, name), []).append(load)
    return loads


async def revocations(folder: Path, up: int, times: int) -> list[float]:
    """Seconds from the answer to the revocation until the other gateway refuses; asked every 2 ms."""
    took = []
    (folder / "server").mkdir()
    with outside_server(folder / "server") as store:
        async with AsyncExitStack() as stack:
            sections = {"store": {"url": store.url}}
            first, _ = await opened(stack, folder / "first", up, KEYED, **sections)
            second, _ = await opened(stack, folder / "second", up, KEYED, **sections)
            for _ in range(times):
                identity, key = await made(first)
                url, headers = second.url + "/v1/chat/completions", {"Authorization": f"Bearer {key}"}

                async def status(url: str = url, headers: Mapping[str, str] = headers) -> int:
                    given = {**headers, "Content-Type": "application/json"}
                    async with second.session.post(url, data=body(QUESTION), headers=given) as answer:
                        await answer.read()
                        return answer.status

                for _ in range(3):
                    assert await status() == 200
                async with first.session.post(f"{first.admin_url}/admin/keys/{identity}/revoke") as answer:
                    assert answer.status == 200
                began = time.perf_counter()
                while await status() == 200:
                    await asyncio.sleep(0.002)
                took.append(time.perf_counter() - began)
    return took


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


async def measured(requests: int, rounds: int, times: int) -> str:
    up = free_port()
    with tempfile.TemporaryDirectory() as name, server(["bench.servers", "upstream", str(up)], up):
        loads = await costs(Path(name), up, requests, rounds)
        took = sorted(await revocations(Path(name), up, times))
    middle, last = 1e3 * statistics.median(took), 1e3 * took[-1]
    return f"{table(loads)}\nrevoked elsewhere, let in for: median {middle:.0f} ms, longest of {times} {last:.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--revocations", type=int, default=20)
    given = parser.parse_args()
    print(asyncio.run(measured(given.requests, given.rounds, given.revocations)))


if __name__ == "__main__":
    main()
