"""Compute the features of a prompt that tell how hard it is, in one pass over its words. Pure.

The text is split into words, numbers and signs once, and each distinct one is looked up. A pattern per feature would
read the text once for each feature.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gateway.routing import wordlists

FloatArray = npt.NDArray[np.float64]

# Characters. A longer text is judged by its head and tail, where questions stand; its length is a feature.
HEAD, TAIL = 600, 800
# A Chinese or Japanese sign counts as a word of three letters, and a quarter of them as long words, as in English.
# Without this, hard prompts look as short as greetings.
WIDE_LETTERS, WIDE_LONG = 3, 0.25
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
MIN_OPTIONS, MIN_BARE_OPTIONS = 2, 3
MAX_CUE_CHARACTERS = 40
MAX_OPTIONS = 6

_TOKEN = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\d_\u3040-\u30ff\u3400-\u9fff]+(?:['\u2019][a-zA-Z]+)?|\d+(?:[.,:]\d+)*|__+|[^\w\s]"
)
# A line that begins with a letter and a full stop, a bracket or a colon. Where punctuation was removed, the letter
# alone counts if there are `MIN_BARE_OPTIONS` of them.
_OPTION = re.compile(r"^[ \t]*[(\[]?([A-Ja-j])[.):\]][ \t]+(\S.*)$", re.MULTILINE)
_BARE_OPTION = re.compile(r"^[ \t]*([A-Ja-j])[ \t]+(\S.*)$", re.MULTILINE)
_NO_LETTER = re.compile(r"[\W_]+")
MIN_LETTERS = 3  # of the length: greetings of one letter are not far shorter than others
_CUE = re.compile(r"\s*(?:Answer|Antwort|Respuesta|R\u00e9ponse)\s*:?\s*$")
_SENTENCE = re.compile(r"[.!?]\s+(?=\S)")
_FENCE = "```"
# Courtesies around a request say nothing about its difficulty. Each is searched in `COURTESY` characters at one end.
COURTESY = 80
_GREETING = r"(?:(?:hi|hello|hey|hallo|hola|bonjour)(?: there)?[,!.]*\s+)?"
_PLEASE = r"(?:please|kindly|bitte|por favor|s'il (?:te|vous) pla[i\u00ee]t)"
_CAN_YOU = r"(?:can|could|would|will) you|would you mind|k\u00f6nnten sie|kannst du|podr\u00edas|pouvez-vous"
_TELL_ME = r"(?:(?:tell|telling) me|let me know)"
_BEFORE = re.compile(
    rf"\s*{_GREETING}(?:(?:{_CAN_YOU})\s+(?:{_PLEASE},?\s+)?(?:{_TELL_ME}[,:]?\s+)?|{_PLEASE}[,:]?\s+(?:{_TELL_ME}[,:]?\s+)?)"
    r"(?=\S)",
    re.IGNORECASE,
)
_THANKS = r"(?:many )?thanks(?: a lot| in advance)?|thank you(?: very much| in advance)?|danke|gracias|merci"
_AFTER = re.compile(rf"(?<=\S)(?:[,.;]?\s*{_PLEASE}|[,.;]?\s+(?:{_THANKS}))[.!]*\s*([?.]?)\s*$", re.IGNORECASE)

KINDS = tuple(wordlists.KINDS)
SIGNS = {
    "operators": "=+*/^<>\u2264\u2265\u2260\u00d7\u00f7\u221a\u222b\u2211\u03c0\u00b1%",
    "logic_signs": "\u2200\u2203\u00ac\u2227\u2228\u2283\u2261\u2192\u2194\u22a2\u2234~\u00b7\u2022&|",
    "brackets": "()[]",
    "code_signs": "{};\\`$#",
    "commas": ",;:\u3001\uff0c",
    "quotes": '"\u201c\u201d\u2018\u2019\u00ab\u00bb',
    "ends": ".?!\u3002\uff1f\uff01",
    "questions": "?\uff1f\u00bf",
    "money": "$\u20ac\u00a3\u00a5",
}
_KIND_OF: Mapping[str, tuple[int, ...]] = {
    word: tuple(at for at, kind in enumerate(KINDS) if word in wordlists.KINDS[kind])
    for words in wordlists.KINDS.values()
    for word in words
}
_SIGN_OF: Mapping[str, tuple[int, ...]] = {
    sign: tuple(at for at, signs in enumerate(SIGNS.values()) if sign in signs)
    for signs in SIGNS.values()
    for sign in signs
}
# A mistyped word of a list counts as that word, so that typing errors move a score little. The words are found by what
# is left of them without one letter (the symmetric deletes of SymSpell, Wolf Garbe 2012).
MIN_CORRECTED = 5  # letters
MAX_CORRECTED = 30  # different words of a text: each costs 3 us, and texts of unknown words need no more


def _without_a_letter(word: str) -> list[str]:
    return [word[:at] + word[at + 1 :] for at in range(len(word))]


_LISTED = sorted({*_KIND_OF, *wordlists.FUNCTION})
_MISTYPED: Mapping[str, str] = {
    rest: word for word in _LISTED if len(word) >= MIN_CORRECTED for rest in (*_without_a_letter(word), word)
}


def corrected(word: str) -> str:
    """Return the listed word that differs by a missing, an added or a wrong letter, or by two in another order.

    Return the word itself if there is none. `word` is in lower case.
    """
    if len(word) < MIN_CORRECTED - 1:
        return word
    found = _MISTYPED.get(word)
    return found or next((_MISTYPED[rest] for rest in _without_a_letter(word) if rest in _MISTYPED), word)


_SHOUTED = frozenset({"NOT", "EXCEPT", "LEAST", "FALSE", "INCORRECT", "NEVER", "NO"})
_ROMAN = frozenset({"I", "II", "III", "IV", "V"})
DENSE = ("comparison", "quantity", "condition", "person")  # kinds whose share of the words is a feature too
_DENSE_AT = tuple(map(KINDS.index, DENSE))
OPENERS = ("which", "what", "how", "why", "who", "when", "if", "the", "a", "in")
_OPENED_BY = {word: [float(word == other) for other in OPENERS] for word in OPENERS}
_OPENED_OTHERWISE = [0.0] * len(OPENERS)

NAMES = (
    "characters", "words", "word_length", "long_words", "longest_words", "function_words", "variety", "rarity",
    "rare_share", "rare_count", "sentences", "sentence_length", "last_length", "lines", "asks", "colon", "gap", "fence",
    "numbers", "number_density", "different_numbers", "large_numbers", "shouted", "roman", "capitals", "acronyms",
    "single_letters", "foreign_signs",
    *KINDS, *SIGNS, *(f"{kind}_density" for kind in DENSE), *(f"opens_{word}" for word in OPENERS),
)  # fmt: skip
OPTION_NAMES = (
    "options", "option_length", "option_spread", "option_longest", "option_numbers", "option_only_numbers",
    "option_negations", "option_all", "option_because", "option_overlap", "option_most_overlap", "option_in_stem",
    "option_in_stem_spread", "option_rarity", "option_rare_share", "option_capitals", "option_commas",
    "option_verdicts",
)  # fmt: skip


class Commonness:
    """The rarity of words, from a list of words in order of frequency.

    The value is the natural logarithm of the rank, as frequencies fall with it by Zipf's law. Unlisted words come last.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._ranks = {word: math.log(at + 10.0) for at, word in enumerate(words)}
        self.unlisted = math.log(len(words) + 10.0) + 0.5

    def __call__(self, word: str) -> float:
        return self._ranks.get(word, self.unlisted)


