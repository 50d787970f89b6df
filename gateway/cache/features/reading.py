"""What one question says, read once: words, numbers, units, dates, names, negations, order. Bounded and linear.

A text is read up to `LONGEST` characters, words up to `MOST_WORDS`: what an encoder truncates is never looked up, so a
longer text only meets these bounds when somebody means harm.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from gateway.cache import lexical
from gateway.cache.features import vocabulary as v
from gateway.cache.features.phrases import aspects, conditions

LONGEST = 4096  # characters; the encoder's own bound (256 tokens)
MOST_WORDS = 256  # what 256 tokens can hold
KEPT = 1024  # readings: what is stored is read again for every question near it; 0.1 ms each, some 3 kB

_HAN = "\u3400-\u9fff"
_WORD = re.compile(rf"[{_HAN}]|[^\W_{_HAN}]+(?:['\u2019.+#-][^\W_{_HAN}]+){{0,4}}[+#]{{0,2}}")
_GROUPED = re.compile(r"(?<=\d),(?=\d{3})")  # 1,000 and 1000 are one number
_NUMBER = re.compile(r"[-\u2212]?\d+(?:[.,:/-]\d+){0,6}%?")
_QUOTED = re.compile(r"[\"\u201c\u201e\u00ab`]([^\"\u201c\u201d\u201e\u00ab\u00bb`]{1,80})[\"\u201d\u201c\u00bb`]")
_SYMMETRIC = re.compile(r"\b(?:between|both|and|or|vs|versus|und|oder|y|entre)\b", re.IGNORECASE)
_CODE = re.compile(r"[\w.]{1,40}\([^()]{0,40}\)|--?[a-z][\w-]{1,30}\b|\b\w{1,30}(?:_\w{1,30})+|[=<>!]=|[{}\[\];]|=>|->")


@dataclass(frozen=True, slots=True)
class Reading:
    words: tuple[str, ...]  # lower case, in order
    content: tuple[str, ...]  # stems of the words that carry meaning, in order
    aspects: frozenset[str]
    conditions: tuple[tuple[str, frozenset[str]], ...]
    kinds: tuple[frozenset[str], ...]  # numbers, units, calendar, quantifiers, comparatives, quoted, code
    names: frozenset[str]
    negations: int
    directions: frozenset[tuple[str, str]]
    asks: str  # what kind of answer the question wants; "" where it does not say
    tenses: frozenset[str]
    modals: frozenset[str]
    persons: frozenset[str]
    symmetric: bool  # names things whose order does not matter


@lru_cache(maxsize=KEPT)
def read(text: str) -> Reading:
    text = _GROUPED.sub("", text[:LONGEST].replace("\u2019", "'"))
    basis = lexical.read(text)
    words = tuple(match.group().lower() for match in _WORD.finditer(text))[:MOST_WORDS]
    stems = tuple(word if word in v.STOP else stem(word) for word in words)
    return Reading(
        words=words,
        content=tuple(short for word, short in zip(words, stems, strict=True) if word not in v.STOP),
        aspects=aspects(words),
        conditions=conditions(words, stems),
        kinds=(
            _numbers(text, words),
            _mapped(words, v.UNITS),
            _mapped(words, v.CALENDAR),
            _mapped(words, v.QUANTIFIERS),
            frozenset(words) & v.COMPARATIVES,
            frozenset(quoted.lower().strip() for quoted in _QUOTED.findall(text)),
            frozenset(_CODE.findall(text)[:MOST_WORDS]),
        ),
        names=frozenset(list(basis.names)[:MOST_WORDS]),
        negations=basis.negations,
        directions=frozenset(basis.directions[:MOST_WORDS]),
        asks=_asks(words),
        tenses=frozenset(t for t, of in (("past", v.PAST), ("future", v.FUTURE)) if not of.isdisjoint(words)),
        modals=_mapped(words, v.MODALS),
        persons=_mapped(words, v.PERSONS),
        symmetric=_SYMMETRIC.search(text) is not None,
    )


def _mapped(words: Iterable[str], table: dict[str, str]) -> frozenset[str]:
    return frozenset(table[word] for word in words if word in table)


def _numbers(text: str, words: tuple[str, ...]) -> frozenset[str]:
    digits = (_plain(number) for number in _NUMBER.findall(text)[:MOST_WORDS])
    return frozenset(digits) | _mapped(words, v.NUMBER_WORDS)


def _plain(number: str) -> str:
    """1,000 and 1000 are one number; 1.50 and 1.5 may be two versions. A dash glued to a word is no minus."""
    return number.lstrip("-\u2212").replace(",", "")


_SUFFIXES = (("'s", ""), ("ies", "y"), ("ing", ""), ("ed", ""), ("es", ""), ("s", ""), ("ly", ""), ("e", ""))


def stem(word: str) -> str:
    """A cut-off form that inflections share, or the group's first word where synonyms, units or numbers are known."""
    word = v.SYNONYMS.get(word) or v.UNITS.get(word) or v.NUMBER_WORDS.get(word) or word
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
_POLAR = v.POLAR


def _asks(words: tuple[str, ...]) -> str:
    """The first question word decides; an auxiliary at the start asks for yes or no unless one follows soon."""
    for at, word in enumerate(words[:24]):
        following = words[at + 1 : at + 5]
        if word in _PLAIN:
            return _PLAIN[word]
        if word in ("how", "wie"):
            return _HOW.get(following[0], "manner") if following else "manner"
        if word in ("what", "what's", "which", "was"):
            if word == "was" and at == 0 and "?" not in words:
                continue
            return next((_WHAT[near] for near in following if near in _WHAT), "thing")
    return "polar" if words and words[0] in _POLAR else ""
