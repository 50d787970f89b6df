"""Measures the cost of an embedding in this process and on a Triton server, with one and with 32 callers.

`make bench-embedders` starts its own Triton with the same weights on the CPU (row by row, as int8 needs). `--url
grpc://HOST:8001 --model embedder` measures another server instead, such as one with a GPU. `--gateways 4` measures four
gateways with 32 callers each on one server. Without `--url` that server then runs in float32, with batches.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.aio import InferenceServerClient

from gateway.adapters.embedding.embedders import BatchingEmbedder, InlineEmbedder
from gateway.cache.model_factory import build_embedder
from gateway.config.schema import EmbeddingModel
from gateway.ports import Embedder
from tests.fixtures.embedding_triton import embedding_triton
from tests.fixtures.float_triton import float_triton

WORDS = [
    "reset",
    "password",
    "cancel",
    "order",
    "refund",
    "invoice",
    "address",
    "delivery",
    "account",
    "card",
    "train",
    "ticket",
    "weather",
    "recipe",
]
CALLERS = (1, 32)
ROUNDS, TEXTS = 5, 320  # of each way; texts are some 19 tokens, and none comes twice


@dataclass(frozen=True, slots=True)
class Statistics:
    """The work since the server's start: texts, and passes for them."""

    requests: int
    rows: int
    executions: int


async def statistics_of(url: str, model: str) -> Statistics:
    """Return the counts of Triton itself. `url`: grpc:// or grpcs://HOST:PORT."""
    async with InferenceServerClient(url.partition("://")[2], ssl=url.startswith("grpcs")) as client:
        (found,) = (await client.get_inference_statistics(model)).model_stats
        return Statistics(found.inference_stats.success.count, found.inference_count, found.execution_count)


async def measure(embedder: Embedder, callers: int, draw: random.Random) -> tuple[float, float]:
    """Return p50 in ms, and texts per second."""
    took: list[float] = []

    async def ask() -> None:
        for _ in range(TEXTS // callers):
            text = f"{draw.getrandbits(30):x} " + " ".join(draw.choices(WORDS, k=9))
            started = time.perf_counter()
            await embedder.embed(text)
            took.append(time.perf_counter() - started)

    started = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(callers)))
    return statistics.median(took) * 1000, len(took) / (time.perf_counter() - started)


@contextlib.asynccontextmanager
async def server(url: str | None, *, batched: bool) -> AsyncIterator[str]:
    if url is not None:
        yield url
        return
    with tempfile.TemporaryDirectory() as folder:
        async with float_triton(Path(folder)) if batched else embedding_triton(Path(folder)) as triton:
            yield triton.url


async def embedders_of(sections: Mapping[str, EmbeddingModel]) -> dict[str, BatchingEmbedder | InlineEmbedder]:
    return {name: (await asyncio.to_thread(build_embedder, each))[1] for name, each in sections.items()}


async def compare(url: str | None, model: str) -> None:
    async with server(url, batched=False) as there:
        sections = {
            "in process (int8)": EmbeddingModel(adapter="onnx", timeout=30.0),
            "Triton": EmbeddingModel(adapter="triton", url=there, model=model, timeout=30.0),
        }
        embedders = await embedders_of(sections)
        draw, found = random.Random(7), dict[tuple[str, int], list[tuple[float, float]]]()
        try:
            for _ in range(ROUNDS):  # in turn: how busy the machine is meets all alike
                for callers in CALLERS:
                    for name, embedder in embedders.items():
                        found.setdefault((name, callers), []).append(await measure(embedder, callers, draw))
        finally:
            for embedder in embedders.values():
                embedder.close()
    print("| embedder | callers | p50 | texts/s |\n|---|---|---|---|")
    for (name, callers), rounds in sorted(found.items()):
        p50, rate = (statistics.median(each) for each in zip(*rounds, strict=True))
        print(f"| {name} | {callers} | {p50:.1f} ms | {rate:,.0f} |")


async def compare_shared(url: str | None, model: str, gateways: int) -> None:
    """Measure one gateway, then two, and so on; each round has one more."""
    print("| gateways | callers of each | p50 | texts/s, together | texts a request | requests a pass |")
    print("|---|---|---|---|---|---|")
    async with server(url, batched=True) as there:
        section = EmbeddingModel(adapter="triton", url=there, model=model, timeout=30.0)
        embedders = await embedders_of({str(i): section for i in range(gateways)})
        try:
            for count in range(1, gateways + 1):
                before, draw = await statistics_of(there, model), random.Random(count)
                some = list(embedders.values())[:count]
                rows = await asyncio.gather(*(measure(embedder, CALLERS[-1], draw) for embedder in some))
                after = await statistics_of(there, model)
                requests, passes = after.requests - before.requests, after.executions - before.executions
                texts = after.rows - before.rows
                p50, rate = statistics.median(row[0] for row in rows), sum(row[1] for row in rows)
                print(
                    f"| {count} | {CALLERS[-1]} | {p50:.1f} ms | {rate:,.0f} | {texts / requests:.1f} | "
                    f"{requests / passes:.2f} |"
                )
        finally:
            for embedder in embedders.values():
                embedder.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="of a Triton that runs already")
    parser.add_argument("--model", default="embedder", help="its name there; default: embedder")
    parser.add_argument("--gateways", type=int, help="how many ask one server at once, at most")
    given = parser.parse_args()
    if given.gateways is None:
        asyncio.run(compare(given.url, given.model))
    else:
        asyncio.run(compare_shared(given.url, given.model, given.gateways))
