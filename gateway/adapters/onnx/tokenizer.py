"""Converts text to the token ids of an embedding model, and reports how it was read, as `Embedding` needs it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from unicodedata import category

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer

from gateway.adapters.onnx.model_files import Reading

# More characters than a token needs: in 442 files of English and Python, 256 tokens have at most 1,179. The tokenizer
# reads all its input: 0.3 ms for 1,000 characters, 1.2 ms for 4,000, 2.4 ms for 8,000.
MAX_CHARACTERS_PER_TOKEN = 16

# Unicode categories of emoji and their modifiers.
TONE = frozenset({"So", "Sk", "Cf", "Mn"})


def _open(file: Path, max_tokens: int) -> Tokenizer:
    """Return the tokenizer of a tokenizer.json, which cuts texts after `max_tokens` and pads none. It is shared, so do
    not change it. Raise the library's error if the file is unreadable."""
    status = file.stat() if file.exists() else None
    return _opened(str(file), max_tokens, (0, 0) if status is None else (status.st_mtime_ns, status.st_ino))


@lru_cache(maxsize=2)  # each takes 4 to 8 MB and 35 ms; encoder, static vectors and cross-encoder read the same one
def _opened(file: str, max_tokens: int, _version: tuple[int, int]) -> Tokenizer:
    tokenizer = Tokenizer.from_file(file)
    tokenizer.no_padding()  # the file configures padding to 128
    tokenizer.enable_truncation(max_tokens)
    return tokenizer


@dataclass(frozen=True, slots=True)
class TokenizedText:
    ids: list[int]
    truncated: bool
    unreadable: bool


class TextTokenizer:
    """`TextTokenizer` reads one text. `tokenizer` is the path of a tokenizer.json."""

    def __init__(self, tokenizer: Path, reading: Reading) -> None:
        self._tokenizer = _open(tokenizer, reading.max_tokens)
        self._unknown: int | None = self._tokenizer.token_to_id(reading.unknown)
        self._prompt = reading.prompt
        self._max_tokens = reading.max_tokens
        self._max_characters = MAX_CHARACTERS_PER_TOKEN * reading.max_tokens

    def read(self, text: str) -> TokenizedText:
        # JSON can contain half a surrogate pair, which the tokenizer rejects. One such text must not fail the whole
        # batch.
        asked = self._prompt + text[: self._max_characters]
        read = self._tokenizer.encode(asked.encode("utf-8", "replace").decode())
        # A tokenizer without special tokens reads nothing in an empty text, but a pass needs a token.
        ids = read.ids or [0]  # a new list each time
        truncated = len(text) > self._max_characters or (len(ids) == self._max_tokens and bool(read.overflowing))
        return TokenizedText(ids, truncated, self._unknown in ids and self._unreadable(asked, read))

    def _unreadable(self, text: str, read: Encoding) -> bool:
        """Return whether an unknown token has a meaning. In Chinese two of three tokens are unknown; a sum sign is,
        too. Emoji only express a tone, and do not count."""
        unknown = (span for span, each in zip(read.offsets, read.ids, strict=True) if each == self._unknown)
        return any(category(sign) not in TONE for start, end in unknown for sign in text[start:end])


# Tokenizing of two questions for the cross-encoder.
MAX_PAIR_TOKENS = 128  # for both questions, including [CLS] and two [SEP]: the positions that the weights have

MAX_PAIR_CHARACTERS = 2048  # per question; 128 tokens hold less than half of a longer one

CLS, SEP = 101, 102

Ids = npt.NDArray[np.int64]


class PairTokenizer:
    """`PairTokenizer` reads pairs of questions. `tokenizer` is the embedder's tokenizer.json. Raise the library's error
    if it is unreadable."""

    def __init__(self, tokenizer: Path) -> None:
        # A text that is cut is too long for a pair, too. So the tokenizer of the default embedder serves.
        self._tokenizer = _open(tokenizer, Reading().max_tokens)

    def ids(self, text: str) -> list[int] | None:
        """Return the ids; None if the text is too long. Halves of surrogate pairs, which JSON can contain and the
        tokenizer rejects, are replaced."""
        if len(text) > MAX_PAIR_CHARACTERS:
            return None
        ids: list[int] = self._tokenizer.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False).ids
        return ids


def join_pair(one: list[int] | None, two: list[int] | None) -> tuple[Ids, Ids] | None:
    """Return ids and types, (length,), of "[CLS] first [SEP] second [SEP]", with the shorter question first. Return
    None if they are too long together."""
    if one is None or two is None or len(one) + len(two) + 3 > MAX_PAIR_TOKENS:
        return None
    first, second = sorted((one, two), key=lambda ids: (len(ids), ids))
    types = np.zeros(len(first) + len(second) + 3, np.int64)
    types[len(first) + 2 :] = 1
    return np.array([CLS, *first, SEP, *second, SEP], np.int64), types
