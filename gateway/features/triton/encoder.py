"""An embedding model on a Triton server: gateways without their own weights share it and its GPU.

This process tokenizes the text; the server turns ids into vectors. Only the tokenizer knows how a text was read
(`Embedding.truncated`, `unreadable`), and ONNX and TensorRT graphs take ids. `deploy/triton/models/embedder` is such a
model.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gateway.adapters.onnx.model_files import ModelMissing, reading_beside, sha256_of
from gateway.adapters.onnx.tokenizer import TextTokenizer
from gateway.entries import Embedding
from gateway.errors import EmbedderUnavailable, ModelUnavailable, StartupError
from gateway.features.triton.served_model import CachedMetadata, InputSpec, Matrix, MetadataCache, TokenRow, TritonModel
from gateway.ports import Clock

FORM = InputSpec(
    "embedding model",
    "sentence_embedding",
    types=False,
    log=logging.getLogger("nearhit.embedder"),
    degraded_behaviour="requests are exact hits or misses",
)
# Probes that identify the model: short texts on many subjects.
PROBES = (
    "How do I reset my password?", "What is the capital of France?", "Write a haiku about rain.",
    "Translate good morning into German.", "Is my parcel delayed?", "Explain recursion in Python.",
    "Cancel my subscription, please.", "The patient has a fever and a cough.", "12 * 7 + 3",
    "Who won the match last night?", "SELECT name FROM users WHERE id = 4", "Recommend a book on gardening.",
    "Summarise the contract in two sentences.", "My card was charged twice.", "How far away is the moon?",
    "What should I cook with rice and eggs?",
)  # fmt: skip


class TritonEncoder:
    """`TritonEncoder` implements `TextEncoder`. `url` is grpc:// or grpcs://HOST:PORT. `tokenizer` is the model's
    tokenizer.json. `timeout_s` covers one call of `encode`, in seconds.

    The constructor asks the server for the model. `data_dir` caches its metadata for a later start without the server.
    It raises `ModelMissing` without the tokenizer. It raises `StartupError` if the server does not answer and never
    has, or if the model does not map ids to sentence embeddings.
    """

    def __init__(
        self, url: str, model: str, tokenizer: Path, *, timeout_s: float, clock: Clock, data_dir: Path | None = None
    ) -> None:
        self._reader, read_by = load_reader(tokenizer)
        memory = None if data_dir is None else MetadataCache(data_dir, FORM.kind, url, model, read_by)
        known_metadata = None if memory is None else memory.load()
        described = None if known_metadata is None else known_metadata.described
        self._model = TritonModel(
            url, model, FORM, timeout_s=timeout_s, clock=clock, known_metadata=described, postprocess=_normalise
        )
        probes = [TokenRow(self._reader.read(text).ids) for text in PROBES]
        if known_metadata is None or not self._model.is_away:
            vectors = self._model.probe(probes)
            known_metadata = CachedMetadata(self._model.described, fingerprint_vectors(vectors), vectors.shape[1])
            if memory is not None:
                memory.save(known_metadata)
        proof, described = known_metadata.proof, self._model.described
        self._model.verify_against(probes, lambda vectors: fingerprint_vectors(vectors) == proof)
        self.dimension = known_metadata.dimension
        about = f"{read_by} {described.platform} {self.dimension} {proof}"
        digest = hashlib.sha256(about.encode()).hexdigest()
        self.fingerprint = f"{model}/triton-{described.version}/{digest[:12]}"

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        """Return one embedding per text, in order: vectors float32 (dimension,), unit length. `tokens` counts the
        tokens read.

        Texts go in one request, or in as few as the model's batch size allows. Raise `EmbedderUnavailable`.
        """
        if not texts:
            return []
        read = [self._reader.read(text) for text in texts]
        try:
            vectors = self._model.infer([TokenRow(each.ids) for each in read])
        except ModelUnavailable as error:
            raise EmbedderUnavailable(str(error)) from None
        return [
            Embedding(vector, len(each.ids), each.truncated, each.unreadable)
            for vector, each in zip(vectors, read, strict=True)
        ]


def load_reader(tokenizer: Path) -> tuple[TextTokenizer, str]:
    """Return the tokenizer and the file's SHA-256. Raise `ModelMissing` or `StartupError`."""
    try:
        return TextTokenizer(tokenizer, reading_beside(tokenizer)), sha256_of(tokenizer)
    except Exception as error:  # the library raises plain exceptions, also if the file is missing
        if not tokenizer.is_file():
            raise ModelMissing(f"the tokenizer {tokenizer} is missing: run `nearhit model fetch`") from None
        raise StartupError(f"the tokenizer {tokenizer} cannot be read: {error}"[:300]) from None


def _normalise(vectors: Matrix) -> Matrix:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not lengths.all():
        raise ModelUnavailable("the embedding model sent vectors of zeros")
    return np.asarray(vectors / lengths, np.float32)


def fingerprint_vectors(vectors: Matrix) -> str:
    """Return a fingerprint of vectors: for each row the index of the element with the largest magnitude, and its sign.
    It is the same for two computations of one model, and differs between models.

    A float error of 1e-6 changes it only if two elements are that close. On 16 rows of all-MiniLM-L6-v2, noise as large
    as that of int8 (cosine 0.993) changes some. tests/features/triton/test_encoder.py checks both.
    """
    largest = np.abs(vectors).argmax(axis=1)
    return " ".join(f"{'-' if row[at] < 0 else '+'}{at}" for row, at in zip(vectors, largest, strict=True))
