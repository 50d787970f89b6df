"""Any sentence-transformers model, on a CPU or a GPU.

The extra `nearhit[sentence-transformers]` brings torch: the composition root imports this module only when the
configuration asks for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from gateway.errors import StartupError
from gateway.messages import Embedding

BATCH = 32  # texts a forward pass; the library sorts by length itself


class SentenceTransformersEncoder:
    """Implements `TextEncoder`. `model` is a directory or a hub name; `device` as torch names them, None: its choice.

    Raises `StartupError` where a CUDA device is asked for and there is none, and what the library raises (OSError,
    ValueError) when the model cannot be loaded.
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
            raise ValueError(f"the model {model} does not say how many dimensions its embeddings have")
        self.dimension = int(dimension)
        self.fingerprint = f"{Path(model).name}/sentence-transformers/{_weights_digest(self._model)[:12]}"

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        """One embedding a text, in order: vectors float32 (dimension,), unit length. `tokens` counts what was read."""
        if not texts:
            return []
        # JSON can hold half a surrogate pair; the tokenizer refuses it, and one text must not fail the others' batch.
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
    """Hex SHA-256 over every weight, whatever file it came from (90 MB: 0.1 s)."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
