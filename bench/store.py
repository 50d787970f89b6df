"""Measures the cost of a store command, in CPU microseconds of the gateway and of the server.

It compares nearhit's connection with redis-py, by size of the record, one command at a time and 32 at once. It also
measures compression of records.

`python -m bench.store` uses an embedded server and uvloop. The figures are medians of `ROUNDS` that take turns.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
import zlib
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from bench.process import cpu_seconds
from gateway.adapters.redis.client import connect
from gateway.adapters.redis.connection import Word
from gateway.adapters.redis.embedded_valkey import EmbeddedValkey
from gateway.adapters.redis.store import PUT
from gateway.adapters.redis.store_client import StoreClient
from gateway.adapters.system.clock import SystemClock

ROUNDS, COMMANDS, AT_ONCE = 5, 1_600, 32
SIZES = (700, 4_000, 16_000, 64_000, 1_000_000)
VECTOR = b"v" * 1_536
Command = Callable[[int], Awaitable[Any]]


def fields(size: int) -> tuple[str | bytes, ...]:
    return ("record", b"r" * size, "scope", "s" * 64, "expires", "1800000000.123", "worth", "1e-5", "vector", VECTOR)


def _read(guard: StoreClient, size: int, _: int) -> Awaitable[Any]:
    return guard.send("HGET", f"k{size}", "record")


def commands_by_name(guard: StoreClient, client: Any) -> dict[str, Command]:
    found: dict[str, Command] = {}
    for size in SIZES:
        found[f"read of {size:,} bytes"] = partial(_read, guard, size)
    found["read of 700 bytes by redis-py"] = lambda _: client.hget("k700", "record")
    expires, far = 1_900_000_000_000, 1.9e9

    def put(number: int) -> Awaitable[Any]:
        arguments: list[Word] = [0, expires, far, str(number), b"r" * 1_300, "s" * 64, "1e-5", VECTOR, b"hash"]
        return guard.run(PUT, [f"e{number}", "lease", "all"], arguments)

    async def put_by_redis_py(number: int) -> None:
        async with client.pipeline(transaction=True) as pipe:
            pipe.delete(f"e{number}")
            pipe.execute_command("HSET", f"e{number}", *fields(1_300))
            pipe.pexpireat(f"e{number}", expires)
            pipe.zadd("all", {str(number): far})
            await pipe.execute()

    return found | {"put": put, "put by redis-py": put_by_redis_py}


async def cost(command: Command, at_once: int, server: int, commands: int) -> tuple[float, float]:
    mine, its = time.thread_time(), cpu_seconds(server)
    for first in range(0, commands, at_once):
        await asyncio.gather(*(command(first + i) for i in range(at_once)))
    return 1e6 * (time.thread_time() - mine) / commands, 1e6 * (cpu_seconds(server) - its) / commands


async def commands() -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = await EmbeddedValkey.start(Path(folder), max_memory=2**28)
        guard, client = StoreClient(connect(server.url), 10.0, SystemClock()), connect(server.url)
        for size in SIZES:
            await guard.send("HSET", f"k{size}", "record", b"r" * size)
        print(f"{'gateway / server, us of CPU':<34}{'one by one':>16}{f'{AT_ONCE} at once':>16}")
        for name, command in commands_by_name(guard, client).items():
            count = 64 if "1,000,000" in name else COMMANDS
            found = {n: [await cost(command, n, server.pid, count) for _ in range(ROUNDS)] for n in (1, AT_ONCE)}
            shown = (
                f"{statistics.median(a for a, _ in costs):.1f} / {statistics.median(b for _, b in costs):.1f}"
                for costs in found.values()
            )
            print(f"{name:<34}" + "".join(f"{each:>16}" for each in shown))
        await client.aclose()
        await guard.close()
        await server.stop()


def compression() -> None:
    """Measure zlib at its fastest, on answers made of this project's documentation."""
    text = "".join(path.read_text() for path in sorted(Path("docs").glob("*.md")))
    print(f"\n{'zlib, level 1':<20}{'of its size':>14}{'compressed, us':>18}{'and back, us':>16}")
    for size in (700, 4_000, 16_000, 64_000):
        data = json.dumps({"choices": [{"message": {"role": "assistant", "content": text[:size]}}]}).encode()
        packed = zlib.compress(data, 1)
        spent = [_fastest_us(partial(zlib.compress, data, 1)), _fastest_us(partial(zlib.decompress, packed))]
        print(f"{len(data):>12,} bytes{len(packed) / len(data):>15.2f}{spent[0]:>18.1f}{spent[1]:>16.1f}")


def _fastest_us(work: Callable[[], object], times: int = 100) -> float:
    spent = []
    for _ in range(times):
        started = time.thread_time_ns()
        work()
        spent.append(time.thread_time_ns() - started)
    return min(spent) / 1e3


if __name__ == "__main__":
    uvloop.run(commands())
    compression()
