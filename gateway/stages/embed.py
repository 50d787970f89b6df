"""Turns the question into a vector, for the semantic lookup, for the index and for the complexity estimate."""

from __future__ import annotations

from collections.abc import Awaitable

from gateway.errors import EmbedderUnavailable
from gateway.messages import Bypass, Embedding, Request, Response
from gateway.pipeline import Handler
from gateway.ports import Clock, Embedder


class Embed:
    def __init__(self, embedder: Embedder, clock: Clock) -> None:
        self._embedder = embedder
        self._clock = clock

    def __call__(self, request: Request, forward: Handler) -> Awaitable[Response]:
        return self._embedded(request, forward) if request.embedding is None else forward(request)

    def at_hand(self, request: Request) -> Embedding | None:
        """Of the question, where that takes microseconds."""
        question = None if request.call is None else request.call.question
        if question is None:
            return None
        started = self._clock.monotonic()
        embedding = self._embedder.at_hand(question)
        if embedding is not None:
            request.trace.since("embed", started)
            self._note(request, embedding)
        return embedding

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
        self._note(request, embedding)
        return await forward(request.embedded(embedding))

    def _note(self, request: Request, embedding: Embedding) -> None:
        request.trace.embedding = embedding
        if embedding.partial:
            request.trace.note = Bypass.TOO_LONG if embedding.truncated else Bypass.UNREADABLE
