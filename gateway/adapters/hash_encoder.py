"""Feature hashing instead of a model: for benches and fast tests. It knows words, not meanings."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise
from sys import byteorder

import numpy as np

from gateway.messages import Embedding, Vector

MAX_WORDS = 256  # like the real model's limit, so that what depends on truncation can be tried without it
MAX_CHARACTERS = 4096
KNOWN = 8192  # words and pairs of words whose place is remembered: 2 MB, and a third of the time
WORD = re.compile(r"\w+")
# Of a text in ASCII: small letters, digits and `_` as they are, all that is no part of a word a space.
_FOLDED = bytes(ord(c.lower()) if c.isascii() and WORD.match(c) else 32 for c in map(chr, range(256)))


class HashEncoder:
    """Implements `TextEncoder`: the same text gives the same vector on every machine and in every process."""

    def __init__(self, dimension: int = 384) -> None:
        self.dimension = dimension
        self.fingerprint = f"hash/{dimension}/v1"
        self._places: dict[bytes, bytes] = {}  # as numpy reads them: so they are put together without a loop

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> Embedding:
        words = _words(text[:MAX_CHARACTERS])
        read = words[:MAX_WORDS]
        truncated = len(words) > MAX_WORDS or len(text) > MAX_CHARACTERS
        return Embedding(self._vector(read or [_utf8(text.strip())]), len(read), truncated)

    def _vector(self, words: Sequence[bytes]) -> Vector:
        """float32 (dimension,), unit length."""
        features = [*words, *map(b" ".join, pairwise(words))]
        known, dimension = self._places, self.dimension
        try:
            places = b"".join(map(known.__getitem__, features))
        except KeyError:
            places = self._placed(features)
        counts = np.bincount(np.frombuffer(places, np.int64), minlength=2 * dimension)
        vector = (counts[:dimension] - counts[dimension:]).astype(np.float32)
        norm = math.sqrt(vector.dot(vector))
        if norm == 0.0:  # every feature met its opposite
            vector[0] = norm = 1.0
        return vector / np.float32(norm)

    def _placed(self, features: Sequence[bytes]) -> bytes:
        """Where each counts, as int64; remembered."""
        known = self._places
        if len(known) > KNOWN:
            known.clear()
        for feature in features:
            if feature not in known:  # written out: a call for each would cost as much as the rest
                digest = int.from_bytes(blake2b(feature, digest_size=8).digest(), "big")
                # Half of the features count against: so collisions do not add up.
                place = (digest >> 1) % self.dimension + (0 if digest & 1 else self.dimension)
                known[feature] = place.to_bytes(8, byteorder)
        return b"".join([known[feature] for feature in features])


def _words(text: str) -> list[bytes]:
    """In small letters, as UTF-8."""
    if text.isascii():  # a quarter of the time
        return text.encode().translate(_FOLDED).split()
    return [_utf8(word) for word in WORD.findall(text.lower())]


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")
