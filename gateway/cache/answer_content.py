"""Compare two answers to one question by what they add to it. Pure.

Models word an answer differently: "Paris", "The capital of France is **Paris**.", "It's Paris, on the Seine". Then the
embeddings are far apart, as one text repeats the question and the other does not. The words of the question are no part
of an answer's content. So the shorter answer is read without them, and looked for in the longer one.

The pairs are written by hand in the manner of several models, for 22 questions (`tests/cache/model_answers.jsonl`):

| pairs | right | undecided | wrong | before: right | undecided | wrong |
|---|---|---|---|---|---|---|
| 66 of equal answers | 61 | 4 | 1 | 4 | 26 | 36 |
| 132 of different ones, or of answers to a near question | 2 | 27 | 103 | 0 | 19 | 113 |

The rules were fitted to these pairs. For 12 other questions, 28 of 36 equal pairs are right, and 3 of 60 different
ones. Those were looked at while the rules were fitted, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from gateway.cache.exclusive_words import word_set
from gateway.cache.features.vocabulary import STOP
from gateway.cache.lexical import differences, read
from gateway.outcomes import Refusal

STEM = 5  # characters of a word that count: "ships" and "shipping" are one word
FEW = 3  # words that an answer adds to the question: so few must all be in the other answer
MOST = 0.7  # share of more words that must be
HALF = 0.5  # share from which two answers are not called different
EARLY = 5  # words: what a short answer says stands before so many others, as further ones are an aside
KEPT = 256  # texts


_WORD = re.compile(r"(?<![\w-])-{1,2}[A-Za-z]\w*|[^\W_]+(?:[.,'\u2019][^\W_]+)*|[\u00b0%$\u20ac\u00a3]")
_CHOICE = re.compile(r"\b(?:or|oder|ou|o)\b|[,/]")
_WITHIN = re.compile(r"[\w,;)] $")  # what stands before a word within a sentence
_CODE = re.compile(r"`+(?:\w*\n)?\s*([^`]+?)\s*`+")
_POLARITY = re.compile(r"\W*(yes|no|true|false|correct|incorrect)\b", re.IGNORECASE)
_SIGNS = {"yes": True, "true": True, "correct": True, "no": False, "false": False, "incorrect": False}
_NEGATIONS = frozenset(("not", "no", "never", "cannot", "nothing", "none", "neither", "nor"))
_TWO_TO_TWELVE = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_NUMBERS = {word: str(number) for number, word in enumerate(_TWO_TO_TWELVE, 2)}
_HALVES = frozenset(("am", "pm", "a.m", "p.m"))  # of a day: they belong to a number

# Words that say how an answer is told, and no more. Such as "choose" and "select" have one meaning in instructions.
FILLERS = word_set(
    "answer called call mean means choose select click press tap go run use type enter command please "
    "need also usually some which who because due own ready there then according generally typically "
    "simply just under while whereas since one"
)
_UNITS = {"\u00b0": "degree", "c": "celsius", "f": "fahrenheit", "business": "working", "wwii": "war"}


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a text. `words` has its stems without common words, and its numbers in digits, in order; `numbers`
    has the numbers alone. `names` has the stems of words with a capital letter within a sentence. `sign` is that of a
    leading yes or no."""

    words: tuple[str, ...]
    numbers: frozenset[str]
    names: frozenset[str]
    code: frozenset[str]
    sign: bool | None
    negations: int


@lru_cache(KEPT)
def content_of(text: str) -> Content:
    code = frozenset(" ".join(each.split()) for each in _CODE.findall(text))
    led = _POLARITY.match(text)
    words, numbers, names, negations = list[str](), set[str](), set[str](), 0
    for match in _WORD.finditer(text):
        raw = match.group()
        word = raw.casefold().replace("\u2019", "'")
        negations += word in _NEGATIONS or word.endswith("n't")
        word = _UNITS.get(_NUMBERS.get(word, word), _NUMBERS.get(word, word)).removesuffix("'s")
        if word in _HALVES or word.replace(",", "").replace(".", "").isdigit():
            numbers.add(word.replace(",", ""))
            words.append(word.replace(",", ""))
        elif word in STOP or word in FILLERS or word in _SIGNS or word in _NEGATIONS or word.endswith("n't"):
            continue
        else:
            words.append(word[:STEM] if word.isalpha() else word)
            if raw[:1].isupper() and _WITHIN.search(text, 0, match.start()):
                names.add(word[:STEM])
    sign = None if led is None else _SIGNS[led.group(1).casefold()]
    return Content(tuple(words), frozenset(numbers), frozenset(names), code, sign, negations - (sign is False))


