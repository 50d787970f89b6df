"""Read a question once: words, numbers, units, dates, names, negations, order. Bounded and linear in its length.

It reads at most `LONGEST` characters and `MAX_WORDS` words. A text that the encoder truncates is never looked up. So
only an abusive text reaches these bounds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from gateway.cache import lexical
from gateway.cache.exclusive_words import UNITS
from gateway.cache.features import vocabulary as v
from gateway.cache.features.phrases import aspects, conditions
from gateway.cache.lexical import PatternIndex, any_of, digits, written_with

LONGEST = 4096  # characters; the encoder's own bound is 256 tokens
MAX_WORDS = 256  # the most words that 256 tokens can hold
READING_CACHE_SIZE = 1024  # readings; a stored question is read for every question near it; 0.05 ms and some 6 kB each
STEM_CACHE_SIZE = 4096  # words

_NOTHING: frozenset[str] = frozenset()
_HAN = "\u3400-\u9fff"
_WORD = re.compile(rf"[{_HAN}]|[^\W_{_HAN}]+(?:['\u2019.+#-][^\W_{_HAN}]+){{0,4}}[+#]{{0,2}}")
_JOINED = written_with("'+#_-")  # characters that join words here, but may split them for the lexical checks
_GROUPED = re.compile(r"(?<=\d),(?=\d{3})")  # 1,000 and 1000 are the same number
_NUMBER = PatternIndex(re.compile(r"[-\u2212]?\d+(?:[.,:/-]\d+){0,6}%?"), digits)
_QUOTED = PatternIndex(
    re.compile(r"[\"\u201c\u201e\u00ab`]([^\"\u201c\u201d\u201e\u00ab\u00bb`]{1,80})[\"\u201d\u201c\u00bb`]"),
    written_with('"`'),
)
_SYMMETRIC = PatternIndex(
    re.compile(r"\b(?:between|both|and|or|vs|versus|und|oder|y|entre)\b", re.IGNORECASE),
    any_of("between both and or vs versus und oder y entre"),
)
_CODE = PatternIndex(
    re.compile(r"[\w.]{1,40}\([^()]{0,40}\)|--?[a-z][\w-]{1,30}\b|\b\w{1,30}(?:_\w{1,30})+|[=<>!]=|[{}\[\];]|=>|->"),
    written_with("(_={}[];-"),
)


@dataclass(slots=True)
class QuestionReading:
    checks: lexical.Lexical  # of the original text
    words: tuple[str, ...]  # lower case, in order
    vocabulary: frozenset[str]  # the distinct words
    pairs: frozenset[tuple[str, str]]  # adjacent words
    content: tuple[str, ...]  # stems of the content words, in order
    positions: Mapping[str, int]  # first position of each stem in `content`, in order
    aspects: frozenset[str]
    conditions: tuple[tuple[str, frozenset[str]], ...]
    kinds: tuple[frozenset[str], ...]  # numbers, units, calendar, quantifiers, comparatives, quoted, code
    names: frozenset[str]
    negations: int
    directions: frozenset[tuple[str, str]]
    question_type: str  # the kind of answer that the question wants; "" where it does not say
    tenses: frozenset[str]
    modals: frozenset[str]
    persons: frozenset[str]
    symmetric: bool  # names things whose order does not matter


def read(text: str) -> QuestionReading:
    """Read a new question. It is not cached, as most questions come once. Use `read_stored` for stored questions."""
    return _read(text, lexical.read)


@lru_cache(maxsize=READING_CACHE_SIZE)
def read_stored(text: str) -> QuestionReading:
    return _read(text, lexical.read_stored)


def _read(text: str, read_words: Callable[[str], lexical.Lexical]) -> QuestionReading:
    text = text[:LONGEST]
    basis = checks = read_words(text)
    if "," in text or "\u2019" in text:
        plainly = _GROUPED.sub("", text.replace("\u2019", "'"))
        if plainly != text:
            text = plainly
            basis = read_words(text)
    clues = basis.clues
    words = _words(text, basis)
    vocabulary, pairs = frozenset(words), frozenset(pairwise(words))
    stems = {word: stem(word) for word in vocabulary - v.STOP}
    content = tuple([stems[word] for word in words if word in stems])
    positions: dict[str, int] = {}
    for at, short in enumerate(content):
        positions.setdefault(short, at)
    meant = _meanings(vocabulary)
    return QuestionReading(
        checks=checks,
        words=words,
        vocabulary=vocabulary,
        pairs=pairs,
        content=content,
        positions=positions,
        aspects=aspects(vocabulary, pairs),
        conditions=conditions(words, stems, vocabulary),
        kinds=(
            frozenset(map(_plain, _NUMBER.matches(text, clues)[:MAX_WORDS])) | meant.get("number", _NOTHING),
            frozenset(meant.get("unit", _NOTHING)),
            frozenset(meant.get("calendar", _NOTHING)),
            frozenset(meant.get("quantifier", _NOTHING)),
            frozenset(meant.get("comparative", _NOTHING)),
            frozenset([quoted.lower().strip() for quoted in _QUOTED.matches(text, clues)]),
            frozenset(_CODE.matches(text, clues)[:MAX_WORDS]),
        ),
        names=basis.names if len(basis.names) <= MAX_WORDS else frozenset(list(basis.names)[:MAX_WORDS]),
        negations=basis.negations,
        directions=frozenset(basis.directions[:MAX_WORDS]),
        question_type=_question_type(words),
        tenses=frozenset(meant.get("tense", _NOTHING)),
        modals=frozenset(meant.get("modal", _NOTHING)),
        persons=frozenset(meant.get("person", _NOTHING)),
        symmetric=bool(_SYMMETRIC.matches(text, clues)),
    )


def _words(text: str, basis: lexical.Lexical) -> tuple[str, ...]:
    """Return the words of the lexical checks, unless the text has a character that would join some of them.

    A dot at the end of the text joins nothing.
    """
    if basis.clues is None or "." in text.rstrip(". ") or _JOINED(basis.clues):
        return tuple(map(str.lower, _WORD.findall(text)[:MAX_WORDS]))
    return basis.words[:MAX_WORDS]


def _meanings(vocabulary: Set[str]) -> Mapping[str, Set[str]]:
    """Return the meanings of the words by kind. In most questions only two or three words have one."""
    meant: dict[str, set[str]] = {}
    for word in vocabulary & v.MARKED:
        for kind, meaning in v.MEANT[word]:
            meant.setdefault(kind, set()).add(meaning)
    return meant


def _plain(number: str) -> str:
    """Return a number without thousands separators and sign: 1,000 equals 1000.

    1.50 and 1.5 stay different, as they may be two versions. A dash attached to a word is not a minus.
    """
    return number.lstrip("-\u2212").replace(",", "")


_SUFFIXES = (("'s", ""), ("ies", "y"), ("ing", ""), ("ed", ""), ("es", ""), ("s", ""), ("ly", ""), ("e", ""))


@lru_cache(maxsize=STEM_CACHE_SIZE)
def stem(word: str) -> str:
    """Return a stem that inflected forms share.

    Synonyms, units and number words first become the first word of their group.
    """
    word = v.SYNONYMS.get(word) or UNITS.get(word) or v.NUMBER_WORDS.get(word) or word
    for suffix, put in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3 and not word.endswith("ss"):
            word = word[: len(word) - len(suffix)] + put
            break
    word = word[:-1] if word.endswith("e") and len(word) > 3 else word
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "ls" else word


_HOW = {
    "many": "count",
    "much": "amount",
    "long": "duration",
    "often": "frequency",
    "far": "distance",
    "old": "age",
    "tall": "height",
    "big": "size",
    "fast": "speed",
    "high": "height",
    "deep": "depth",
    "come": "reason",
}
_WHAT = {
    "time": "time",
    "date": "time",
    "day": "time",
    "year": "time",
    "reason": "reason",
    "causes": "reason",
    "steps": "manner",
    "way": "manner",
    "place": "place",
    "country": "place",
    "city": "place",
    "happens": "effect",
    "age": "age",
    "person": "person",
    "price": "amount",
    "cost": "amount",
}
_PLAIN = {
    "why": "reason",
    "warum": "reason",
    "when": "time",
    "wann": "time",
    "where": "place",
    "wo": "place",
    "who": "person",
    "whom": "person",
    "whose": "person",
    "wer": "person",
}
_ASKING = frozenset({*_PLAIN, "how", "wie", "what", "what's", "which", "was"})


def _question_type(words: tuple[str, ...]) -> str:
    """Return the kind of answer that the first question word asks for.

    Without a question word, an auxiliary at the start asks for yes or no.
    """
    for at, word in enumerate(words[:24]):
        if word not in _ASKING:
            continue
        following = words[at + 1 : at + 5]
        if word in _PLAIN:
            return _PLAIN[word]
        if word in ("how", "wie"):
            return _HOW.get(following[0], "manner") if following else "manner"
        if word in ("what", "what's", "which", "was"):
            if word == "was" and at == 0 and "?" not in words:
                continue
            return next((_WHAT[near] for near in following if near in _WHAT), "thing")
    return "polar" if words and words[0] in v.POLAR else ""
