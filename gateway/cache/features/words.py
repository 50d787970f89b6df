"""Compute the features of a pair of readings: differences that may change the answer. Symmetric in the two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from functools import lru_cache, reduce
from itertools import chain, combinations
from operator import add
from typing import NamedTuple

from gateway.cache.exclusive_words import OPPOSITES
from gateway.cache.features.reading import STEM_CACHE_SIZE, QuestionReading
from gateway.cache.features.vocabulary import STOP

_MAX_STEMS = 24  # unmatched or shared words that are compared one by one; bounds the quadratic parts
_CAP = 4.0  # a fifth difference says no more than the fourth
_NO_KINDS = (0.0,) * 12


class WordFeatures(NamedTuple):
    """The features of one pair.

    `*_swapped` counts differences that both sides have (0 to 4). `*_extra` counts those that one side has more (0 to
    4).
    """

    numbers_swapped: float
    numbers_extra: float
    units_swapped: float
    units_extra: float
    calendar_swapped: float
    calendar_extra: float
    quantifiers_swapped: float
    quantifiers_extra: float
    comparatives_swapped: float
    comparatives_extra: float
    quoted_differ: float
    code_differ: float
    names_swapped: float
    names_extra: float
    negation: float  # 1 when one is negated and the other is not
    opposites: float  # words whose opposite stands in the other text, 0 to 4
    reversed: float  # 1 when "from A to B" or "A before B" meets its reverse
    inverted: float  # share of shared content-word pairs in reverse order, 0 to 1
    inverted_same_words: float  # the same if all content words are shared and order may matter, else 0
    asks_differ: float  # 0 for the same kind of answer, 1 for another, 0.5 if one side does not say
    aspects_swapped: float
    aspects_extra: float
    conditions_swapped: float  # phrases ("for children") without any word in the other text
    conditions_extra: float
    conditions_partly_swapped: float  # phrases with at least one word that the other text lacks
    conditions_partly_extra: float
    head_differ: float  # share of the two texts' first content words that the other text lacks
    end_differ: float  # the same for the last content words
    longest_swapped: float  # letters of the longest content word that the other text lacks: the smaller of both sides
    longest_extra: float  # how many more letters the other side's longest word has
    tense: float
    modal: float
    person: float
    content_swapped: float
    content_extra: float
    content_shared: float  # shared content stems / all, 0 to 1
    content_contained: float  # shared content stems / those of the shorter text, 0 to 1
    unmatched_likeness: float  # mean best trigram likeness of unmatched stems (typos, other forms), 0 to 1
    words_shared: float  # shared words / all, 0 to 1
    bigrams_shared: float  # shared adjacent word pairs / all, 0 to 1
    length_ratio: float  # words of the shorter / words of the longer text, 0 to 1
    length: float  # words of the shorter text, 0 to 40


def word_features(query: QuestionReading, stored: QuestionReading) -> WordFeatures:
    """Compute the features by position. Passing the 42 names as keywords costs 5 us more."""
    a, b = query.positions.keys(), stored.positions.keys()
    left_a, left_b = a - b, b - a
    shared = len(a) - len(left_a)
    only_a, only_b, likeness = _unmatched(left_a, left_b)
    words_a, words_b = query.vocabulary, stored.vocabulary
    inverted = _inverted(query.positions, stored.positions)
    ordered = not (query.symmetric and stored.symmetric) and not only_a and not only_b
    shorter, longer = sorted((len(query.words), len(stored.words)))
    return WordFeatures._make((
        *_kinds(query.kinds, stored.kinds),
        # A name that the other text writes in lower case is no difference. Neither is a stop word in capitals.
        *_difference(query.names - words_b - STOP, stored.names - words_a - STOP),
        float(query.negations % 2 != stored.negations % 2),
        _opposites(words_a - words_b, words_b - words_a),
        _reversed(query.directions, stored.directions),
        inverted,
        inverted if ordered else 0.0,
        _question_types_differ(query.question_type, stored.question_type),
        *_difference(query.aspects, stored.aspects),
        *_conditions(query, stored),
        *_ends(query, stored, left_a, left_b),
        float(query.tenses != stored.tenses),
        float(query.modals != stored.modals),
        float(query.persons != stored.persons),
        min(float(min(only_a, only_b)), _CAP),
        min(float(abs(only_a - only_b)), _CAP),
        _share(shared, len(a), len(b)),
        shared / max(1, min(len(a), len(b))),
        likeness,
        _share(len(words_a & words_b), len(words_a), len(words_b)),
        _share(len(query.pairs & stored.pairs), len(query.pairs), len(stored.pairs)),
        (shorter + 1) / (longer + 1),
        min(float(shorter), 40.0),
    ))  # fmt: skip


def _kinds(a: Sequence[Set[str]], b: Sequence[Set[str]]) -> Iterable[float]:
    """Return swapped and extra for five kinds. Quotations and code get the sum of both."""
    if a == b:
        return _NO_KINDS
    *five, quoted, code = map(_difference, a, b)
    return *chain.from_iterable(five), sum(quoted), sum(code)


def _difference(a: Set[str], b: Set[str]) -> tuple[float, float]:
    if a == b:
        return 0.0, 0.0
    only_a, only_b = len(a - b), len(b - a)
    return min(float(min(only_a, only_b)), _CAP), min(float(abs(only_a - only_b)), _CAP)


def _conditions(query: QuestionReading, stored: QuestionReading) -> tuple[float, float, float, float]:
    if query.conditions == stored.conditions:  # each has all words of the other's
        return 0.0, 0.0, 0.0, 0.0
    none_a, some_a = _lacked(query.conditions, stored.positions.keys())
    none_b, some_b = _lacked(stored.conditions, query.positions.keys())
    return (
        min(float(min(none_a, none_b)), _CAP),
        min(float(abs(none_a - none_b)), _CAP),
        min(float(min(some_a, some_b)), _CAP),
        min(float(abs(some_a - some_b)), _CAP),
    )


def _lacked(conditions: Sequence[tuple[str, Set[str]]], stems: Set[str]) -> tuple[int, int]:
    """Return how many phrases have no word among the stems, and how many miss at least one."""
    none = some = 0
    for _, phrase in conditions:
        if not phrase <= stems:
            some += 1
            none += phrase.isdisjoint(stems)
    return none, some


def _ends(
    query: QuestionReading, stored: QuestionReading, left_a: Set[str], left_b: Set[str]
) -> tuple[float, float, float, float]:
    if not left_a and not left_b:
        return 0.0, 0.0, 0.0, 0.0
    first = last = 0
    for words, left in ((query.content, left_a), (stored.content, left_b)):
        if left:
            first += words[0] in left
            last += words[-1] in left
    longest_a, longest_b = (min(max(map(len, left), default=0), 12) for left in (left_a, left_b))
    return first / 2, last / 2, float(min(longest_a, longest_b)), float(abs(longest_a - longest_b))


def _opposites(only_a: Set[str], only_b: Set[str]) -> float:
    if not only_a or not only_b:
        return 0.0
    opposed = [word for word in only_a if word in OPPOSITES and not OPPOSITES[word].isdisjoint(only_b)]
    return min(float(len(opposed)), _CAP)


def _reversed(a: Set[tuple[str, str]], b: Set[tuple[str, str]]) -> float:
    if not a or not b:
        return 0.0
    return float(any((y, x) in b and x != y for x, y in a))


def _question_types_differ(a: str, b: str) -> float:
    if a == b:
        return 0.0
    return 0.5 if {a, b} & {"", "thing"} else 1.0


def _share(shared: int, a: int, b: int) -> float:
    return shared / (a + b - shared) if a or b else 1.0


def _inverted(a: Mapping[str, int], b: Mapping[str, int]) -> float:
    """Return the share of all pairs of shared words that stand in the other order."""
    positions = [b[word] for word in a if word in b][:_MAX_STEMS]
    if positions == sorted(positions):
        return 0.0
    pairs = list(combinations(positions, 2))
    return sum(x > y for x, y in pairs) / len(pairs)


def _unmatched(only_a: Set[str], only_b: Set[str]) -> tuple[int, int, float]:
    """Return the stems without a counterpart on each side, and their mean likeness.

    Look-alikes (typos) count as counterparts.
    """
    if not only_a or not only_b:
        return len(only_a), len(only_b), 0.0
    grams_b = [_trigrams(word) for word in sorted(only_b)[:_MAX_STEMS]]
    best = list[float]()
    alike = 0
    for word in sorted(only_a)[:_MAX_STEMS]:
        mine, top = _trigrams(word), 0.0
        for theirs in grams_b:
            if shared := len(mine & theirs):
                top = max(top, 2 * shared / (len(mine) + len(theirs)))
        best.append(top)
        alike += top >= 0.6 and not any(map(str.isdigit, word))
    alike = min(alike, len(only_a), len(only_b))
    # Not `sum`: Python 3.12 changed its rounding, and the trees were trained on these exact bits.
    return len(only_a) - alike, len(only_b) - alike, reduce(add, best) / len(best)


@lru_cache(maxsize=STEM_CACHE_SIZE)
def _trigrams(word: str) -> frozenset[str]:
    padded = f"^{word[:40]}$"
    return frozenset(padded[at : at + 2] for at in range(len(padded) - 1))