class PromptReading:
    """The features of one prompt.

    `features` has shape (len(NAMES),). `options` has shape (len(OPTION_NAMES),), or is None where the prompt is no
    multiple-choice question. `length` is the natural logarithm of the letters and digits, which spacing and
    punctuation do not change.
    """

    __slots__ = ("features", "length", "options")

    def __init__(self, text: str, rarity: Commonness) -> None:
        text = without_courtesy(text)
        body = text if len(text) <= HEAD + TAIL else f"{text[:HEAD]}\n{text[-TAIL:]}"
        if (cue := _CUE.search(body, max(0, len(body) - MAX_CUE_CHARACTERS))) is not None:
            body = body[: cue.start()]
        matches = _options_of(body)
        stem = body[: matches[0].start()] if matches else body
        omitted = max(0, len(text) - len(body))
        self.features, vocabulary = _text_features(stem, omitted, rarity)
        self.options = (
            _option_features([match[2] for match in matches[:MAX_OPTIONS]], vocabulary, rarity) if matches else None
        )
        letters = len(_NO_LETTER.sub("", body)) + (WIDE_LETTERS - 1) * len(_WIDE.findall(body))
        self.length = math.log(max(MIN_LETTERS, letters * (1.0 + omitted / max(1, len(body)))))


def _options_of(body: str) -> Sequence[re.Match[str]]:
    """Return the lettered options that end a text; none if it is no multiple-choice question."""
    for pattern, least in ((_OPTION, MIN_OPTIONS), (_BARE_OPTION, MIN_BARE_OPTIONS)):
        matches = list(pattern.finditer(body))
        letters = "".join(match[1] for match in matches).upper()
        begin = next((at for at in range(len(letters)) if letters[at:] in "ABCDEFGHIJ"), 0)
        if len(letters) - begin >= least:
            return matches[begin:]
    return ()


