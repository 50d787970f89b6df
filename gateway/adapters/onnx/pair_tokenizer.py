"""Two questions to the token ids that the cross-encoder reads together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

MAX_TOKENS = 128  # of both questions, [CLS] and twice [SEP] included: the positions that the weights hold
MAX_CHARACTERS = 2048  # of one question: of more, 128 tokens hold not even half
CLS, SEP = 101, 102
Ids = npt.NDArray[np.int64]


class PairReader:
    """`tokenizer`: the embedder's tokenizer.json. Raises what the library does where that cannot be read."""

    def __init__(self, tokenizer: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def ids(self, text: str) -> list[int] | None:
        """None where the text is too long. JSON can hold half a surrogate pair, which the tokenizer refuses."""
        if len(text) > MAX_CHARACTERS:
            return None
        ids: list[int] = self._tokenizer.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False).ids
        return ids


def joined(one: list[int] | None, two: list[int] | None) -> tuple[Ids, Ids] | None:
    """ids and types, (length,), of "[CLS] first [SEP] second [SEP]"; the shorter question is the first. None where they
    are too long to be read to their ends."""
    if one is None or two is None or len(one) + len(two) + 3 > MAX_TOKENS:
        return None
    first, second = sorted((one, two), key=lambda ids: (len(ids), ids))
    types = np.zeros(len(first) + len(second) + 3, np.int64)
    types[len(first) + 2 :] = 1
    return np.array([CLS, *first, SEP, *second, SEP], np.int64), types
