"""Feature hashing instead of a model, for benchmarks and fast tests. It knows words, not meanings."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Sequence
from zlib import crc32

import numpy as np

from gateway.entries import Embedding, Vector

MAX_WORDS = 256  # like the limit of the real model, so that truncation can be tested without it
MAX_CHARACTERS = 4096
WORD = re.compile(r"\w+")
# Translation of ASCII text: letters become lower case; digits and `_` stay; all other characters become spaces.
_FOLDED = bytes(ord(c.lower()) if c.isascii() and WORD.match(c) else 32 for c in map(chr, range(256)))


class HashEncoder:
    """`HashEncoder` hashes words. The same text gives the same vector on every machine. It implements `TextEncoder`."""

    def __init__(self, dimension: int = 384) -> None:
        self.dimension = dimension
        self.fingerprint = f"hash/{dimension}/v2"

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        return [self.encode_text(text) for text in texts]

    def encode_text(self, text: str) -> Embedding:
        words = _words(text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS])
        read = words[:MAX_WORDS]
        truncated = len(words) > MAX_WORDS or len(text) > MAX_CHARACTERS
        return Embedding(self._vector(read or [_utf8(text.strip())]), len(read), truncated)

    def _vector(self, words: Sequence[bytes]) -> Vector:
        """Return a vector: float32 (dimension,), unit length."""
        hashes = [*map(crc32, words)]
        # of pairs, the later word first, so that "cup cake" differs from "cupcake"
        hashes += map(crc32, words, hashes[1:])
        dimension = self.dimension
        # Half of the features count negatively, so that collisions do not add up. Reading the hashes as signed gives
        # that half.
        places = np.frombuffer(array("L", hashes), np.int64) % (2 * dimension)
        counts = np.bincount(places, minlength=2 * dimension)
        vector = (counts[:dimension] - counts[dimension:]).astype(np.float32)
        norm = math.sqrt(vector.dot(vector))
        if norm == 0.0:  # all features cancelled out
            vector[0] = norm = 1.0
        vector /= norm
        return vector


def _words(text: str) -> list[bytes]:
    """Return the words in lower case, as UTF-8."""
    if text.isascii():  # takes a quarter of the time
        return text.encode().translate(_FOLDED).split()
    return [_utf8(word) for word in WORD.findall(text.lower())]


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")
