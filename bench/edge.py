"""What a model in the gateway's own process writes, and what an exact hit takes meanwhile: real gateway, real sockets.

`make bench-edge`; `--model FOLDER` for another model than the small one of the tests, whose passes are so short that
what Python does between them weighs the most.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import onnxruntime
import orjson
import uvloop

from bench.gateways import gateway_of
from bench.load import request_bytes, run
from gateway.adapters.onnx.generator import Generator
from gateway.adapters.onnx.model_dir import ModelFolder
from gateway.generation.asked import Sampling, asked_of

SMALL = Path(__file__).parents[1] / "tests" / "fixtures" / "onnx" / "generate"
CONFIG = """
version: 1
server: {{listen: 127.0.0.1:{port}, admin: 127.0.0.1:{admin}}}
embedder: {{adapter: hash}}
backends:
  edge: {{adapter: onnx, path: {model}, task: generate, threads: {threads}, adaptive: off}}
  hits: {{adapter: onnx, path: {small}, task: generate}}  # its answers end, so that they are stored
"""
POLICY = """
version: 1
routes:
  - {name: hits, match: {model: hit}, cache: {exact: {ttl: 1h}}, route: {backend: hits}}
  - {name: default, match: {}, route: {backend: edge}}
"""
HIT = orjson.dumps({"model": "hit", "messages": [{"role": "user", "content": "What is a scope?"}]})
HITS, ROUNDS = 4000, 3
STREAMS = (1, 4)
LONGEST = 150  # tokens of an answer: the small model reads 192, prompt included


def question(number: int) -> dict[str, object]:
    """Answers of some length, each its own: hot draws, and no end of their own within reach for most."""
    messages = [{"role": "user", "content": f"Go on at length about number {number}"}]
    return {"messages": messages, "temperature": 2.0, "seed": number, "max_tokens": LONGEST}


def alone(folder: Path, threads: int, seconds: float = 3.0) -> float:
    """Tokens a second of the model by itself, one answer after the other."""
    model = Generator(ModelFolder(folder), threads, LONGEST)
    tokens, number, started = 0, 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        asked = asked_of(question(number), LONGEST, Sampling())
        *_, last = (piece for piece in model.pieces(asked, onnxruntime.RunOptions()) if piece is not None)
        tokens, number = tokens + last.output_tokens, number + 1
    return tokens / (time.perf_counter() - started)


@contextlib.contextmanager
def gateway(model: Path, threads: int) -> Iterator[tuple[int, int]]:
    """-> (port, process id)"""
    with gateway_of(CONFIG, POLICY, model=model.absolute(), threads=threads, small=SMALL) as it:
        yield it.port, it.process.pid


async def stream(port: int, numbers: Iterator[int], counted: list[int]) -> None:
    """One client that asks again as soon as it is answered, on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for number in numbers:
            writer.write(request_bytes(orjson.dumps({"model": "m", "stream": True, **question(number)})))
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            while (line := await reader.readuntil(b"\n")) != b"0\r\n":
                counted[0] += b'"delta":{"content"' in line
            await reader.readline()
    finally:
        writer.close()


async def measured(port: int, pid: int, streams: int) -> tuple[float, float, float, float]:
    """-> (p50 and p99 of an exact hit in ms while so many answers are written, the best round; pieces of text a second
    without hits, and while one connection asks for hits as fast as it can)."""
    counted, numbers, best = [0], iter(range(1000 * streams, 10**9)), (float("inf"), float("inf"))
    writing = [asyncio.create_task(stream(port, numbers, counted)) for _ in range(streams)]
    await asyncio.sleep(1.0)
    before, started = counted[0], time.perf_counter()
    await asyncio.sleep(3.0)
    quiet = (counted[0] - before) / (time.perf_counter() - started)
    before, started = counted[0], time.perf_counter()
    for _ in range(ROUNDS):
        load = await run(port, pid, [request_bytes(HIT)] * HITS, connections=1, expect=b"detail=exact")
        best = min(best, (load.p50_ms, load.p99_ms))
    busy = (counted[0] - before) / (time.perf_counter() - started)
    for task in writing:
        task.cancel()
    await asyncio.gather(*writing, return_exceptions=True)
    return *best, quiet, busy


async def figures(port: int, pid: int) -> None:
    await run(port, pid, [request_bytes(HIT)] * 200, connections=1)
    print(f"{'answers in turn':>16} {'exact hit p50 ms':>17} {'p99 ms':>8} {'pieces/s':>9} {'while hits come':>16}")
    for streams in (0, *STREAMS):
        p50, p99, quiet, busy = await measured(port, pid, streams)
        print(f"{streams:>16} {p50:>17.2f} {p99:>8.2f} {quiet:>9.0f} {busy:>16.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=SMALL)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    print(f"the model by itself: {alone(args.model, args.threads):.0f} tokens/s with {args.threads} thread(s)")
    with gateway(args.model, args.threads) as (port, pid):
        uvloop.run(figures(port, pid))


if __name__ == "__main__":
    main()