def without_courtesy(text: str) -> str:
    """Return a text without "please", "could you" and thanks at its ends. A text of courtesies alone stays as it is."""
    before = _BEFORE.match(text, 0, COURTESY)
    bare = text if before is None else text[before.end() :]
    after = _AFTER.search(bare, max(0, len(bare) - COURTESY))
    bare = bare if after is None else bare[: after.start()] + after[1]
    return bare if bare.strip() else text


class _TextCounts(NamedTuple):
    """Counts of the words, numbers and signs of a text."""

    words: int
    letters: int
    wide: int  # Chinese and Japanese signs
    long: int
    longest: int
    function: int
    content_words: int  # all words except function words
    rarities: float  # sum over the content words
    rare: int
    numbers: int
    different: int  # distinct numbers
    large: int  # numbers of three characters and more
    shouted: int
    roman: int
    capitals: int
    acronyms: int
    single: int  # single letters
    foreign: int  # words and signs beyond ASCII
    kinds: Sequence[int]  # in the order of `KINDS`
    signs: Sequence[int]  # in the order of `SIGNS`
    content: frozenset[str]  # the distinct words that are no function words


def _count_tokens(tokens: Sequence[str], rarity: Commonness) -> _TextCounts:
    kinds, signs = [0] * len(KINDS), [0] * len(SIGNS)
    words = letters = long = longest = function = rare = numbers = large = 0
    wide = shouted = roman = capitals = acronyms = single = different = foreign = content_words = 0
    unknown = 0
    rarities = 0.0
    content: set[str] = set()
    for token, count in Counter(tokens).items():
        first = token[0]
        if first.isalpha():
            lower = token.lower()
            if unknown < MAX_CORRECTED and lower not in _KIND_OF and rarity(lower) >= rarity.unlisted:
                unknown += 1
                lower = corrected(lower)
            length = len(token)
            if _WIDE.match(first):
                wide += count
                length = WIDE_LETTERS
            words += count
            letters += length * count
            long += count * (length >= 7)
            longest += count * (length >= 11)
            for at in _KIND_OF.get(lower, ()):
                kinds[at] += count
            if lower in wordlists.FUNCTION:
                function += count
            else:
                content.add(lower)
                rank = rarity(lower)
                content_words += count
                rarities += rank * count
                rare += count * (rank >= rarity.unlisted)
            if token is not lower and first.isupper():
                shouted += count * (token in _SHOUTED)
                roman += count * (token in _ROMAN)
                upper = length > 1 and token.isupper()
                acronyms += count * upper
                capitals += count * (not upper and length > 1)
            single += count * (length == 1 and lower not in "ai")
            foreign += count * (not token.isascii())
        elif first.isdigit():
            numbers += count
            different += 1
            large += count * (len(token) >= 3)
        else:
            for at in _SIGN_OF.get(first, ()):
                signs[at] += count
            foreign += count * (not token.isascii())
    return _TextCounts(
        words, letters, wide, long, longest, function, content_words, rarities, rare, numbers, different, large,
        shouted, roman, capitals, acronyms, single, foreign, kinds, signs, frozenset(content),
    )  # fmt: skip


