"""Text to the token ids of all-MiniLM-L6-v2, with what `Embedding` says of how it was read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from unicodedata import category

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer

MAX_TOKENS = 256  # what the model was trained to read, [CLS] and [SEP] included

# More characters than 256 tokens need: over 442 files of English and Python at most 1,179.
# The tokenizer reads all that it is given: 0.3 ms for 1,000 characters, 1.2 ms for 4,000, 2.4 ms for 8,000.
MAX_CHARACTERS = 4096


# Unicode categories of emoji and what modifies them.
TONE = frozenset({"So", "Sk", "Cf", "Mn"})


@dataclass(frozen=True, slots=True)
class TokenizedText:
    ids: list[int]
    truncated: bool
    unreadable: bool


class TextTokenizer:
    """`tokenizer`: a tokenizer.json."""

    def __init__(self, tokenizer: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._tokenizer.no_padding()  # the file says: pad everything to 128
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._unknown: int | None = self._tokenizer.token_to_id("[UNK]")

    def read(self, text: str) -> TokenizedText:
        # JSON can hold half a surrogate pair; the tokenizer refuses it, and one text must not fail the others' batch.
        read = self._tokenizer.encode(text[:MAX_CHARACTERS].encode("utf-8", "replace").decode())
        ids = read.ids  # a new list each time
        truncated = len(text) > MAX_CHARACTERS or (len(ids) == MAX_TOKENS and bool(read.overflowing))
        return TokenizedText(ids, truncated, self._unknown in ids and self._unreadable(text, read))

    def _unreadable(self, text: str, read: Encoding) -> bool:
        """Whether something that says something is unknown: in Chinese two of three tokens are, a sum sign is; an emoji
        is a tone of voice."""
        unknown = (span for span, each in zip(read.offsets, read.ids, strict=True) if each == self._unknown)
        return any(category(sign) not in TONE for start, end in unknown for sign in text[start:end])


# Two questions to the token ids that the cross-encoder reads together.
MAX_PAIR_TOKENS = 128  # of both questions, [CLS] and twice [SEP] included: the positions that the weights hold

MAX_PAIR_CHARACTERS = 2048  # of one question: of more, 128 tokens hold not even half

CLS, SEP = 101, 102

Ids = npt.NDArray[np.int64]


class PairTokenizer:
    """`tokenizer`: the embedder's tokenizer.json. Raises what the library does where that cannot be read."""

    def __init__(self, tokenizer: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def ids(self, text: str) -> list[int] | None:
        """None where the text is too long. JSON can hold half a surrogate pair, which the tokenizer refuses."""
        if len(text) > MAX_PAIR_CHARACTERS:
            return None
        ids: list[int] = self._tokenizer.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False).ids
        return ids


def join_pair(one: list[int] | None, two: list[int] | None) -> tuple[Ids, Ids] | None:
    """ids and types, (length,), of "[CLS] first [SEP] second [SEP]"; the shorter question is the first. None where they
    are too long to be read to their ends."""
    if one is None or two is None or len(one) + len(two) + 3 > MAX_PAIR_TOKENS:
        return None
    first, second = sorted((one, two), key=lambda ids: (len(ids), ids))
    types = np.zeros(len(first) + len(second) + 3, np.int64)
    types[len(first) + 2 :] = 1
    return np.array([CLS, *first, SEP, *second, SEP], np.int64), types
