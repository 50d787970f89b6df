"""Compares an embedder in each of two processes with one embedder that both call on a unix socket.

The shared embedder has one or two threads. The figures include the CPU per text, over all processes. `python -m
bench.shared_embedder` takes half a minute on an idle machine.

This is a prototype in the benchmark only; the product has no shared embedder (docs/decisions/0033). A frame is a
length, the number of a question, and a text or vector.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import struct
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import uvloop

from bench.fixtures import other_case
from bench.process import cpu_seconds
from bench.semantic import ROUNDS, SECONDS, run_in_process, spread
from gateway.adapters.embedding.embedders import BatchingEmbedder
from gateway.adapters.onnx.encoder import MAX_BATCH, OnnxEncoder
from gateway.adapters.onnx.model_files import MODEL, default_model_dir

CALLERS = 16  # of each process that has texts embedded
MODULE = "bench.shared_embedder"


def embedder_of(encoder: OnnxEncoder) -> BatchingEmbedder:
    return BatchingEmbedder(encoder, batch_limit=MAX_BATCH, timeout_s=60.0)


async def serve(path: str, threads: int) -> None:
    encoder = OnnxEncoder(default_model_dir() / MODEL)
    embedders = [embedder_of(encoder) for _ in range(threads)]

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


async def embed_texts(path: str) -> tuple[int, float]:
    """Return the texts within `SECONDS`, and the CPU seconds of this process for them. `path` "own": embed here."""
    draw, count = random.Random(), 0
    own = embedder_of(OnnxEncoder(default_model_dir() / MODEL)) if path == "own" else None
    waiting: dict[int, asyncio.Future[bytes]] = {}
    if own is None:
        reader, writer = await asyncio.open_unix_connection(path)

        async def receive() -> None:
            async for number, vector in frames(reader):
                waiting.pop(number).set_result(vector)

        hearing = asyncio.create_task(receive())
    until, cpu = time.perf_counter() + SECONDS, time.process_time()

    async def call() -> None:
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

    await asyncio.gather(*(call() for _ in range(CALLERS)))
    if own is None:
        hearing.cancel()
        writer.close()
    return count, time.process_time() - cpu


async def compare() -> None:
    found: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            for name, threads in (("one in each process", 0), ("a service, one thread", 1), ("a service, two", 2)):
                path, serving = f"{folder}/{threads}", None
                if threads:
                    words = ["-m", MODULE, "--part", "serve", path, str(threads)]
                    serving = await asyncio.create_subprocess_exec(sys.executable, *words)
                    while not Path(path).exists():
                        await asyncio.sleep(0.05)
                before = cpu_seconds(serving.pid) if serving else 0.0
                asking = (run_in_process(MODULE, "embed", path if serving else "own") for _ in range(2))
                counts, cpus = zip(*await asyncio.gather(*asking), strict=True)
                spent = sum(cpus) + (cpu_seconds(serving.pid) - before if serving else 0.0)
                found.setdefault(name, []).append((sum(counts) / SECONDS, 1e6 * spent / sum(counts)))
                if serving:
                    serving.terminate()
                    await serving.wait()
                    Path(path).unlink(missing_ok=True)
    for name, rounds in found.items():
        rates, costs = zip(*rounds, strict=True)
        print(f"two processes, {name}: {spread(rates, '.0f')} texts/s, CPU {spread(costs, '.0f')} us a text")


async def part(what: str, *arguments: str) -> None:
    if what == "serve":
        await serve(arguments[0], int(arguments[1]))
    else:
        print(json.dumps(await embed_texts(arguments[0])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    uvloop.run(part(*given.part) if given.part else compare())


if __name__ == "__main__":
    main()
