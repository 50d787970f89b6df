"""Feature hashing instead of a model: microseconds, no understanding. For benches and fast tests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise

import numpy as np

from gateway.messages import Embedding

_WORD = re.compile(r"\w+", re.UNICODE)


class HashEncoder:
    """Lower-cased words and pairs of words, each hashed to one signed dimension."""

    def __init__(self, dimension: int = 384) -> None:
        self.dimension = dimension
        self.fingerprint = f"hash/{dimension}/v1"

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> Embedding:
        words = _WORD.findall(text.lower())
        vector = np.zeros(self.dimension, dtype=np.float32)
        for gram in (*words, *map(" ".join, pairwise(words))):
            digest = int.from_bytes(blake2b(gram.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
            vector[digest % self.dimension] += 1.0 if digest >> 63 else -1.0
        norm = float(np.linalg.norm(vector))
        if norm == 0.0:  # no words, or words that cancel out: any fixed direction is as good as another
            vector[0] = norm = 1.0
        return Embedding(vector / np.float32(norm), len(words), truncated=False)
