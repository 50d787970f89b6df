"""Token ids of texts in ASCII, put together from those of their words: a question has few that were never met.

WordPiece, as BERT has it, takes each word by itself. The tokenizer finds out anew what the words of a text are made of,
and where each of them stands: 48 us for a question of 23 words, of which 8 are left.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import orjson
from tokenizers import Tokenizer

KEPT_WORDS = 8192  # with their ids some 2 MB
LONGEST_KEPT = 40  # characters of a word
# Other control characters are taken out of words that they stand in, and what is in brackets may be a token by itself.
_PLAIN = re.compile(r"[\t\n\r -Z\\-~]*")
_PARTS = re.compile(r"[a-z0-9]+|[^a-z0-9\s]")


class WordPieces:
    """`most`: tokens of a text, with the two around it."""

    def __init__(self, tokenizer: Tokenizer, most: int) -> None:
        self._tokenizer = tokenizer
        self._most = most
        self._around: Sequence[int] = tokenizer.encode("").ids
        self._unknown: int | None = tokenizer.token_to_id("[UNK]")
        self._known: dict[str, Sequence[int]] = {}

    def ids(self, text: str) -> list[int] | None:
        """None: the tokenizer is to read it. It is long, or not only of ASCII, or something in it is unknown."""
        if _PLAIN.fullmatch(text) is None:
            return None
        first, last = self._around
        ids, known = [first], self._known
        for part in _PARTS.findall(text.lower()):
            ids += known[part] if part in known else self._learnt(part)
        ids.append(last)
        return None if len(ids) > self._most or self._unknown in ids else ids

    def _learnt(self, part: str) -> Sequence[int]:
        ids: Sequence[int] = self._tokenizer.encode(part, add_special_tokens=False).ids
        if len(part) <= LONGEST_KEPT:
            if len(self._known) >= KEPT_WORDS:
                self._known.clear()
            self._known[part] = ids
        return ids


def takes_words_apart(tokenizer: Tokenizer) -> bool:
    """Whether it reads texts as `WordPieces` does."""
    said = orjson.loads(tokenizer.to_str())
    normalizer, pieces = said["normalizer"] or {}, said["model"]
    return (
        pieces.get("type") == "WordPiece"
        and (normalizer.get("type"), normalizer.get("lowercase")) == ("BertNormalizer", True)
        and bool(normalizer.get("clean_text"))
        and (said["pre_tokenizer"] or {}).get("type") == "BertPreTokenizer"
        and all(token["content"].startswith("[") for token in said["added_tokens"])
        and len(tokenizer.encode("").ids) == 2
    )
