"""Tells whether two answers say the same, by their words or by the similarity of their embeddings.

The result has three values. An undecided pair, which neither words nor embeddings settle, teaches nothing.

Measured with all-MiniLM-L6-v2 on 18 equivalent and 18 different pairs of short answers, written by hand:

| pairs | right | undecided | wrong | notes |
|---|---|---|---|---|
| equivalent | 11 | 6 | 1 | the wrong one at cosine 0.72 |
| different | 0 | 6 | 12 | three undecided at 0.90 to 0.92: "on" for "off", a negation, a number |

99 % of unrelated answers in one template lie below 0.75 (measured on the development streams).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from gateway.cache.answer_content import Agreement, agreement
from gateway.cache.features.vocabulary import STOP
from gateway.cache.lexical import difference, read
from gateway.cache.threshold.wrong_hits import Label
from gateway.entries import Embedding, Vector
from gateway.errors import EmbedderUnavailable
from gateway.ports import Embedder
from gateway.words import RUN

DIFFERENT_BELOW = 0.75  # cosine
SAME_FROM = 0.90  # cosine from which two answers may say the same
SAME_IN_PART_FROM = 0.78  # the same for answers whose contents agree in part

BY_CONTENT = {Agreement.SAME: Label.RIGHT, Agreement.DIFFERENT: Label.WRONG}

# Characters. A client's question may wait while two passages are embedded, which takes 10 ms at this length.
PASSAGE_CHARACTERS = 400

MAX_PASSAGES = 9

MAX_COMPARED = PASSAGE_CHARACTERS * MAX_PASSAGES  # characters; longer texts are only tested for equality

_SENTENCE, _SPACE = re.compile(r"[.!?]\s|\n"), re.compile(r"\s")


def is_same_text(a: str, b: str) -> bool:
    """Return whether the texts are equal but for white space and case."""
    return normalised(a) == normalised(b)


def normalised(text: str) -> str:
    """Return a text without differences in white space and case."""
    return " ".join(text.casefold().split())


def is_comparable(a: str, b: str) -> bool:
    """Return whether embeddings can tell more than `is_same_text`: both texts can be read to their end."""
    return bool(a.strip() and b.strip()) and max(len(a), len(b)) <= MAX_COMPARED


def compare(a: str, b: str, similarity: float | None, question: str = "", stored: str = "") -> Label:
    """Return whether one answer may replace the other. `similarity` is their cosine, or None if it is not known.
    `question` is the question of `b`, or `""` to leave the contents uncompared. `stored` is the question of `a`, if it
    is another."""
    if is_same_text(a, b):
        return Label.RIGHT
    contents = agreement(a, b, question, stored) if question and is_comparable(a, b) else Agreement.UNKNOWN
    if (label := BY_CONTENT.get(contents)) is not None:
        return label
    if similarity is None or not is_comparable(a, b):
        return Label.UNDECIDED
    if similarity < DIFFERENT_BELOW:
        return Label.WRONG if contents is Agreement.UNKNOWN else Label.UNDECIDED
    if contents is Agreement.PARTLY and similarity >= SAME_IN_PART_FROM:
        return Label.RIGHT
    if similarity >= SAME_FROM and difference(read(a), read(b)) is None:
        return Label.RIGHT
    return Label.UNDECIDED


def passages(text: str) -> list[str]:
    """Split a text into pieces that the embedding model can read, at the end of a sentence, a line or a word."""
    pieces: list[str] = []
    rest = text.strip()
    while len(rest) > PASSAGE_CHARACTERS and len(pieces) < MAX_PASSAGES - 1:
        cut = _cut(rest[:PASSAGE_CHARACTERS])
        pieces.append(rest[:cut].strip())
        rest = rest[cut:].strip()
    return [*pieces, rest[:PASSAGE_CHARACTERS]] if rest else pieces


def combine_vectors(vectors: Sequence[Vector]) -> Vector:
    """Return the embedding of a text of several passages: the direction of their sum."""
    total = np.sum(vectors, axis=0, dtype=np.float32)
    norm = float(np.linalg.norm(total))
    return vectors[0] if norm == 0.0 else np.asarray(total / norm, np.float32)


def _cut(head: str) -> int:
    """Return the end of a passage: after the last sentence, line or (failing these) word in its second half."""
    half = len(head) // 2
    for pattern in (_SENTENCE, _SPACE):
        ends = [match.end() for match in pattern.finditer(head, half)]
        if ends:
            return ends[-1]
    return len(head)


async def similarity(embedder: Embedder, a: str, b: str, owner: str) -> float | None:
    """Return the cosine of two answers, in [-1, 1], or None if the embedder cannot tell.

    `owner` is that of `Embedder.embed`.
    """
    first, second = await embed_text(embedder, a, owner), await embed_text(embedder, b, owner)
    return None if first is None or second is None else float(first @ second)


async def embed_text(embedder: Embedder, text: str, owner: str) -> Vector | None:
    """Return the embedding of a text, or None.

    Return None if the embedder is not available, or does not read a passage to its end, where the difference may be.
    """
    try:
        return text_vector([await embedder.embed(passage, owner) for passage in passages(text)])
    except EmbedderUnavailable:
        return None


def text_vector(embeddings: Sequence[Embedding]) -> Vector | None:
    """Return the embedding of a text from those of its passages, or None if there are none, or one is partial."""
    if not embeddings or any(embedding.partial for embedding in embeddings):
        return None
    return combine_vectors([embedding.vector for embedding in embeddings])


# Cheap exits: the words decide many pairs, and then no text is embedded.
#
# Measured with all-MiniLM-L6-v2 on each text's six nearest of 2,000 texts (prompts of benchmarks, SQuAD, banking77):
#
# - 1,568 pairs of ASCII texts share no content word. One in 150 has a cosine of 0.75 or more. Nearly all of these are
#   lists of single words, and none says the same.
# - 15 pairs share at least 80 % of their content words and have a lexical difference. None has a cosine below 0.75, so
#   embedding them would not decide anything.
#
# Other scripts and languages get no such exit: one answer may be the translation of the other.
STEM = 6  # characters of a word that count: "cancel" and "cancellation" are one content word

LEAST_WORDS = 3  # content words that each text must have

NEARLY_ALL = 0.8  # shared content words over all of both texts


def compare_words(a: str, b: str, question: str = "", stored: str = "") -> Label | None:
    """Return the result if the words decide without embeddings, or None. `question` and `stored` are those of
    `compare`."""
    if is_same_text(a, b) or not is_comparable(a, b):
        return compare(a, b, None)
    if question and (contents := agreement(a, b, question, stored)) is not Agreement.UNKNOWN:
        return BY_CONTENT.get(contents)
    if not (a.isascii() and b.isascii()):
        return None
    first, second = _content_words(a), _content_words(b)
    if min(len(first), len(second)) < LEAST_WORDS:
        return None
    shared = len(first & second)
    if shared == 0:
        return Label.WRONG
    if shared >= NEARLY_ALL * len(first | second) and difference(read(a), read(b)) is not None:
        return Label.UNDECIDED
    return None


def _content_words(text: str) -> frozenset[str]:
    return frozenset(word[:STEM] for word in RUN.findall(text.casefold()) if word not in STOP)