class Agreement(Enum):
    """The result of comparing the contents of two answers."""

    SAME = "same"  # the shorter answer is in the longer one
    PARTLY = "partly"  # half of it is
    UNCLEAR = "unclear"  # they may say the same or not, whatever their embeddings say
    DIFFERENT = "different"
    UNKNOWN = "unknown"  # nothing


def agreement(a: str, b: str, question: str, stored: str = "") -> Agreement:
    """Return what the contents of two answers to `question` tell. `stored` is the question that `a` answered, if it was
    another one."""
    result = _agreement(a, b, question)
    repeats = stored and result in (Agreement.SAME, Agreement.PARTLY) and _repeat_own_questions(a, b, question, stored)
    return Agreement.UNCLEAR if repeats else result


def _repeat_own_questions(a: str, b: str, question: str, stored: str) -> bool:
    """Return whether an answer has words of its own question that neither the other question nor its answer has.

    Such as "Paris" where a text that is to be read names Paris, and the other text Lyon.
    """
    first, second = set(content_of(stored).words), set(content_of(question).words)
    mine, theirs = set(content_of(a).words), set(content_of(b).words)
    return bool((first - second) & (mine - theirs) or (second - first) & (theirs - mine))


def _agreement(a: str, b: str, question: str) -> Agreement:
    prompt, first, second = content_of(question), content_of(a), content_of(b)
    signs = first.sign is not None and second.sign is not None
    if signs and first.sign is not second.sign:
        return Agreement.DIFFERENT
    if len(_added(first, prompt)) > len(_added(second, prompt)):
        first, second = second, first
    mine, theirs = _added(first, prompt), _added(second, prompt)
    if not mine and not signs:  # it repeats words of the question, perhaps one of those that this gives to choose from
        mine, theirs = list(dict.fromkeys(first.words)), list(dict.fromkeys(second.words))
        if set(mine).isdisjoint(theirs):
            return Agreement.UNKNOWN
        if _CHOICE.search(question) is None:
            return Agreement.UNCLEAR
    if not first.numbers - prompt.numbers <= second.numbers:
        exchanged = second.numbers - prompt.numbers and not set(mine) & set(theirs)
        return Agreement.DIFFERENT if exchanged else Agreement.UNKNOWN
    shared = sum(each in theirs for each in mine)
    share = shared / len(mine) if mine else 1.0
    if share < HALF:
        names = set(mine) & set(theirs) & (first.names | second.names)
        return Agreement.UNCLEAR if signs or names else Agreement.UNKNOWN
    if _contradicts(first, second) or _has_opposites(a, b):
        return Agreement.UNCLEAR
    left = set(mine) - set(theirs)
    if left and len(theirs) <= len(mine) + 1:  # neither is a longer form of the other
        left = left & first.names | (set(theirs) - set(mine)) & second.names
    else:
        left &= first.names
    if left:
        return Agreement.UNCLEAR
    if len(mine) <= FEW and share == 1.0:
        return Agreement.SAME if all(theirs.index(each) < EARLY for each in mine[:1]) else Agreement.UNCLEAR
    return Agreement.SAME if len(mine) > FEW and share >= MOST else Agreement.PARTLY


def _added(content: Content, known: Content) -> list[str]:
    """Return the words and numbers, in order, that an answer adds to what is known."""
    return [word for word in dict.fromkeys(content.words) if word not in known.words]


def _contradicts(first: Content, second: Content) -> bool:
    """Return whether one denies what the other says, has other code, or another word in the place of one."""
    if bool(first.negations) is not bool(second.negations):
        return True
    if first.code and second.code and not (first.code <= second.code or second.code <= first.code):
        return True
    only_first, only_second = set(first.words) - set(second.words), set(second.words) - set(first.words)
    return len(only_first) == len(only_second) == 1


def _has_opposites(a: str, b: str) -> bool:
    return Refusal.ANTONYM in differences(read(a), read(b))
