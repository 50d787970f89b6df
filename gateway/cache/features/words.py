"""Features of a pair of readings: in what they differ that may change the answer. Symmetric in the two."""

from __future__ import annotations

from collections.abc import Set
from itertools import combinations, pairwise
from typing import NamedTuple

from gateway.cache.features.reading import Reading
from gateway.cache.features.vocabulary import OPPOSITES, STOP

_MOST = 24  # unmatched or shared words that are compared one by one: bounds the quadratic parts
_CAP = 4.0  # a fifth difference says no more than a fourth


class WordFeatures(NamedTuple):
    """`*_swapped`: both sides have one of their own (0 to 4). `*_extra`: one side has more of its own (0 to 4)."""

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
    inverted: float  # share of shared content-word pairs in the other order, 0 to 1
    inverted_same_words: float  # the same, where no content word is unshared and order may matter; else 0
    asks_differ: float  # 0 same kind of answer, 0.5 one does not say, 1 another kind
    aspects_swapped: float
    aspects_extra: float
    conditions_swapped: float  # phrases ("for children") of which the other text has no word
    conditions_extra: float
    conditions_partly_swapped: float  # of which it lacks a word
    conditions_partly_extra: float
    head_differ: float  # share of both texts' first content words that the other lacks
    end_differ: float  # of their last ones
    longest_swapped: float  # letters of the longest content word that the other text lacks, of the side with less
    longest_extra: float  # and how much more the other side's has
    tense: float
    modal: float
    person: float
    content_swapped: float
    content_extra: float
    content_shared: float  # shared content stems over all, 0 to 1
    content_contained: float  # shared content stems over the shorter's, 0 to 1
    unmatched_likeness: float  # mean best trigram likeness of unmatched stems (typos, other forms), 0 to 1
    words_shared: float  # all words, shared over all, 0 to 1
    bigrams_shared: float  # word pairs in order, shared over all, 0 to 1
    length_ratio: float  # shorter over longer, in words, 0 to 1
    length: float  # words of the shorter, 0 to 40


def word_features(asked: Reading, stored: Reading) -> WordFeatures:
    a, b = set(asked.content), set(stored.content)
    only_a, only_b, likeness = _unmatched(a - b, b - a)
    words_a, words_b = set(asked.words), set(stored.words)
    kinds = [_difference(x, y) for x, y in zip(asked.kinds, stored.kinds, strict=True)]
    inverted = _inverted(asked.content, stored.content, a & b)
    ordered = not (asked.symmetric and stored.symmetric) and not only_a and not only_b
    shorter, longer = sorted((len(asked.words), len(stored.words)))
    return WordFeatures(
        *kinds[0], *kinds[1], *kinds[2], *kinds[3], *kinds[4],
        quoted_differ=sum(kinds[5]),
        code_differ=sum(kinds[6]),
        **(_names(asked, stored, words_a, words_b) | _phrases(asked, stored, a, b) | _ends(asked, stored, a, b)),
        negation=float(asked.negations % 2 != stored.negations % 2),
        opposites=_opposites(words_a - words_b, words_b - words_a),
        reversed=float(any((y, x) in stored.directions and x != y for x, y in asked.directions)),
        inverted=inverted,
        inverted_same_words=inverted if ordered else 0.0,
        asks_differ=_asks_differ(asked.asks, stored.asks),
        tense=float(asked.tenses != stored.tenses),
        modal=float(asked.modals != stored.modals),
        person=float(asked.persons != stored.persons),
        content_swapped=min(float(min(only_a, only_b)), _CAP),
        content_extra=min(float(abs(only_a - only_b)), _CAP),
        content_shared=_share(a, b),
        content_contained=len(a & b) / max(1, min(len(a), len(b))),
        unmatched_likeness=likeness,
        words_shared=_share(words_a, words_b),
        bigrams_shared=_share(_bigrams(asked.words), _bigrams(stored.words)),
        length_ratio=(shorter + 1) / (longer + 1),
        length=min(float(shorter), 40.0),
    )  # fmt: skip


