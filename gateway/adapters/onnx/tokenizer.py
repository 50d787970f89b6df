"""Text to the token ids of all-MiniLM-L6-v2, with what `Embedding` says of how it was read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from unicodedata import category

from tokenizers import Encoding, Tokenizer

MAX_TOKENS = 256  # what the model was trained to read, [CLS] and [SEP] included

# More characters than 256 tokens need: over 442 files of English and Python at most 1,179.
# The tokenizer reads all that it is given: 0.3 ms for 1,000 characters, 1.2 ms for 4,000, 2.4 ms for 8,000.
MAX_CHARACTERS = 4096


# Unicode categories of emoji and what modifies them.
TONE = frozenset({"So", "Sk", "Cf", "Mn"})


@dataclass(frozen=True, slots=True)
class ReadText:
    ids: list[int]
    truncated: bool
    unreadable: bool


class TextReader:
    """`tokenizer`: a tokenizer.json."""

    def __init__(self, tokenizer: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._tokenizer.no_padding()  # the file says: pad everything to 128
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._unknown: int | None = self._tokenizer.token_to_id("[UNK]")

    def read(self, text: str) -> ReadText:
        # JSON can hold half a surrogate pair; the tokenizer refuses it, and one text must not fail the others' batch.
        read = self._tokenizer.encode(text[:MAX_CHARACTERS].encode("utf-8", "replace").decode())
        ids = read.ids  # a new list each time
        truncated = len(text) > MAX_CHARACTERS or (len(ids) == MAX_TOKENS and bool(read.overflowing))
        return ReadText(ids, truncated, self._unknown in ids and self._unreadable(text, read))

    def _unreadable(self, text: str, read: Encoding) -> bool:
        """Whether something that says something is unknown: in Chinese two of three tokens are, a sum sign is; an emoji
        is a tone of voice."""
        unknown = (span for span, each in zip(read.offsets, read.ids, strict=True) if each == self._unknown)
        return any(category(sign) not in TONE for start, end in unknown for sign in text[start:end])
