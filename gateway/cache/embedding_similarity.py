"""How near two answers are, by their embeddings."""

from __future__ import annotations

import asyncio

from gateway.cache.answer_similarity import joined, passages
from gateway.errors import EmbedderUnavailable
from gateway.messages import Vector
from gateway.ports import Embedder


async def similarity(embedder: Embedder, a: str, b: str, *, rest: float = 0.0) -> float | None:
    """The cosine, in [-1, 1]; None where the embedder cannot tell. `rest`: the time left to others after each passage,
    as a multiple of what it took."""
    first, second = await embedded(embedder, a, rest=rest), await embedded(embedder, b, rest=rest)
    return None if first is None or second is None else float(first @ second)


async def embedded(embedder: Embedder, text: str, *, rest: float = 0.0) -> Vector | None:
    """None where the model is not there, or does not read a passage to its end: what is not read may be the
    difference."""
    clock, vectors = asyncio.get_running_loop(), []
    for passage in passages(text):
        begun = clock.time()
        try:
            embedding = await embedder.embed(passage)
        except EmbedderUnavailable:
            return None
        if embedding.partial:
            return None
        vectors.append(embedding.vector)
        if rest > 0:
            await asyncio.sleep(rest * (clock.time() - begun))
    return joined(vectors) if vectors else None
