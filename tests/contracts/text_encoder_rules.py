"""What every `TextEncoder` keeps, as plain functions of an encoder: they run under pytest and, for encoders whose
dependencies live in another environment, as `python -m tests.contracts.text_encoder_rules MODEL_DIR` there."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

import numpy as np

from gateway.errors import StartupError
from gateway.ports import TextEncoder

TEXTS = (
    "How do I reset my password?",
    "",
    "?",
    "Wie kann ich mein Passwort zurücksetzen?",
    "如何重置我的密码？",
    "def add(a, b):\n    return a + b",
    "Explain the difference between a mutex and a semaphore, with one example of each, in plain words.",
    "a lone surrogate \udce9 in the text",
)
LONG = "tell me about refunds " * 2000


def vectors_have_the_stated_shape_and_unit_length(encoder: TextEncoder) -> None:
    """Inner products are cosines: float32 of shape (dimension,), length 1, for the empty text too."""
    for embedding in encoder.encode(TEXTS):
        assert embedding.vector.dtype == np.float32
        assert embedding.vector.shape == (encoder.dimension,)
        assert abs(float(np.linalg.norm(embedding.vector)) - 1) < 1e-4


def results_keep_the_order_of_the_texts(encoder: TextEncoder) -> None:
    """One embedding a text, in order, whatever order is good for the hardware."""
    together = encoder.encode(TEXTS)
    assert len(together) == len(TEXTS)
    for text, embedding in zip(TEXTS, together, strict=True):
        (alone,) = encoder.encode([text])
        assert float(alone.vector @ embedding.vector) > 0.999


def no_texts_give_no_embeddings(encoder: TextEncoder) -> None:
    assert encoder.encode([]) == []


def encoding_again_gives_the_same_vector(encoder: TextEncoder) -> None:
    """A stored vector is compared with one made later."""
    first, second = encoder.encode(TEXTS[:1]), encoder.encode(TEXTS[:1])
    np.testing.assert_array_equal(first[0].vector, second[0].vector)


def a_text_longer_than_the_limit_is_marked_truncated(encoder: TextEncoder) -> None:
    """A vector that stands for the head of a text alone must never decide a hit."""
    short, long = encoder.encode([TEXTS[0], LONG])
    assert not short.truncated
    assert long.truncated
    assert 0 < short.tokens < long.tokens <= 512


def a_text_is_nearer_to_itself_than_to_another(encoder: TextEncoder) -> None:
    a, b = encoder.encode([TEXTS[0], TEXTS[6]])
    assert float(a.vector @ b.vector) < 0.9


def the_fingerprint_names_the_encoder(encoder: TextEncoder) -> None:
    """It is part of storage keys: printable, without blanks, the same every time."""
    assert encoder.fingerprint == encoder.fingerprint
    assert encoder.fingerprint.isprintable()
    assert " " not in encoder.fingerprint


RULES: tuple[Callable[[TextEncoder], None], ...] = (
    vectors_have_the_stated_shape_and_unit_length,
    results_keep_the_order_of_the_texts,
    no_texts_give_no_embeddings,
    encoding_again_gives_the_same_vector,
    a_text_longer_than_the_limit_is_marked_truncated,
    a_text_is_nearer_to_itself_than_to_another,
    the_fingerprint_names_the_encoder,
)


def main(model: str) -> None:
    module = importlib.import_module("gateway.adapters.embedding.sentence_transformers")
    encoder = module.SentenceTransformersEncoder(model, "cpu")
    for rule in RULES:
        rule(encoder)
        print("kept:", rule.__name__)
    print("fingerprint:", encoder.fingerprint)
    if importlib.import_module("torch").cuda.is_available():
        on_gpu = module.SentenceTransformersEncoder(model, "cuda")
        for rule in RULES:
            rule(on_gpu)
        print("cuda: every rule")
        return
    try:
        module.SentenceTransformersEncoder(model, "cuda")
    except StartupError as error:
        print("cuda:", error)


if __name__ == "__main__":
    main(sys.argv[1])
