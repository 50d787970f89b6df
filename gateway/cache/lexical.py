"""Compare the words of two questions for differences that change the answer. Pure.

Cosine similarity alone cannot tell "2021" from "2022", "on" from "off", or "km to miles" from "miles to km". Each check
finds one kind of difference. A check without a result proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gateway.cache.commands import PLAIN_SIGNS, TRIGGERS, Command, command_in, may_have_command
from gateway.cache.commands import differ as have_other_commands
from gateway.cache.exact_parts import (
    WORDS_OF_NUMBERS,
    ExactParts,
    counts_otherwise,
    differs_in_sign,
    have_other_amounts,
    have_other_numbers,
    is_number,
    numbers_in_words,
    parts_difference,
    read_parts,
)
from gateway.cache.exclusive_words import COMMON_OPPOSITES, exclude
from gateway.cache.instructions import COURTESY, WORDS, instructions_in, remark_of
from gateway.cache.quantities import have_other_units
from gateway.cache.spelling_words import TOLD_APART
from gateway.outcomes import Refusal
from gateway.words import ASCII_WORD, RUN, WORD

# Patterns run only where they can match.
#
# Searching a question takes 5 to 20 us per pattern and nearly always finds nothing, as most patterns need a rare word
# or sign. Each pattern states these clues, and never more than it needs, so the results are the same
# (tests/cache/test_text_patterns.py).

_JOINS = frozenset("'_")


@dataclass(slots=True)
class LexicalClues:
    """The words and signs of an ASCII text.

    Other texts have no clues: ignoring case, their letters may equal ASCII ones, as the kelvin sign equals k.
    """

    runs: frozenset[str]  # runs of letters, digits and underscores, in lower case
    plain: str  # the whole text in lower case, with single spaces
    signs: frozenset[str]  # the distinct characters
    joined: bool  # some run is part of a longer word, or of several words


def clues_of(text: str, plain: str, words: frozenset[str]) -> LexicalClues | None:
    """Return the clues of a text, or None unless it is ASCII. `words` are in lower case, some joined by an
    apostrophe."""
    if not text.isascii():
        return None
    signs = frozenset(plain)
    joined = not _JOINS.isdisjoint(signs)
    return LexicalClues(frozenset(RUN.findall(plain)) if joined else words, plain, signs, joined)


@dataclass(frozen=True, slots=True)
class PatternIndex:
    """A pattern with its clues. `may_match` returns whether a text with these clues may contain a match."""

    pattern: re.Pattern[str]
    may_match: Callable[[LexicalClues], bool]

    def matches(self, text: str, clues: LexicalClues | None) -> list[Any]:
        """Return the result of the pattern's `findall`."""
        return self.pattern.findall(text) if clues is None or self.may_match(clues) else []


def any_of(words: str) -> Callable[[LexicalClues], bool]:
    """Return a test for one of these words standing alone."""
    needed = frozenset(words.split())
    return lambda clues: not needed.isdisjoint(clues.runs)


def written_with(signs: str) -> Callable[[LexicalClues], bool]:
    """Return a test for one of these characters."""
    needed = frozenset(signs)
    return lambda clues: not needed.isdisjoint(clues.signs)


digits = written_with("0123456789")

# Some questions are about a text, which is to be translated, quoted or run.
#
# Two requests to translate differ only in a few words, and those decide. With a fixed instruction around varying
# content, every content would otherwise get the first one's answer.

# Verbs that ask to turn a text into another, at the start of a request: English, German, Spanish.
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
    """Return whether the text asks to transform another text."""
    return _TRANSFORM.match(text) is not None


def quoted_in(text: str) -> frozenset[str]:
    """Return the quoted parts and the code, in lower case, with single spaces."""
    return frozenset(plain(next(group for group in match.groups() if group)) for match in _QUOTED.finditer(text))


def plain(text: str) -> str:
    return " ".join(text.split()).lower()


# Every gap below is bounded: an unbounded pattern takes quadratic time on a hostile text.
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

_INSTRUCTS = any_of(WORDS)

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

# Words that may begin a question with a capital without being a name.
_FIRST_WORD = re.compile(r"\W{0,9}([^\W\d_]+)")

_FURTHER_STARTERS = re.compile(r"(?:[.!?:]\s{1,9}|\n)\W{0,9}([^\W\d_]+)")

_ENDS = re.compile(r"[.!?:\n]")

_FIRST_PERSON = frozenset(("i", "i'm", "i've", "i'd", "i'll"))


