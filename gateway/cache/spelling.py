"""Decide what may differ between two texts that count as the same, letter by letter. Pure.

An embedding model drops case, accents and most signs, so texts that differ in them have the similarity 1. This module
compares what the model does not see. `compare` is the one function that decides. `gateway.text_forms` has folded before
what no text can mean by itself, such as full width.

Two texts of the same words count as the same where all their differences are in `HARMLESS`. Differences in `JUDGED` are
left to the verifier. Every other one is a veto with a reason. A paraphrase may write more otherwise. So in texts with
other words only the signs, the accents and the case of `TOLD_APART` are compared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from typing import Literal
from unicodedata import category, normalize

from gateway.cache.lexical import Lexical
from gateway.cache.spelling_words import (
    ABOUT_MARKS,
    ABOUT_SIGNS,
    CASED_UNITS,
    CONTRACTIONS,
    LETTERS,
    LINKING,
    NAMES,
    TOLD_APART,
    WITH_OR_WITHOUT_ACCENT,
    WORDS_AND_ACRONYMS,
)
from gateway.outcomes import Refusal
from gateway.text_forms import fold_forms, fold_spaces
from gateway.words import WORD

HARMLESS: Mapping[str, str] = {
    "case at the start of a sentence": "it marks the sentence, whatever the word is",
    "case of a text in small letters": "who writes so writes every word so; not units, flags, code, letters, and "
    "acronyms that are a word in small letters, such as IT",
    "case of a text in capitals, or of a heading": "the same, the other way round",
    "case of I, and of days, months, countries and languages": "the word has no second meaning",
    "typographic quotes, apostrophes and dashes": "an editor makes them; not where the question is about such signs",
    "spaces": "between words and around punctuation; not around signs, and not in texts of several lines",
    "marks at the end of a sentence": "people leave them out; not the factorial of a number or a letter",
    "\u00bf and \u00a1": "the end of the sentence has its mark, too",
    "the apostrophe of a contraction": "whats is what's; not its, were and others that are words themselves",
    "an emoji of pure tone before or behind the text": "it greets, thanks or smiles; not where the question is about a "
    "mood or an emoji",
}
JUDGED: Mapping[str, str] = {
    "commas, colons, brackets, quotes and full stops between words": "they seldom change the question, yet they can",
    "a hyphen or a slash between two words": "supply chain and supply-chain; not within a number",
    "line ends and indentation": "of prose they mean nothing, of code they may",
}

MAX_CHARACTERS = 4096  # of a text; longer texts are equal in the rest, or have no lookup by meaning
CACHED = 2048  # texts


class Sameness(Enum):
    SAME = "same"


SAME = Sameness.SAME
"""The two texts count as the same."""

Comparison = Refusal | Literal[Sameness.SAME] | None

_PROSE = str.maketrans(
    dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb\u300c\u300d\u300e\u300f", '"')
    | dict.fromkeys("\u2018\u2019\u201a\u201b\u2039\u203a\u02bc\u00b4", "'")
    | dict.fromkeys("\u2010\u2011\u2012", "-")
    | {"\u2015": "\u2014", "\u2212": "-"}
)
_BULLET = re.compile(r"\A\s*[\u2022*-]\s+")
_SPACES = re.compile(r"\s+")
_FRENCH_QUOTES = frozenset(" \u00ab\u00bb")
_LONG_DASH = re.compile(r" ?\u2014 ?| \u2013 ")
_BEFORE_MARK = re.compile(r" +(?=[,;:.?!)\"])")
_BEHIND_MARK = re.compile(r"(?<=[(\"]) +")
_OPENING = str.maketrans("", "", "\u00bf\u00a1")
_END = re.compile(r"[\s.?!\u061f\u2047-\u2049]+\Z")
_WEAK = frozenset(" ,;:.?!'\"()`/\n\r\t-")
# A sign in front of a word: an option, a negative number, a hidden file, a path from the root.
_ATTACHED = re.compile(r"[\s(\"'`][-./\u2013]+\Z")
_OPENS = re.compile(r"[\s\"'(\u201c\u2018\u00ab\u201e\u00bf\u00a1]*")
_SENTENCE = re.compile(r"[.?!\n\u2026][\s\"'(\u201c\u2018\u00ab\u201e\u00bf\u00a1*#>-]*\Z")

_AREA = re.compile(r"(?<=[mt])[\u00b2\u00b3]")  # square and cubic metres and feet, which have a name in words
# Emoji that greet, thank, smile or think. Those that cry, laugh at somebody, rage or judge are a mood, which may be
# what the text is about.
_TONES = (
    "\u263a\u2728\u2764\U0001f389\U0001f38a\U0001f44b\U0001f44d\U0001f490\U0001f493\U0001f495-\U0001f49d\U0001f600"
    "\U0001f601\U0001f603-\U0001f607\U0001f609\U0001f60a\U0001f60b\U0001f60c\U0001f60e\U0001f642\U0001f64b\U0001f64f\U0001f917"
    "\U0001f914\U0001f929\U0001f970\U0001f973\U0001f97a\U0001f31f\U0001f4aa\U0001f64c\U0001f648\U0001f91e"
)
_TONE = re.compile(f"(?:[{_TONES}][\ufe0f\U0001f3fb-\U0001f3ff]*\\s*|(?:\\A|(?<=\\s))[:;]-?[)D](?:\\s+|\\Z))+")

_BARE = {word.replace("'", ""): word for word in CONTRACTIONS}

# Signs that are compared in every text. Currencies and degrees are units, and dashes and quotes are punctuation.
_SIGN_CATEGORIES = frozenset(("So", "Sm", "Sk", "No", "Po", "Mn", "Me"))
_NO_SIGNS = frozenset(
    "\u00b0\u00bf\u00a1\u2026\u2022\u00b7\u2027\u3001\u2018\u2019\u2020\u2021\u00a7\u00b6\u2019\u2032\u2033\u00b4\u00ae\u2122\u00a9"
)


@dataclass(slots=True)
class _CaseOfText:
    lower: bool  # no capital at all
    upper: bool  # no small letter in two words or more
    heading: bool  # every longer word begins with a capital


class Spelling:
    """The letters and signs of one text. Most of it is read only where two texts have the same words."""

    def __init__(self, text: str) -> None:
        self.text = text = fold_forms(text[:MAX_CHARACTERS])
        self.ascii = text.isascii()
        self.words = tuple(WORD.findall(text))
        lower = text.lower()
        self.lower = self.words if lower == text else tuple(WORD.findall(lower))
        if len(self.lower) != len(self.words):  # a capital that is two characters in small letters
            self.lower = tuple(map(str.lower, self.words))
        if not self.ascii:
            self.lower = tuple([word.replace("\u2019", "'") for word in self.lower])
        self.vocabulary = frozenset(self.lower)
        self.cased = self._cased()
        self.signs = frozenset[str]() if self.ascii else self._signs()

    def _cased(self) -> Mapping[str, frozenset[str]]:
        """Return the forms of each word whose case tells meanings apart."""
        words = TOLD_APART & self.vocabulary
        if not words:
            return {}
        forms: dict[str, set[str]] = {word: set() for word in words}
        for at, (word, low) in enumerate(zip(self.words, self.lower, strict=True)):
            if low in forms:
                # A capital at the start of a sentence says nothing, so the word counts in both forms.
                is_either = (word[1:] == low[1:] and self.starts(at)) or (low == "us" and self.lower[at - 1] == "the")
                forms[low].update((word, low, low.upper()) if is_either else (word,))
        return {word: frozenset(each) for word, each in forms.items()}

    def _signs(self) -> frozenset[str]:
        text = self.text
        if self.may_have_tone:
            text = _TONE.sub(" ", text)
        text = _AREA.sub("", text)
        return frozenset(
            [s for s in set(text) if s > "\x7f" and category(s) in _SIGN_CATEGORIES and s not in _NO_SIGNS]
        )

    @cached_property
    def gaps(self) -> tuple[str, ...]:
        """The texts before, between and behind the words."""
        return tuple(WORD.split(self.text))

    @cached_property
    def bare(self) -> tuple[str, ...]:
        """The words without accents."""
        return self.lower if self.ascii else tuple(map(_without_accents, self.lower))

    @cached_property
    def case(self) -> _CaseOfText:
        text = self.text
        if text == text.lower():
            return _CaseOfText(lower=True, upper=False, heading=False)
        longer = [word for word in self.words if len(word) > 1]
        if text == text.upper():
            return _CaseOfText(lower=False, upper=len(longer) > 1, heading=False)
        content = [word for word in self.words if len(word) > 3]
        return _CaseOfText(False, False, len(content) > 2 and all(word[0].isupper() for word in content))

    @cached_property
    def may_have_tone(self) -> bool:
        """Whether an emoji around the text would be pure tone."""
        return self.vocabulary.isdisjoint(ABOUT_SIGNS)

    def starts(self, at: int) -> bool:
        """Return whether a word begins a sentence."""
        return (at == 0 and not self.gaps[0].strip()) or _SENTENCE.search(self.gaps[at]) is not None

    def is_code(self, at: int) -> bool:
        """Return whether a sign makes a word an option, a variable, a pattern, a call, a path or a file."""
        before, behind = self.gaps[at], self.gaps[at + 1]
        if before and before[-1] in "%\\$@#_=+*<>|&~^[{:" and not before.isspace():
            return True
        if behind and behind[0] in "([_=+*|^{\\~<>":
            return True
        if behind[:1] == "." and len(behind) == 1 and at + 2 < len(self.gaps):
            return True
        return before[-1:] == "`" or _ATTACHED.search(before if at else f" {before}") is not None

    def follows_number(self, at: int) -> bool:
        return at > 0 and self.words[at - 1][-1:].isdigit() and self.gaps[at] in ("", " ")


def _without_accents(word: str) -> str:
    if word.isascii():
        return word
    return "".join([sign for sign in normalize("NFD", word) if category(sign) != "Mn"]).translate(_STROKES)


# Letters with a stroke or a dot, which do not decompose, and which models and people take for the plain letter.
_STROKES = str.maketrans("\u0142\u00f8\u0111\u0131\u0127\u0167", "lodiht")

read = lru_cache(CACHED)(Spelling)


def compare(query: str, stored: str) -> Comparison:
    """Compare two texts; return `SAME`, a veto, or None where the verifier has to judge."""
    if query == stored:
        return SAME
    return compare_spellings(read(query), read(stored))


def spelling_veto(query: str, stored: str) -> Refusal | None:
    """Return the veto of `compare`, for a route whose threshold is a similarity."""
    difference = compare(query, stored)
    return None if difference is SAME else difference


def compare_read(query: str, mine: Lexical, stored: str, other: Lexical) -> Comparison:
    """Compare as `compare` does. `mine` and `other` are the texts as the lexical checks read them.

    Most neighbours are ASCII and have other words, none of which is a name in capitals. Nothing more is read of them.
    """
    if mine.clues is not None and other.clues is not None:  # both are ASCII
        words, its = mine.words, other.words
        same = words == its
        if not same and (mine.clues.joined or other.clues.joined) and len(words) == len(its):
            same = all(map(_is_same_word, words, its))
        if not same and not (mine.is_told_apart and other.is_told_apart):
            return None
    return compare(query, stored)


def compare_spellings(a: Spelling, b: Spelling) -> Comparison:
    """Compare as `compare` does."""
    if a.text == b.text:
        return SAME
    if len(a.lower) == len(b.lower):
        if a.lower == b.lower or all(map(_is_same_word, a.lower, b.lower)):
            return _compare_same_words(a, b)
        if not (a.ascii and b.ascii) and a.bare == b.bare:
            return Refusal.ACCENT
    return _compare_other_words(a, b)


def _is_same_word(x: str, y: str) -> bool:
    """Return whether two words in small letters are the same but for the apostrophe of a contraction."""
    return x == y or _BARE.get(x, x) == _BARE.get(y, y)


def _compare_other_words(a: Spelling, b: Spelling) -> Refusal | None:
    if a.signs != b.signs:
        return Refusal.SIGN
    if a.cased and b.cased:
        for word in a.cased.keys() & b.cased.keys():
            if a.cased[word].isdisjoint(b.cased[word]):
                return Refusal.CASE
    if not (a.ascii and b.ascii) and (_lacks_accent(a, b) or _lacks_accent(b, a)):
        return Refusal.ACCENT
    return None


def _lacks_accent(mine: Spelling, other: Spelling) -> bool:
    """Return whether a word has accents here and none, or others, in the other text."""
    return any(
        bare != word and word not in other.vocabulary and bare in other.bare and bare not in WITH_OR_WITHOUT_ACCENT
        for word, bare in zip(mine.lower, mine.bare, strict=True)
    )


def _compare_same_words(a: Spelling, b: Spelling) -> Comparison:
    for at, (x, y) in enumerate(zip(a.words, b.words, strict=True)):
        if x != y and not _may_differ_in_case(x, y, at, a, b):
            return Refusal.CASE
    return _compare_gaps(a, b)


def _may_differ_in_case(x: str, y: str, at: int, a: Spelling, b: Spelling) -> bool:
    low = a.lower[at]
    if len(low) != len(b.lower[at]):  # a contraction: only its first letter counts
        return x[1:].islower() and y[1:].islower() and (x[0] == y[0] or a.starts(at) or b.starts(at))
    if x.replace("\u2019", "'") == y.replace("\u2019", "'"):
        return True
    if a.is_code(at) or b.is_code(at):
        return False
    if low in NAMES["without a second meaning"]:
        return True
    if x[1:] == y[1:]:
        return _may_differ_in_capital(low, at, a, b)
    if a.case.lower or b.case.lower:
        return _may_lose_capitals(y if a.case.lower else x, low, at, a)
    is_upper = a.case.upper or b.case.upper
    return is_upper and len(low) > 1 and low not in TOLD_APART and not a.follows_number(at)


def _may_differ_in_capital(low: str, at: int, a: Spelling, b: Spelling) -> bool:
    """Return whether a word may begin with a capital or not."""
    if len(low) == 1:
        if low == "i":
            return at + 1 < len(a.words) and not a.follows_number(at)
        if a.starts(at) or b.starts(at):
            return low not in LETTERS
        return (a.case.lower or b.case.lower) and at > 0 and a.lower[at - 1] in NAMES["before a letter"]
    if a.starts(at) and b.starts(at):
        return True
    if a.case.lower or b.case.lower:
        return not (low in CASED_UNITS and a.follows_number(at))
    return (a.case.heading or b.case.heading) and low not in TOLD_APART


def _may_lose_capitals(written: str, low: str, at: int, a: Spelling) -> bool:
    """Return whether a word with several capitals may stand in a text of small letters."""
    if written.isupper():
        name = low.lstrip("0123456789")
        is_unit = name in CASED_UNITS and (name != low or a.follows_number(at))
        return len(low) > 1 and low not in WORDS_AND_ACRONYMS and not is_unit
    if any(map(str.isdigit, written)) or len(low) < 4:
        return low == "ph" and written == "pH"
    return not a.follows_number(at)


def _compare_gaps(a: Spelling, b: Spelling) -> Comparison:
    last, same = len(a.words), True
    if fold_spaces(a.text) == fold_spaces(b.text):
        return SAME
    if not last:
        return Refusal.SIGN
    for at, (x, y) in enumerate(zip(a.gaps, b.gaps, strict=True)):
        if x == y:
            continue
        before, behind = a.words[at - 1] if at else "", a.words[at] if at < last else ""
        if at == 0:
            x, y = _beginning(x, a), _beginning(y, b)
        elif at == last:
            x, y = _ending(x, a, before), _ending(y, b, before)
        x, y = _folded(x, a), _folded(y, b)
        if x == y:
            continue
        if not _is_weak(x, y, before, behind):
            marks = {sign for sign in set(x) ^ set(y) if category(sign).startswith("M")}
            return Refusal.ACCENT if marks else Refusal.SIGN
        same = False
    return SAME if same else None


def _beginning(gap: str, text: Spelling) -> str:
    if text.may_have_tone:
        gap = _TONE.sub("", gap)
    return _BULLET.sub("", gap.translate(_OPENING)).lstrip()


def _ending(gap: str, text: Spelling, before: str) -> str:
    """Return what follows the last word without the marks that end a sentence and the emoji of pure tone."""
    if text.may_have_tone and (gap[:1] in ".?!" or text.lower[-1] not in LINKING) and ":" not in gap.rstrip(":)D "):
        gap = _TONE.sub("", gap)
    is_operand = before[-1:].isdigit() or len(before) == 1 or gap[:1] in ")]}"
    if is_operand and "!" in gap and "?!" not in gap:
        return gap.rstrip(" \t\r\n?.")
    return _END.sub("", gap)


def _folded(gap: str, text: Spelling) -> str:
    gap = gap.translate(_OPENING)
    if not text.ascii and not gap.isascii():
        stands_alone = len(gap.strip()) == 1 and gap[:1] == gap[-1:] == " " and not _FRENCH_QUOTES.issuperset(gap)
        if not stands_alone or text.vocabulary.isdisjoint(ABOUT_MARKS):
            gap = _LONG_DASH.sub(" - ", gap.translate(_PROSE)).replace("\u2013", "-")
    if "\n" in gap:
        return gap
    return _BEHIND_MARK.sub("", _BEFORE_MARK.sub("", _SPACES.sub(" ", gap)))


def _is_weak(x: str, y: str, before: str, behind: str) -> bool:
    """Return whether the verifier may judge a difference between two words; see `JUDGED`."""
    if x.split() == y.split():
        return True
    if not _WEAK.issuperset(x) or not _WEAK.issuperset(y):
        return False
    if not before:  # in front of the first word, where a sign stands as if behind a space
        x, y = f" {x}", f" {y}"
    if behind and (_ATTACHED.search(x) is None) != (_ATTACHED.search(y) is None):
        return False
    if (x.count("/"), x.count("'")) != (y.count("/"), y.count("'")) and (
        len(before) < 2 or not behind or "//" in x + y
    ):
        return False
    if before[-1:].isdigit() and ("!" in x) != ("!" in y):
        return False
    if before[-1:].isdigit() or behind[:1].isdigit():
        return " " in x and " " in y and not {"-", "/", "\u2013"} & (set(x) ^ set(y))
    return len(before) != 1 or len(behind) != 1
