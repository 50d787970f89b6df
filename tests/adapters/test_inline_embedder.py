"""An encoder that takes microseconds is asked where the question is."""

from __future__ import annotations

import logging
import threading

import numpy as np
import pytest

from gateway.adapters.embedding.embedders import InlineEmbedder
from gateway.adapters.embedding.hashing import HashEncoder
from gateway.entries import Embedding
from gateway.errors import EmbedderUnavailable


async def test_it_gives_what_its_encoder_gives_in_the_thread_that_asks() -> None:
    threads: list[int] = []

    class Noted(HashEncoder):
        def encode_text(self, text: str) -> Embedding:
            threads.append(threading.get_ident())
            return super().encode_text(text)

    encoder = Noted()
    embedder = InlineEmbedder(encoder)
    assert (embedder.fingerprint, embedder.dimension) == (encoder.fingerprint, encoder.dimension)
    found = await embedder.embed("what is a scope?")
    assert np.array_equal(found.vector, HashEncoder().encode(["what is a scope?"])[0].vector)
    assert threads == [threading.get_ident()]


async def test_an_encoder_that_fails_makes_a_miss_and_its_text_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(HashEncoder):
        def encode_text(self, text: str) -> Embedding:
            raise ValueError(f"cannot read {text}")

    with caplog.at_level(logging.ERROR), pytest.raises(EmbedderUnavailable, match="failed on this text"):
        await InlineEmbedder(Broken()).embed("a secret question")
    assert "secret" not in caplog.text
    assert "ValueError" in caplog.text


async def test_once_closed_it_answers_nobody() -> None:
    embedder = InlineEmbedder(HashEncoder())
    embedder.close()
    embedder.close()
    with pytest.raises(EmbedderUnavailable, match="closed"):
        await embedder.embed("anything")