# What negates the word behind it: English, German, French, Spanish and Portuguese, Italian, Polish and Russian.
_NEGATING_PREFIXES = (
    "un", "in", "im", "il", "ir", "dis", "non", "mis", "anti", "de", "des", "d\u00e9s", "d\u00e9", "m\u00e9", "miss",
    "ent", "nie", "bez", "\u043d\u0435", "\u0431\u0435\u0437", "\u0431\u0435\u0441", "\u0430\u043d\u0442\u0438",
)  # fmt: skip
# By the first two letters of a word. The Greek "a" is one of a letter: "asymmetric", "atypical", "asexual".
_PREFIXES_BY_START = {
    start: tuple(prefix for prefix in _NEGATING_PREFIXES if prefix.startswith(start))
    for start in {prefix[:2] for prefix in _NEGATING_PREFIXES}
} | dict.fromkeys(("as", "at", "am", "ap"), ("a",))


@dataclass(slots=True)
class Lexical:
    """The features of one text that the checks use."""

    words: tuple[str, ...]
    vocabulary: frozenset[str]  # the distinct words
    numbers: frozenset[str]
    negations: int
    names: frozenset[str]  # capitalised words and words with capitals, digits or dots inside, in lower case
    directions: tuple[tuple[str, str], ...]
    transforms: bool  # it asks to turn a text into another
    quoted: frozenset[str]  # quoted parts and code
    instructions: frozenset[str]  # to the model
    remark: frozenset[str]  # words behind the question
    plain: str  # the whole text in lower case, with single spaces
    clues: LexicalClues | None
    exact: ExactParts | None  # numbers, identifiers and code
    command: Command | None  # of a shell
    is_told_apart: bool  # it has a word whose case is compared in every text


_NOTABLE = TRIGGERS | TOLD_APART


def read(text: str) -> Lexical:
    """Read a new question. It is not cached, as most questions come once. Use `read_stored` for stored questions."""
    plainly = plain(text)
    words = tuple(ASCII_WORD.findall(plainly) if text.isascii() else map(str.lower, WORD.findall(text)))
    vocabulary = frozenset(words)
    clues = clues_of(text, plainly, vocabulary)
    directions = [matches for pattern in (_DIRECTION, _TO, _THAN) for matches in pattern.matches(text, clues)]
    remark = remark_of(plainly)
    has_signs = clues is None or not clues.signs <= PLAIN_SIGNS
    is_notable = not _NOTABLE.isdisjoint(vocabulary)
    hints_at_command = has_signs and may_have_command(plainly)
    return Lexical(
        words=words,
        vocabulary=vocabulary,
        numbers=frozenset(number.replace(",", "") for number in _NUMBER.matches(text, clues)),
        negations=_negations(text, words, clues),
        names=_names(text),
        directions=tuple((_head(a), _head(b)) for a, b in directions),
        transforms=transforms(text),
        quoted=quoted_in(text) if clues is None or _QUOTES(clues) else frozenset(),
        instructions=instructions_in(text) if clues is None or _INSTRUCTS(clues) else frozenset(),
        remark=frozenset(WORD.findall(remark)) - COURTESY if remark else frozenset(),
        plain=plainly,
        clues=clues,
        exact=read_parts(text, vocabulary, frozenset(text) if clues is None else clues.signs),
        command=command_in(text) if hints_at_command or (is_notable and not TRIGGERS.isdisjoint(vocabulary)) else None,
        is_told_apart=is_notable and not TOLD_APART.isdisjoint(vocabulary),
    )


read_stored = lru_cache(maxsize=1024)(read)


def _negations(text: str, words: Sequence[str], clues: LexicalClues | None) -> int:
    if clues is None or clues.joined:
        return len(_NEGATED.matches(text, clues))
    count = 0 if _NEGATES.isdisjoint(clues.runs) else sum(map(_NEGATES.__contains__, words))
    if any(part in clues.plain for part in _NEGATING):
        count += sum(word.startswith(_NEGATING) for word in words)
    return count


def _names(text: str) -> frozenset[str]:
    """Return the names in a text: words with a capital inside, or at the start unless they begin a sentence."""
    if text.islower():
        return frozenset()
    if text.isascii():
        if text[1:].islower():
            return frozenset()  # only the first letter is a capital, as in a sentence
        written = [word for word in ASCII_WORD.findall(text) if not word.islower()]
        inside = {lower for word in written if (lower := word.lower())[1:] != word[1:]}
    else:
        written = [word for word in WORD.findall(text) if not word.islower()]
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
    """Return the words that begin sentences, as written."""
    first = _FIRST_WORD.match(text)
    starts = [] if first is None else [first.start(1)]
    read = 0 if first is None else first.end()
    if _ENDS.search(text, read, len(text) - 1):  # an end sign that nothing follows begins no sentence
        starts += [match.start(1) for match in _FURTHER_STARTERS.finditer(text, read)]
    return [match.group() for start in starts if (match := WORD.match(text, start))]


def _head(phrase: str) -> str:
    """Return the first two words of a phrase, or its only one: they name its subject well enough."""
    words = WORD.findall(phrase.lower())
    return words[0] if len(words) == 1 else " ".join(words[:2]) if words else ""


