"""What a text costs in this process and on a Triton server, one and 32 callers at a time.

`make bench-embedders`: a Triton of its own with the same weights on this machine's CPU (row by row, as int8 wants it).
`--url grpc://HOST:8001 --model embedder` measures a server of yours, such as one with a GPU, instead.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from gateway.composition.parts import build_embedder
from gateway.config.schema import EmbeddingModel
from gateway.ports import Embedder
from tests.fixtures.embedding_triton import embedding_triton

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


async def measure(embedder: Embedder, callers: int, draw: random.Random) -> tuple[float, float]:
    """-> (p50 in ms, texts a second)."""
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
async def server(url: str | None) -> AsyncIterator[str]:
    if url is not None:
        yield url
        return
    with tempfile.TemporaryDirectory() as folder:
        async with embedding_triton(Path(folder)) as triton:
            yield triton.url


async def main(url: str | None, model: str) -> None:
    async with server(url) as there:
        sections = {
            "in process (int8)": EmbeddingModel(adapter="onnx", timeout=30.0),
            "Triton": EmbeddingModel(adapter="triton", url=there, model=model, timeout=30.0),
        }
        embedders = {name: (await asyncio.to_thread(build_embedder, each))[1] for name, each in sections.items()}
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="of a Triton that runs already")
    parser.add_argument("--model", default="embedder", help="its name there; default: embedder")
    given = parser.parse_args()
    asyncio.run(main(given.url, given.model))
