"""Any sentence-transformers model, on a CPU or a GPU.

The extra `nearhit[sentence-transformers]` installs torch. The composition root imports this module only if the
configuration uses it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from gateway.entries import Embedding
from gateway.errors import StartupError

BATCH = 32  # texts per forward pass; the library sorts them by length


class SentenceTransformersEncoder:
    """`SentenceTransformersEncoder` implements `TextEncoder`. `model` is a directory or a hub name. `device` is torch's
    name, or None if torch chooses.

    Raise `StartupError` if a CUDA device is configured but missing. Raise the library's errors (OSError, ValueError) if
    the model cannot be loaded.
    """

    def __init__(self, model: str, device: str | None = None) -> None:
        if device is not None and device.startswith("cuda") and not torch.cuda.is_available():
            raise StartupError(
                f"embedder.device {device}: torch {torch.__version__} finds no GPU, expected one with its driver, and "
                "a torch built for CUDA: pip install 'nearhit[sentence-transformers]', or device: cpu"
            )
        self._model = SentenceTransformer(model, device=device)
        dimension = self._model.get_embedding_dimension()
        if dimension is None:
            raise ValueError(f"the model {model} does not state the dimension of its embeddings")
        self.dimension = int(dimension)
        self.fingerprint = f"{Path(model).name}/sentence-transformers/{_weights_digest(self._model)[:12]}"

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        """Return one embedding per text, in order: vectors float32 (dimension,), unit length. `tokens` counts the
        tokens read."""
        if not texts:
            return []
        # JSON can contain half a surrogate pair, which the tokenizer rejects. One such text must not fail the whole
        # batch.
        readable = [text.encode("utf-8", "replace").decode() for text in texts]
        vectors = self._model.encode(
            readable, batch_size=BATCH, normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False
        )
        limit = int(self._model.max_seq_length or 2**31)
        lengths = [len(ids) for ids in self._model.tokenizer(readable, truncation=False, verbose=False)["input_ids"]]
        return [
            Embedding(np.array(vector, np.float32), min(length, limit), length > limit)
            for vector, length in zip(vectors, lengths, strict=True)
        ]


def _weights_digest(model: SentenceTransformer) -> str:
    """Return the hex SHA-256 over all weights, regardless of their file format (90 MB: 0.1 s)."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