def difference(query: Lexical, stored: Lexical) -> Refusal | None:
    """Return the first difference that changes the answer, or None."""
    return next(differences(query, stored), None)


def differences(query: Lexical, stored: Lexical) -> Iterator[Refusal]:
    """Yield every difference. Each check runs when its result is requested."""
    if has_other_payload(query, stored):
        yield Refusal.PAYLOAD
    if _instructs_otherwise(query, stored):
        yield Refusal.INSTRUCTION
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
    if query.exact is not None and stored.exact is not None:
        difference = parts_difference(query.exact, stored.exact)
        if difference is not None:
            yield difference


MAX_OTHER_WORDS = 8  # distinct words of two texts that have other numbers: 35 of 40 such pairs ask for different things
MAX_DIFFERING = 4  # distinct words of two texts that are equal but for a negation

# Words in which two texts that are equal but for a negation may differ: "why does it work", "why doesn't it work".
_NEGATION_WORDS = _NEGATES | frozenset(
    (
        "a", "an", "any", "the", "do", "does", "did", "is", "are", "was", "were", "can", "could", "will", "would",
        "should", "must", "may", "have", "has", "had", "ever", "with", "cant", "wont", "dont", "kein", "keine",
        "keinen", "keinem", "keiner", "ein", "eine", "einen", "einem", "einer", "con", "mit",
    )
)  # fmt: skip
_NOT = ("n't", "n\u2019t")  # the end of a negated verb


def hard_difference(mine: Lexical, other: Lexical) -> Refusal | None:
    """Return a difference after which no score may serve the answer, or None.

    Two texts with other instructions to the model, other identifiers, commands or code ask for other things, whatever
    their similarity. So do texts with one number in two units, or with a word and the same word negated.

    Texts that are nearly equal ask for other things, too, if they have other numbers. The same holds for a negation, a
    word and its opposite, and a direction. The check is precise rather than complete: fewer than 1 % of the questions
    that people ask in other words are refused.
    """
    if _instructs_otherwise(mine, other):
        return Refusal.INSTRUCTION
    if mine.command is not other.command and have_other_commands(mine.command, other.command):
        return Refusal.COMMAND
    only_mine, only_other = mine.vocabulary - other.vocabulary, other.vocabulary - mine.vocabulary
    if mine.exact is not None and other.exact is not None:
        difference = _exact_difference(mine, other, only_mine, only_other)
        if difference is not None:
            return difference
    for word in only_mine | only_other:  # as no text has many such words, and a call would cost more
        if word[5:] and (word[:2] in _PREFIXES_BY_START or word[-4:] == "less") and _is_negated(word, mine, other):
            return Refusal.NEGATION
    if len(only_mine) + len(only_other) > MAX_DIFFERING:
        return None
    return _small_difference(mine, other, only_mine, only_other)


def _exact_difference(
    mine: Lexical, other: Lexical, only_mine: frozenset[str], only_other: frozenset[str]
) -> Refusal | None:
    """Return the difference between the numbers, identifiers and code of two texts that both have some."""
    if mine.exact is None or other.exact is None:
        return None
    difference = parts_difference(mine.exact, other.exact)
    if difference is not None:
        return difference
    if _uses_numbers_otherwise(mine, other, only_mine, only_other) or _names_another_number(only_mine, only_other):
        return Refusal.NUMBERS
    if mine.numbers.isdisjoint(other.numbers):
        return None
    return Refusal.UNITS if have_other_units(mine.exact.quantities, other.exact.quantities) else None


def _small_difference(
    mine: Lexical, other: Lexical, only_mine: frozenset[str], only_other: frozenset[str]
) -> Refusal | None:
    """Return the difference of two texts that share nearly all words. `only_mine` are words that `other` lacks."""
    if mine.negations % 2 != other.negations % 2 and all(map(_is_negation, only_mine | only_other)):
        return Refusal.NEGATION
    differing = only_mine | only_other
    if "non" in differing and not any(word != "non" and word.startswith("non") for word in differing):
        return Refusal.NEGATION
    if "free" in differing and ("-free" in mine.plain or "-free" in other.plain):
        return Refusal.NEGATION
    if exclude(only_mine, only_other) or _exchange(mine.words, other.words):
        return Refusal.ANTONYM
    if _variables(mine) != _variables(other) and _variables(mine) and _variables(other):
        return Refusal.CODE
    if mine.vocabulary == other.vocabulary and _has_reversed_direction(mine, other):
        return Refusal.DIRECTION
    return None


LEAST_NEGATED = 4  # letters of a word with a negating prefix; "to" and "into" are no such pair
LEAST_BEHIND_A = 6  # letters behind the Greek prefix: "symmetric", and not "way" and "away"


