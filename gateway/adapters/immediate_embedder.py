"""Embeds where it is asked: for encoders that take less than the way to another thread."""

from __future__ import annotations

import logging

from gateway.errors import EmbedderUnavailable
from gateway.messages import Embedding
from gateway.ports import TextEncoder

LOG = logging.getLogger(__name__)


class ImmediateEmbedder:
    """Implements `Embedder` over a `TextEncoder` that takes microseconds."""

    def __init__(self, encoder: TextEncoder) -> None:
        self.fingerprint = encoder.fingerprint
        self.dimension = encoder.dimension
        self._encoder = encoder
        self._closed = False

    async def embed(self, text: str) -> Embedding:
        """Raises `EmbedderUnavailable`: closed, or the encoder failed."""
        if self._closed:
            raise EmbedderUnavailable("the embedder is closed")
        try:
            (embedding,) = self._encoder.encode((text,))
        except Exception as error:
            LOG.error("the encoder failed on a text: %s", type(error).__name__)  # a message may quote the prompt
            raise EmbedderUnavailable("the encoder failed on this text") from None
        return embedding

    def at_hand(self, text: str) -> Embedding | None:
        try:
            return None if self._closed else self._encoder.encode((text,))[0]
        except Exception:  # `embed` says what is wrong
            return None

    def close(self) -> None:
        """May be called twice."""
        self._closed = True