def _text_features(text: str, omitted: int, rarity: Commonness) -> tuple[FloatArray, frozenset[str]]:
    """Return the features of a text and its content words."""
    tokens = _TOKEN.findall(text)
    counts = _count_tokens(tokens, rarity)
    # The omitted middle is assumed to be like the rest.
    whole = 1.0 + omitted / max(1, len(text))
    words = max(1, counts.words)
    cut = _SENTENCE.split(text.strip())
    log = math.log1p
    values = [
        log((len(text) + (WIDE_LETTERS - 1) * counts.wide) * whole),
        log(counts.words * whole),
        counts.letters / words,
        (counts.long + WIDE_LONG * counts.wide) / words,
        counts.longest / words,
        counts.function / words,
        len(counts.content) / max(1, counts.content_words),
        counts.rarities / max(1, counts.content_words),
        counts.rare / max(1, counts.content_words),
        log(counts.rare),
        log(len(cut) * whole),
        log(counts.words / len(cut)),
        log(cut[-1].count(" ") + 1 + (len(_WIDE.findall(cut[-1])) if counts.wide else 0)),
        log(text.count("\n")),
        float("?" in cut[-1]),
        float(text.rstrip().endswith(":")),
        float("__" in text or "..." in text),
        float(_FENCE in text),
        log(counts.numbers),
        counts.numbers / (words + 3),
        log(counts.different),
        log(counts.large),
        log(counts.shouted),
        log(counts.roman),
        log(counts.capitals),
        log(counts.acronyms),
        log(counts.single),
        log(counts.foreign),
        *map(log, counts.kinds),
        *map(log, counts.signs),
        *[counts.kinds[at] / (words + 3) for at in _DENSE_AT],
    ]
    opener = next((token.lower() for token in tokens if token[0].isalpha()), "")
    values += _OPENED_BY.get(opener, _OPENED_OTHERWISE)
    return np.array(values), counts.content


def _option_features(options: Sequence[str], stem: frozenset[str], rarity: Commonness) -> FloatArray:
    cut = [_TOKEN.findall(option[:300]) for option in options]
    lowered = [[token.lower() for token in tokens] for tokens in cut]
    sets = [frozenset(tokens) for tokens in lowered]
    lengths = np.array([len(option) for option in options], float)
    flat = [token for tokens in lowered for token in tokens]
    ranks = [rarity(token) for token in flat if token[0].isalpha() and token not in wordlists.FUNCTION] or [0.0]
    overlaps = [len(a & b) / max(1, len(a | b)) for a, b in combinations(sets, 2)]
    in_stem = np.array([len(own & stem) / max(1, len(own)) for own in sets])
    count = len(options)
    numeric = [any(token[0].isdigit() for token in tokens) for tokens in cut]
    only = [not any(token[0].isalpha() and len(token) > 3 for token in tokens) for tokens in cut]
    return np.array([
        count, math.log1p(lengths.mean()), lengths.std() / (lengths.mean() + 1), math.log1p(lengths.max()),
        sum(numeric) / count, sum(only) / count,
        math.log1p(sum(token in wordlists.KINDS["negation"] for token in flat)),
        float(any("of the above" in option or "both" in option.lower() for option in options)),
        math.log1p(sum(token in wordlists.BECAUSE for token in flat)),
        sum(overlaps) / len(overlaps), max(overlaps), in_stem.mean(), in_stem.std(),
        sum(ranks) / len(ranks), sum(rank >= rarity.unlisted for rank in ranks) / len(ranks),
        sum(option[0].isupper() for option in options) / count, math.log1p(flat.count(",")),
        sum(bool(tokens) and tokens[0] in wordlists.VERDICTS for tokens in lowered) / count,
    ])  # fmt: skip