def _is_negated(word: str, mine: Lexical, other: Lexical) -> bool:
    """Return whether a word of one text is one of the other with a prefix or an ending that negates it.

    A further negation would make up for it: "not happy", "unhappy".
    """
    if mine.negations % 2 != other.negations % 2:
        return False
    has, lacks = (mine, other) if word in mine.vocabulary else (other, mine)
    others = lacks.vocabulary - has.vocabulary
    for prefix in _PREFIXES_BY_START.get(word[:2], ()):
        stem = word.removeprefix(prefix)
        least = LEAST_NEGATED if len(prefix) > 1 else LEAST_BEHIND_A
        if stem in others and least <= len(stem) < len(word) and prefix not in others:
            return True
    return word.endswith("less") and len(others) <= MAX_DIFFERING and f"{word[:-4]}ful" in others


def _names_another_number(only_mine: frozenset[str], only_other: frozenset[str]) -> bool:
    """Return whether two texts that are nearly equal have other numbers: "one pill", "two pills".

    "one" counts here, where another number stands in its place.
    """
    if len(only_mine) + len(only_other) > MAX_OTHER_WORDS or WORDS_OF_NUMBERS.isdisjoint(only_mine | only_other):
        return False
    mine, other = numbers_in_words(only_mine), numbers_in_words(only_other)
    return mine is not None and other is not None and bool(mine) and bool(other) and mine.isdisjoint(other)


def _uses_numbers_otherwise(
    mine: Lexical, other: Lexical, only_mine: frozenset[str], only_other: frozenset[str]
) -> bool:
    """Return whether the numbers of two texts ask for different things. `only_mine` are words that `other` lacks."""
    a, b = mine.exact, other.exact
    if a is None or b is None:
        return False
    each_has_another = have_other_numbers(a, b)
    if each_has_another and _is_number_swapped(only_mine, only_other):
        return True
    if not ((mine.numbers or a.words) and (other.numbers or b.words)):
        return False
    if counts_otherwise(a, b) or differs_in_sign(a, b):
        return True
    close = not each_has_another or len(only_mine) + len(only_other) <= MAX_OTHER_WORDS
    return close and have_other_amounts(a, b)


_LETTERS_AND_WORDS = frozenset(("a", "i", "o", "s", "t", "u"))  # also words, or ends of words


def _exchange(a: Sequence[str], b: Sequence[str]) -> bool:
    """Return whether two texts differ in one word, by one that excludes it.

    Each may also have the other's word elsewhere: "a visa to travel to Peru", "a visa to travel from Peru".
    """
    if len(a) != len(b):
        return False
    differing = [(x, y) for x, y in zip(a, b, strict=True) if x != y]
    return len(differing) == 1 and exclude(*({word} for word in differing[0]))


def _variables(text: Lexical) -> list[str]:
    """Return the single letters of a text in their order: "x ? y : z" is not "x ? z : y"."""
    return [word for word in text.words if len(word) == 1 and word.isalpha() and word not in _LETTERS_AND_WORDS]


def _is_number_swapped(only_mine: frozenset[str], only_other: frozenset[str]) -> bool:
    """Return whether the numbers are the only words that one of two texts does not share with the other."""
    return all(map(is_number, only_mine)) or all(map(is_number, only_other))


def _is_negation(word: str) -> bool:
    return word in _NEGATION_WORDS or word.endswith(_NOT)


def has_other_payload(query: Lexical, stored: Lexical) -> bool:
    """Return whether the payloads differ.

    A text to transform must be the same word for word, and each text must contain the other's quotations.
    """
    if (query.transforms or stored.transforms) and query.words != stored.words:
        return True
    return any(text not in stored.plain for text in query.quoted) or any(
        text not in query.plain for text in stored.quoted
    )


def _instructs_otherwise(a: Lexical, b: Lexical) -> bool:
    """Return whether the texts have other instructions to the model, or a remark with a word that the other lacks."""
    return a.instructions != b.instructions or not (a.remark <= b.vocabulary and b.remark <= a.vocabulary)


def _has_opposites(query: Lexical, stored: Lexical) -> bool:
    """Return whether a word in one text meets its opposite, but not itself, in the other."""
    a, b = query.vocabulary, stored.vocabulary
    return a != b and any(COMMON_OPPOSITES[word] & (b - a) for word in a - b if word in COMMON_OPPOSITES)


def _has_reversed_direction(query: Lexical, stored: Lexical) -> bool:
    if not query.directions or not stored.directions:
        return False
    directions = frozenset(stored.directions)
    return any((b, a) in directions and a != b for a, b in query.directions)


def _has_other_names(query: Lexical, stored: Lexical) -> bool:
    """Return whether each text names something that the other does not mention.

    Names on one side only are often an address ("Hi Bob, ...") or a detail, which the similarity judges.
    """
    return bool(query.names - stored.vocabulary) and bool(stored.names - query.vocabulary)