def _difference(a: Set[str], b: Set[str]) -> tuple[float, float]:
    only_a, only_b = len(a - b), len(b - a)
    return min(float(min(only_a, only_b)), _CAP), min(float(abs(only_a - only_b)), _CAP)


def _names(asked: Reading, stored: Reading, words_a: set[str], words_b: set[str]) -> dict[str, float]:
    """A name that the other text mentions in lower case is no difference; nor is a stop word in capitals."""
    swapped, extra = _difference(asked.names - words_b - STOP, stored.names - words_a - STOP)
    return {"names_swapped": swapped, "names_extra": extra}


def _phrases(asked: Reading, stored: Reading, a: set[str], b: set[str]) -> dict[str, float]:
    aspects = _difference(asked.aspects, stored.aspects)
    none = [sum(not of & other for _, of in each.conditions) for each, other in ((asked, b), (stored, a))]
    some = [sum(not of <= other for _, of in each.conditions) for each, other in ((asked, b), (stored, a))]
    return {
        "aspects_swapped": aspects[0],
        "aspects_extra": aspects[1],
        "conditions_swapped": min(float(min(none)), _CAP),
        "conditions_extra": min(float(abs(none[0] - none[1])), _CAP),
        "conditions_partly_swapped": min(float(min(some)), _CAP),
        "conditions_partly_extra": min(float(abs(some[0] - some[1])), _CAP),
    }


def _ends(asked: Reading, stored: Reading, a: set[str], b: set[str]) -> dict[str, float]:
    sides = ((asked.content, b), (stored.content, a))
    longest = [min(max((len(word) for word in words if word not in other), default=0), 12) for words, other in sides]
    return {
        "head_differ": sum(words[0] not in other for words, other in sides if words) / 2,
        "end_differ": sum(words[-1] not in other for words, other in sides if words) / 2,
        "longest_swapped": float(min(longest)),
        "longest_extra": float(abs(longest[0] - longest[1])),
    }


def _opposites(only_a: set[str], only_b: set[str]) -> float:
    return min(float(sum(1 for word in only_a if word in OPPOSITES and OPPOSITES[word] & only_b)), _CAP)


def _asks_differ(a: str, b: str) -> float:
    if a == b:
        return 0.0
    return 0.5 if {a, b} & {"", "thing"} else 1.0


def _share(a: Set[object], b: Set[object]) -> float:
    return len(a & b) / len(a | b) if a or b else 1.0


def _bigrams(words: tuple[str, ...]) -> Set[object]:
    return set(pairwise(words))


def _inverted(a: tuple[str, ...], b: tuple[str, ...], shared: set[str]) -> float:
    """Of all pairs of shared words, the share that stands the other way round."""
    order_a = [word for word in dict.fromkeys(a) if word in shared][:_MOST]
    place = {word: at for at, word in reversed(list(enumerate(b)))}
    pairs = list(combinations(order_a, 2))
    return sum(place[x] > place[y] for x, y in pairs) / len(pairs) if pairs else 0.0


def _unmatched(only_a: set[str], only_b: set[str]) -> tuple[int, int, float]:
    """How many stems of each side have no counterpart, once look-alikes (typos) are matched; and how alike they are."""
    if not only_a or not only_b:
        return len(only_a), len(only_b), 0.0
    grams_b = {word: _trigrams(word) for word in sorted(only_b)[:_MOST]}
    best = []
    alike = 0
    for word in sorted(only_a)[:_MOST]:
        mine = _trigrams(word)
        top = max(2 * len(mine & theirs) / (len(mine) + len(theirs)) for theirs in grams_b.values())
        best.append(top)
        alike += top >= 0.6 and not any(character.isdigit() for character in word)
    alike = min(alike, len(only_a), len(only_b))
    return len(only_a) - alike, len(only_b) - alike, sum(best) / len(best)


def _trigrams(word: str) -> set[str]:
    padded = f"^{word[:40]}$"
    return {padded[at : at + 2] for at in range(len(padded) - 1)}
