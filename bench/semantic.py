"""What semantic hits with the real embedder cost others, and what a second process or a shared embedder is worth.

`make bench-semantic`, on a machine with two cores that nobody else uses (two minutes); one of
`--only one-core beside workers service`.

one-core: the gateway and its store on one core, the load on another: semantic hits a second, and CPU a hit.
beside: exact hits at a steady rate, alone and beside as many semantic hits as the gateway answers.
workers: one and two workers, as many hits of either kind as they answer.
service: texts embedded by two processes with an embedder each, and by two that ask one embedder on a unix socket, which
has a thread or two; with `CPU`, of all of them a text. A prototype of the bench: the product has none.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import uvloop

from bench.asked import CONFIG, POLICY, body, other_case
from bench.gateways import Running, free_port, gateway_of, server
from bench.load import children, cpu_seconds, exchange, request_bytes, run
from bench.protocols import QUESTION
from gateway.adapters.batching_embedder import BatchingEmbedder
from gateway.adapters.onnx_encoder import OnnxEncoder
from gateway.modelkit.files import MODEL, default_model_dir

ROUNDS, SECONDS, RATE, CONNECTIONS = 5, 3.0, 100.0, 32
KINDS: dict[str, tuple[Callable[[random.Random], bytes], bytes]] = {
    "exact": (lambda _: body(QUESTION), b"detail=exact"),
    "semantic": (lambda draw: body(other_case(draw)), b"detail=semantic"),
}
CALLERS = 16  # of each process that has texts embedded


async def asked(port: int, kind: str, connections: int, seconds: float, *, warming: bool = False) -> list[float]:
    """Seconds of each answer; as many as there are in that time. `warming`: it may be any answer."""
    made, expect = KINDS[kind]
    expect = b"" if warming else expect
    draw, took, until = random.Random(), list[float](), time.perf_counter() + seconds

    async def one() -> None:
        opened = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < until:
            took.append(await exchange(opened, request_bytes(made(draw)), expect))
        opened[1].close()

    await asyncio.gather(*(one() for _ in range(connections)))
    return took


async def steady(port: int, seconds: float) -> list[float]:
    """Exact hits, `RATE` a second whatever comes back; from when each was due."""
    made, expect = KINDS["exact"]
    request, began, took = request_bytes(made(random.Random())), time.perf_counter(), list[float]()
    free = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]

    async def one(due: float) -> None:
        opened = free.pop() if free else await asyncio.open_connection("127.0.0.1", port)
        await exchange(opened, request, expect)
        took.append(time.perf_counter() - due)
        free.append(opened)

    async with asyncio.TaskGroup() as group:
        for at in range(int(RATE * seconds)):
            due = began + at / RATE
            await asyncio.sleep(due - time.perf_counter())
            group.create_task(one(due))
    for _, writer in free:
        writer.close()
    return took


async def elsewhere(*arguments: object) -> object:
    """What this module prints for these arguments in another process."""
    words = ["-m", "bench.semantic", "--part", *map(str, arguments)]
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    if process.returncode:
        raise SystemExit(f"{words} ended with {process.returncode}")
    return json.loads(said)


def quantiles(took: Sequence[float]) -> tuple[float, float]:
    """p50 and p99 in ms."""
    ordered = sorted(took)
    return 1e3 * statistics.median(ordered), 1e3 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


def middle(values: Sequence[float], form: str = ".2f") -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


@contextlib.contextmanager
def gateway(workers: int = 1) -> Iterator[Running]:
    up = free_port()
    config = CONFIG.replace("admin: 127.0.0.1:{admin}", "admin: 127.0.0.1:{admin}, workers: {workers}")
    with (
        server(["bench.servers", "upstream", str(up)], up),
        gateway_of(config, POLICY, embedder="onnx", upstream=up, more="", workers=workers) as it,
    ):
        yield it


async def filled(it: Running) -> None:
    await run(it.port, it.process.pid, [request_bytes(body(QUESTION))], connections=1)
    await asked(it.port, "semantic", 8, 2.0, warming=True)
    await asked(it.port, "exact", 8, 0.5, warming=True)


async def one_core() -> None:
    cores = sorted(os.sched_getaffinity(0))
    with gateway() as it:
        for pid in (it.process.pid, *children(it.process.pid)):
            for task in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(task.name), cores[:1])
        os.sched_setaffinity(0, cores[1:] or cores)
        await filled(it)
        rates, costs = [], []
        for _ in range(ROUNDS):
            cpu = cpu_seconds(it.process.pid)
            count = len(await asked(it.port, "semantic", CONNECTIONS, SECONDS))
            rates.append(count / SECONDS)
            costs.append(1e6 * (cpu_seconds(it.process.pid) - cpu) / count)
        os.sched_setaffinity(0, cores)
    print(f"one core: {middle(rates, '.0f')} semantic hits/s, CPU {middle(costs, '.0f')} us a hit")


async def beside() -> None:
    found: dict[str, list[tuple[float, float]]] = {"alone": [], "beside semantic hits": []}
    rates = []
    with gateway() as it:
        await filled(it)
        for _ in range(ROUNDS):
            found["alone"].append(quantiles(await steady(it.port, SECONDS)))
            other = asyncio.create_task(elsewhere("ask", it.port, "semantic", CONNECTIONS, SECONDS + 1.5))
            await asyncio.sleep(1.0)  # it starts
            found["beside semantic hits"].append(quantiles(await steady(it.port, SECONDS)))
            rates.append(float(str(await other)))
    for name, rounds in found.items():
        p50, p99 = zip(*rounds, strict=True)
        print(f"exact hits, {RATE:.0f}/s, {name}: p50 {middle(p50)} ms, p99 {middle(p99)} ms")
    print(f"beside them: {middle(rates, '.0f')} semantic hits/s")


async def workers() -> None:
    found: dict[tuple[str, int], list[float]] = {}
    with gateway(1) as one, gateway(2) as two:
        for each in (one, two):
            await filled(each)
        for _ in range(ROUNDS):
            for kind in KINDS:
                for count, it in ((1, one), (2, two)):
                    asking = [elsewhere("ask", it.port, kind, CONNECTIONS // 2, SECONDS) for _ in range(2)]
                    rates = await asyncio.gather(*asking)
                    found.setdefault((kind, count), []).append(sum(float(str(rate)) for rate in rates))
    for kind in KINDS:
        ratios = [b / a for a, b in zip(found[kind, 1], found[kind, 2], strict=True)]
        print(f"{kind} hits/s, one worker {middle(found[kind, 1], '.0f')}, two {middle(found[kind, 2], '.0f')}: "
              f"{middle(ratios)} x")  # fmt: skip


# One embedder for several processes: frames of a length, a number of the question's, and text or vector.


async def serve(path: str, threads: int) -> None:
    encoder = OnnxEncoder(default_model_dir() / MODEL)
    embedders = [BatchingEmbedder(encoder, at_once=1, timeout_s=60.0) for _ in range(threads)]

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def answer(number: int, text: str) -> None:
            vector = (await embedders[number % threads].embed(text)).vector.tobytes()
            writer.write(struct.pack("<II", len(vector), number) + vector)

        async with asyncio.TaskGroup() as group:
            async for number, text in frames(reader):
                group.create_task(answer(number, text.decode()))

    listening = await asyncio.start_unix_server(client, path)
    await listening.serve_forever()


async def frames(reader: asyncio.StreamReader) -> AsyncIterator[tuple[int, bytes]]:
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            length, number = struct.unpack("<II", await reader.readexactly(8))
            yield number, await reader.readexactly(length)


async def embedded(path: str) -> tuple[int, float]:
    """Texts within `SECONDS`, and CPU seconds of this process for them. `path` "own": here."""
    draw, count = random.Random(), 0
    own = (
        BatchingEmbedder(OnnxEncoder(default_model_dir() / MODEL), at_once=1, timeout_s=60.0) if path == "own" else None
    )
    waiting: dict[int, asyncio.Future[bytes]] = {}
    if own is None:
        reader, writer = await asyncio.open_unix_connection(path)

        async def hear() -> None:
            async for number, vector in frames(reader):
                waiting.pop(number).set_result(vector)

        hearing = asyncio.create_task(hear())
    until, cpu = time.perf_counter() + SECONDS, time.process_time()

    async def one() -> None:
        nonlocal count
        while time.perf_counter() < until:
            text = other_case(draw)
            count += 1
            if own is not None:
                await own.embed(text)
                continue
            number, said = count, text.encode()
            waiting[number] = asyncio.get_running_loop().create_future()
            writer.write(struct.pack("<II", len(said), number) + said)
            await waiting[number]

    await asyncio.gather(*(one() for _ in range(CALLERS)))
    if own is None:
        hearing.cancel()
        writer.close()
    return count, time.process_time() - cpu


async def service() -> None:
    found: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            for name, threads in (("one in each process", 0), ("a service, one thread", 1), ("a service, two", 2)):
                path, serving = f"{folder}/{threads}", None
                if threads:
                    words = ["-m", "bench.semantic", "--part", "serve", path, str(threads)]
                    serving = await asyncio.create_subprocess_exec(sys.executable, *words)
                    while not Path(path).exists():
                        await asyncio.sleep(0.05)
                before = cpu_seconds(serving.pid) if serving else 0.0
                asking = (elsewhere("embed", path if serving else "own") for _ in range(2))
                counts, cpus = zip(
                    *[tuple(json.loads(str(each))) for each in await asyncio.gather(*asking)], strict=True
                )
                spent = sum(cpus) + (cpu_seconds(serving.pid) - before if serving else 0.0)
                found.setdefault(name, []).append((sum(counts) / SECONDS, 1e6 * spent / sum(counts)))
                if serving:
                    serving.terminate()
                    await serving.wait()
                    Path(path).unlink(missing_ok=True)
    for name, rounds in found.items():
        rates, costs = zip(*rounds, strict=True)
        print(f"two processes, {name}: {middle(rates, '.0f')} texts/s, CPU {middle(costs, '.0f')} us a text")


SECTIONS = {"one-core": one_core, "beside": beside, "workers": workers, "service": service}


async def part(what: str, *arguments: str) -> None:
    if what == "serve":
        await serve(arguments[0], int(arguments[1]))
    elif what == "embed":
        print(json.dumps(json.dumps(await embedded(arguments[0]))))
    else:
        port, kind, connections, seconds = arguments
        print(len(await asked(int(port), kind, int(connections), float(seconds))) / float(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        uvloop.run(part(*given.part))
        return
    for name in given.only:
        uvloop.run(SECTIONS[name]())


if __name__ == "__main__":
    main()
