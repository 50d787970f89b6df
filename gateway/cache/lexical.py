"""What the words of two questions say about whether they ask the same thing. Pure.

Cosine similarity alone cannot tell "2021" from "2022", "on" from "off", or "km to miles" from "miles to km".
Each check names one way in which two similar questions differ; a check that finds nothing says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gateway.messages import Refusal

# Patterns that are looked for only where they may be found. Pure.
#
# To look through a question takes 5 to 20 us a pattern, and nearly always finds nothing: most need a word or a sign
# that few questions have. What a pattern needs is said beside it, and never more than it needs, so that what is found
# is the same (tests/cache/test_text_patterns.py).

_RUN = re.compile(r"\w+")

_JOINS = frozenset("'_")


@dataclass(slots=True)
class LexicalClues:
    """What a text of ASCII consists of. Of other texts there are none: their letters may stand for these, as the sign
    of kelvin does for a k where case is ignored."""

    runs: frozenset[str]  # of letters, digits and underscores, in lower case
    plain: str  # the whole text, lower-cased, with single spaces
    signs: frozenset[str]  # that it is written with
    joined: bool  # some run is part of a longer word, or of several words


def clues_of(text: str, plain: str, words: frozenset[str]) -> LexicalClues | None:
    """`words`: those that letters and digits make, in lower case, some of them joined by an apostrophe."""
    if not text.isascii():
        return None
    signs = frozenset(plain)
    joined = not _JOINS.isdisjoint(signs)
    return LexicalClues(frozenset(_RUN.findall(plain)) if joined else words, plain, signs, joined)


@dataclass(frozen=True, slots=True)
class PatternIndex:
    """`may_match`: whether a text with these clues may hold what the pattern matches."""

    pattern: re.Pattern[str]
    may_match: Callable[[LexicalClues], bool]

    def matches(self, text: str, clues: LexicalClues | None) -> list[Any]:
        """What `findall` of the pattern would."""
        return self.pattern.findall(text) if clues is None or self.may_match(clues) else []


def any_of(words: str) -> Callable[[LexicalClues], bool]:
    """Whether one of these stands by itself, between what is no part of a word."""
    needed = frozenset(words.split())
    return lambda clues: not needed.isdisjoint(clues.runs)


def written_with(signs: str) -> Callable[[LexicalClues], bool]:
    """Whether one of these signs is in it."""
    needed = frozenset(signs)
    return lambda clues: not needed.isdisjoint(clues.signs)


digits = written_with("0123456789")

# Texts that a question is about rather than made of: what is to be translated, quoted, or run. Pure.
#
# Two requests to translate differ in a few words only where it matters, and look alike everywhere else: with a fixed
# instruction around varying content, every content would get the first one's answer.

# Verbs that ask for a text to be turned into another: English, German, Spanish. They count where a request begins.
_TRANSFORM = re.compile(
    r"\W{0,9}(?:(?:please|kindly|hi|hello|hey|bitte|por favor|can you|could you|would you|will you|i want you to|"
    r"i need you to|kannst du|k\u00f6nnen sie|puedes)\W{1,9}){0,3}"
    r"(?:translate|summari[sz]e|rewrite|rephrase|paraphrase|proofread|correct|classify|categori[sz]e|extract|shorten|"
    r"simplify|transcribe|transliterate|reformat|edit|label|tag|anonymi[sz]e|spell-?check|complete the|"
    r"\u00fcbersetze?n?|fasse?n?|korrigiere?n?|traduce|traducir|resume|resumir|corrige)\b",
    re.IGNORECASE,
)

_QUOTED = re.compile(
    r"```(.{1,4000}?)```|`([^`\n]{1,400})`|\"([^\"\n]{1,400})\"|\u201c([^\u201d\n]{1,400})\u201d|\u00ab([^\u00bb\n]{1,400})\u00bb",
    re.DOTALL,
)


def transforms(text: str) -> bool:
    """Whether the text asks for another text to be turned into something."""
    return _TRANSFORM.match(text) is not None


def quoted_in(text: str) -> frozenset[str]:
    """What stands in quotes or is marked as code, lower-cased, with single spaces."""
    return frozenset(plain(next(group for group in match.groups() if group)) for match in _QUOTED.finditer(text))


def plain(text: str) -> str:
    return " ".join(text.split()).lower()


# Every gap below is bounded: a pattern that may look for its end anywhere takes quadratic time on a hostile text.
_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W\d_]+)*", re.UNICODE)

_ASCII_WORD = re.compile(r"[A-Za-z0-9]++(?:'[A-Za-z]++)*+")  # the same of ASCII, in half the time

_NUMBER = PatternIndex(re.compile(r"\d+(?:[.,:/-]\d+)*%?"), digits)

_NEGATIVE = "not no never without none nobody nothing neither nor cannot unable except nicht nie ohne sin nunca jamas"

_NEGATES, _NEGATORS, _NEGATING = frozenset(_NEGATIVE.split()), any_of(f"{_NEGATIVE} t"), ("kein", "ningun")

_NEGATED = PatternIndex(
    re.compile(
        r"\b(?=[cejknosuw])(?:not|no|never|without|none|nobody|nothing|neither|nor|cannot|unable|except|"
        r"nicht|kein\w*|nie|ohne|sin|nunca|jam[a\u00e1]s|ning[u\u00fa]n\w*)\b|n['\u2019]t\b|\u4e0d|\u6ca1|\u672a",
        re.IGNORECASE,
    ),
    lambda clues: _NEGATORS(clues) or any(part in clues.plain for part in _NEGATING),
)

_QUOTES = written_with('"`')

_DIRECTION = PatternIndex(
    re.compile(r"\b(?:from|de|von)\s(.{1,80}?)\s(?:to|into|a|nach|zu)\s([^?.!,;]{1,80})", re.IGNORECASE),
    any_of("from de von"),
)

_TO = PatternIndex(
    re.compile(
        r"\b([\w.]{1,40})\s{1,9}(?:to|into|vs|versus|over|than|before|after|minus)\s{1,9}([\w.]{1,40})", re.IGNORECASE
    ),
    any_of("to into vs versus over than before after minus"),
)

_THAN = PatternIndex(
    re.compile(
        r"\b([\w.]{1,40})\s{1,9}(?:(?:more|less)\s{1,9})?\w{1,40}\s{1,9}than\s{1,9}(?:(?:an?|the)\s{1,9})?([\w.]{1,40})",
        re.IGNORECASE,
    ),
    any_of("than"),
)

# Pairs in which one word is the other's opposite. Symmetric; a short list of the commonest ones in questions put to
# assistants, from grammar books rather than from any data set. The learned verifier replaces it.
_ANTONYMS = (
    ("on", "off"), ("enable", "disable"), ("open", "close"), ("increase", "decrease"), ("raise", "lower"),
    ("start", "stop"), ("add", "remove"), ("install", "uninstall"), ("buy", "sell"), ("before", "after"),
    ("first", "last"), ("more", "less"), ("most", "least"), ("best", "worst"), ("good", "bad"), ("up", "down"),
    ("left", "right"), ("minimum", "maximum"), ("min", "max"), ("high", "low"), ("higher", "lower"),
    ("fast", "slow"), ("cheap", "expensive"), ("import", "export"), ("upload", "download"), ("encode", "decode"),
    ("encrypt", "decrypt"), ("lock", "unlock"), ("login", "logout"), ("send", "receive"), ("lend", "borrow"),
    ("win", "lose"), ("gain", "lose"), ("love", "hate"), ("true", "false"), ("above", "below"), ("inside", "outside"),
    ("old", "new"), ("oldest", "newest"), ("hot", "cold"), ("advantages", "disadvantages"), ("pros", "cons"),
    ("ascending", "descending"), ("push", "pull"), ("show", "hide"), ("accept", "reject"), ("legal", "illegal"),
    ("man", "woman"), ("men", "women"), ("male", "female"), ("boy", "girl"), ("north", "south"), ("east", "west"),
    ("always", "never"), ("everyone", "nobody"), ("with", "without"), ("input", "output"), ("public", "private"),
)  # fmt: skip

OPPOSITES: dict[str, frozenset[str]] = {
    word: frozenset(b if a == word else a for a, b in _ANTONYMS if word in (a, b))
    for pair in _ANTONYMS
    for word in pair
}

# Words that a question may start with in capitals without naming anything.
_FIRST_WORD = re.compile(r"\W{0,9}([^\W\d_]+)")

_FURTHER_STARTERS = re.compile(r"(?:[.!?:]\s{1,9}|\n)\W{0,9}([^\W\d_]+)")

_ENDS = re.compile(r"[.!?:\n]")

_FIRST_PERSON = frozenset(("i", "i'm", "i've", "i'd", "i'll"))


@dataclass(slots=True)
class Lexical:
    """What the checks read from one text."""

    words: tuple[str, ...]
    vocabulary: frozenset[str]  # of the words, each once
    numbers: frozenset[str]
    negations: int
    names: frozenset[str]  # capitalised words and words with capitals, digits or dots inside, lower-cased
    directions: tuple[tuple[str, str], ...]
    transforms: bool  # it asks for a text to be turned into another
    quoted: frozenset[str]  # what stands in quotes or is code
    plain: str  # the whole text, lower-cased, with single spaces
    clues: LexicalClues | None


def read(text: str) -> Lexical:
    """As it is asked: most questions come once. For what is stored `kept`."""
    plainly = plain(text)
    words = tuple(_ASCII_WORD.findall(plainly) if text.isascii() else map(str.lower, _WORD.findall(text)))
    vocabulary = frozenset(words)
    clues = clues_of(text, plainly, vocabulary)
    directions = [matches for pattern in (_DIRECTION, _TO, _THAN) for matches in pattern.matches(text, clues)]
    return Lexical(
        words=words,
        vocabulary=vocabulary,
        numbers=frozenset(number.replace(",", "") for number in _NUMBER.matches(text, clues)),
        negations=_negations(text, words, clues),
        names=_names(text),
        directions=tuple((_head(a), _head(b)) for a, b in directions),
        transforms=transforms(text),
        quoted=quoted_in(text) if clues is None or _QUOTES(clues) else frozenset(),
        plain=plainly,
        clues=clues,
    )


kept = lru_cache(maxsize=1024)(read)


def _negations(text: str, words: Sequence[str], clues: LexicalClues | None) -> int:
    if clues is None or clues.joined:
        return len(_NEGATED.matches(text, clues))
    count = 0 if _NEGATES.isdisjoint(clues.runs) else sum(map(_NEGATES.__contains__, words))
    if any(part in clues.plain for part in _NEGATING):
        count += sum(word.startswith(_NEGATING) for word in words)
    return count


def _names(text: str) -> frozenset[str]:
    """A capital inside a word always names something; one at its start does unless a sentence begins there."""
    if text.islower():
        return frozenset()
    if text.isascii():
        if text[1:].islower():
            return frozenset()  # it begins with a capital, as sentences do
        written = [word for word in _ASCII_WORD.findall(text) if not word.islower()]
        inside = {lower for word in written if (lower := word.lower())[1:] != word[1:]}
    else:
        written = [word for word in _WORD.findall(text) if not word.islower()]
        inside = {word.lower() for word in written if any(map(str.isupper, word[1:]))}
    if len(inside) == len(written):
        return frozenset(inside)
    names, beginning = inside, _starters(text)
    for word in written:
        if not word[0].isupper() or (lower := word.lower()) in inside or lower in _FIRST_PERSON:
            continue
        if word in beginning:
            beginning.remove(word)  # once for each sentence that begins with it
        else:
            names.add(lower)
    return frozenset(names)


def _starters(text: str) -> list[str]:
    """The words that sentences begin with, as they are written."""
    first = _FIRST_WORD.match(text)
    starts = [] if first is None else [first.start(1)]
    read = 0 if first is None else first.end()
    if _ENDS.search(text, read, len(text) - 1):  # an end that nothing follows begins no sentence
        starts += [match.start(1) for match in _FURTHER_STARTERS.finditer(text, read)]
    return [match.group() for start in starts if (match := _WORD.match(text, start))]


def _head(phrase: str) -> str:
    """The last word before a preposition cuts the phrase off is what the phrase is about; a stem is enough."""
    words = _WORD.findall(phrase.lower())
    return words[0] if len(words) == 1 else " ".join(words[:2]) if words else ""


def difference(query: Lexical, stored: Lexical) -> Refusal | None:
    """The first way in which the two differ that changes the answer, or None."""
    return next(differences(query, stored), None)


def differences(query: Lexical, stored: Lexical) -> Iterator[Refusal]:
    """Every way in which they do, each looked for when it is asked for."""
    if has_other_payload(query, stored):
        yield Refusal.PAYLOAD
    if query.numbers != stored.numbers:
        yield Refusal.NUMBERS
    if query.negations % 2 != stored.negations % 2:
        yield Refusal.NEGATION
    if _has_opposites(query, stored):
        yield Refusal.ANTONYM
    if _has_reversed_direction(query, stored):
        yield Refusal.DIRECTION
    if _has_other_names(query, stored):
        yield Refusal.ENTITIES


def has_other_payload(query: Lexical, stored: Lexical) -> bool:
    """A text to be transformed must be the same to the word; what one quotes, the other must contain."""
    if (query.transforms or stored.transforms) and query.words != stored.words:
        return True
    return any(text not in stored.plain for text in query.quoted) or any(
        text not in query.plain for text in stored.quoted
    )


def _has_opposites(query: Lexical, stored: Lexical) -> bool:
    """A word in one text whose opposite stands in the other, and not the word itself."""
    a, b = query.vocabulary, stored.vocabulary
    return a != b and any(OPPOSITES[word] & (b - a) for word in a - b if word in OPPOSITES)


def _has_reversed_direction(query: Lexical, stored: Lexical) -> bool:
    if not query.directions or not stored.directions:
        return False
    known = frozenset(stored.directions)
    return any((b, a) in known and a != b for a, b in query.directions)


def _has_other_names(query: Lexical, stored: Lexical) -> bool:
    """Each text names something that the other does not mention at all.

    One-sided extra names are often an address ("Hi Bob, ...") or a specification: the similarity judges those.
    """
    return bool(query.names - stored.vocabulary) and bool(stored.names - query.vocabulary)
