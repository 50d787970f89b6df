"""Feature hashing instead of a model: for benches and fast tests. It knows words, not meanings."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Sequence
from zlib import crc32

import numpy as np

from gateway.messages import Embedding, Vector

MAX_WORDS = 256  # like the real model's limit, so that what depends on truncation can be tried without it
MAX_CHARACTERS = 4096
WORD = re.compile(r"\w+")
# Of a text in ASCII: small letters, digits and `_` as they are, all that is no part of a word a space.
_FOLDED = bytes(ord(c.lower()) if c.isascii() and WORD.match(c) else 32 for c in map(chr, range(256)))


class HashEncoder:
    """Implements `TextEncoder`: the same text gives the same vector on every machine and in every process."""

    def __init__(self, dimension: int = 384) -> None:
        self.dimension = dimension
        self.fingerprint = f"hash/{dimension}/v2"

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        return [self.encode_one(text) for text in texts]

    def encode_one(self, text: str) -> Embedding:
        words = _words(text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS])
        read = words[:MAX_WORDS]
        truncated = len(words) > MAX_WORDS or len(text) > MAX_CHARACTERS
        return Embedding(self._vector(read or [_utf8(text.strip())]), len(read), truncated)

    def _vector(self, words: Sequence[bytes]) -> Vector:
        """float32 (dimension,), unit length."""
        hashes = [*map(crc32, words)]
        hashes += map(crc32, words, hashes[1:])  # of pairs, the later word first: "cup cake" is no "cupcake"
        dimension = self.dimension
        # Half of the features count against: so collisions do not add up. Read as signed, of which they have half.
        places = np.frombuffer(array("L", hashes), np.int64) % (2 * dimension)
        counts = np.bincount(places, minlength=2 * dimension)
        vector = (counts[:dimension] - counts[dimension:]).astype(np.float32)
        norm = math.sqrt(vector.dot(vector))
        if norm == 0.0:  # every feature met its opposite
            vector[0] = norm = 1.0
        vector /= norm
        return vector


def _words(text: str) -> list[bytes]:
    """In small letters, as UTF-8."""
    if text.isascii():  # a quarter of the time
        return text.encode().translate(_FOLDED).split()
    return [_utf8(word) for word in WORD.findall(text.lower())]


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")
