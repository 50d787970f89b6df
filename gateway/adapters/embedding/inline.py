"""Embeds where it is asked: for encoders that take less than the way to another thread."""

from __future__ import annotations

import logging

from gateway.errors import EmbedderUnavailable
from gateway.messages import Embedding
from gateway.ports import ImmediateEncoder

LOG = logging.getLogger(__name__)


class ImmediateEmbedder:
    """Implements `Embedder`."""

    def __init__(self, encoder: ImmediateEncoder) -> None:
        self.fingerprint = encoder.fingerprint
        self.dimension = encoder.dimension
        self._encoder = encoder
        self._closed = False

    async def embed(self, text: str, owner: str = "") -> Embedding:
        """Raises `EmbedderUnavailable`: closed, or the encoder failed."""
        if self._closed:
            raise EmbedderUnavailable("the embedder is closed")
        try:
            return self._encoder.encode_one(text)
        except Exception as error:
            LOG.error("the encoder failed on a text: %s", type(error).__name__)  # a message may quote the prompt
            raise EmbedderUnavailable("the encoder failed on this text") from None

    def embed_nowait(self, text: str, owner: str = "") -> Embedding | None:
        try:
            return None if self._closed else self._encoder.encode_one(text)
        except Exception:  # `embed` says what is wrong
            return None

    def close(self) -> None:
        """May be called twice."""
        self._closed = True
