"""Feature hashing instead of a model: for benches and fast tests. It knows words, not meanings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise

import numpy as np

from gateway.messages import Embedding, Vector

MAX_WORDS = 256  # like the real model's limit, so that what depends on truncation can be tried without it
MAX_CHARACTERS = 4096
WORD = re.compile(r"\w+")


class HashEncoder:
    """Implements `TextEncoder`: the same text gives the same vector on every machine and in every process."""

    def __init__(self, dimension: int = 384) -> None:
        self.dimension = dimension
        self.fingerprint = f"hash/{dimension}/v1"

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> Embedding:
        words = WORD.findall(text[:MAX_CHARACTERS].lower())
        read = words[:MAX_WORDS]
        truncated = len(words) > MAX_WORDS or len(text) > MAX_CHARACTERS
        return Embedding(self._vector(read or [text.strip()]), len(read), truncated)

    def _vector(self, words: Sequence[str]) -> Vector:
        """float32 (dimension,), unit length."""
        features = [*words, *map(" ".join, pairwise(words))]
        hashed = b"".join([blake2b(each.encode("utf-8", "replace"), digest_size=8).digest() for each in features])
        digests = np.frombuffer(hashed, ">u8")
        # The sign, from a bit of its own, keeps collisions from adding up.
        signs = np.where(digests & 1, 1.0, -1.0)
        places = ((digests >> 1) % self.dimension).astype(np.intp)
        vector = np.bincount(places, signs, self.dimension).astype(np.float32)
        norm = float(np.linalg.norm(vector))
        if norm == 0.0:  # every feature met its opposite
            vector[0] = norm = 1.0
        return vector / np.float32(norm)
