"""Turns the question into a vector, for the semantic lookup, for the index and for the complexity estimate."""

from __future__ import annotations

from collections.abc import Awaitable

from gateway.errors import EmbedderUnavailable
from gateway.messages import Bypass, Embedding, Request, Response
from gateway.pipeline import Handler
from gateway.ports import Embedder


class Embed:
    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    def __call__(self, request: Request, forward: Handler) -> Awaitable[Response]:
        return self._embedded(request, forward) if request.embedding is None else forward(request)

    async def _embedded(self, request: Request, forward: Handler) -> Response:
        call = request.call
        if call is None or call.question is None:
            request.trace.note = request.trace.note or (call.no_question if call else None)
            return await forward(request)
        try:
            with request.trace.span("embed"):
                embedding = await self._embedder.embed(call.question)
        except EmbedderUnavailable:
            request.trace.note = Bypass.EMBEDDER
            return await forward(request)
        request.trace.embedding = embedding
        if embedding.partial:
            request.trace.note = why_partial(embedding)
        return await forward(request.embedded(embedding))


def why_partial(embedding: Embedding) -> Bypass | None:
    """Why nothing may be matched by it."""
    if embedding.truncated:
        return Bypass.TOO_LONG
    return Bypass.UNREADABLE if embedding.unreadable else None
