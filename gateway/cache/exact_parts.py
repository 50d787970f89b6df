"""Read the parts of a text that admit no other wording: numbers, identifiers, code, and characters nobody sees. Pure.

Two texts differ in such parts only if each has one that the other lacks. A part on one side only is often a detail,
which the similarity judges.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from unicodedata import normalize

from gateway.cache.quantities import quantities_in
from gateway.outcomes import Refusal

MAX_CHARACTERS = 4096  # as the features: more than any text that is compared by meaning
MAX_CHUNKS = 1024
MAX_CHUNK = 256  # characters of one chunk, such as a URL

CARDINALS = dict(
    zip(
        (
            "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
            "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
        ),
        map(str, range(21)),
        strict=True,
    )
)  # fmt: skip
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_VALUES = {**CARDINALS, **{word: str(value) for value, word in enumerate(_ORDINALS, 1)}}
WORDS_OF_NUMBERS = frozenset(_VALUES)
_SOFT = frozenset({"one"})  # it matches the number, but is a pronoun more often
# A number with such a word may be written in digits in the other text: three thousand, sixty-five, half.
_COMPOUND = frozenset(
    (
        "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety", "hundred", "hundreds", "thousand",
        "thousands", "million", "millions", "billion", "billions", "lakh", "lakhs", "crore", "crores", "dozen", "half",
        "quarter", "couple", "pair", "double", "twice", "triple",
    )
)  # fmt: skip
# Roman numerals from II to XXXIX with their values; a single letter is read as a letter.
_ROMAN = {
    tens + units: str(10 * len(tens) + value)
    for tens in ("", "X", "XX", "XXX")
    for value, units in enumerate(("", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"))
    if len(tens + units) > 1
}

# Words before a number that counts or names something: Round 1, order 12, error 404.
_LABELS = frozenset(
    (
        "round", "step", "chapter", "page", "part", "level", "stage", "phase", "section", "article", "item", "option",
        "question", "problem", "exercise", "example", "figure", "table", "line", "row", "column", "episode", "season",
        "version", "release", "request", "order", "ticket", "issue", "case", "invoice", "customer", "account", "user",
        "id", "no", "number", "nr", "error", "code", "status", "port", "room", "gate", "track", "attempt", "run",
        "entry", "catalogue", "catalog", "index", "slot", "batch", "message",
        "test", "task", "job", "build", "unit", "lesson", "module", "volume", "document", "record", "python", "java",
        "node",
    )
)  # fmt: skip

# Units and endings that are written without a space: 3pm, 5km, 10th, 1990s.
_UNITS = frozenset(
    (
        "am", "pm", "a", "p", "st", "nd", "rd", "th", "s", "x", "k", "km", "m", "cm", "mm", "mi", "ft", "in", "kg", "g",
        "mg", "lb", "lbs", "oz", "t", "l", "ml", "gb", "mb", "tb", "kb", "hz", "khz", "mhz", "ghz", "h", "hr", "hrs",
        "d", "yr", "yrs", "y", "min", "sec", "ms", "w", "kw", "kwh", "mw", "v", "kv", "mah", "mp", "px", "pt", "fps",
        "c", "f", "usd", "eur", "gbp", "inr", "rs", "cr", "bn", "mn", "lpa",
    )
)  # fmt: skip

# Whether a text may have such parts. Nearly all questions have none.
_SIGNS = frozenset("0123456789_\\/@=(){}[]<>`$|^~#*+")
_CAPITALS = re.compile(r"[a-z][A-Z]|[A-Z]{2}[a-z]|(?<![\w'.])[A-HJ-Z](?!\.?[\w'])|(?<!\w)[IVX]{2,7}(?!\w)")
_GROUPED = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_HAN = "\u3400-\u9fff\u3040-\u30ff"
_SCRIPTS = re.compile(f"(?<=[{_HAN}])(?=[A-Za-z0-9])|(?<=[A-Za-z0-9])(?=[{_HAN}])")
_NUMBER = re.compile(r"[$\u20ac\u00a3\u20b9#~+<>=-]*(\d+(?:[.:-]\d+)*|\d+/\d+/\d+)([A-Za-z]{1,3}|%|\+)?")
_IDENTIFIER = re.compile(r"#?[^\W_]+(?:[-.:#\u2013][^\W_]+)*")
_SEPARATORS = re.compile(r"[-.:#/\u2013]")
_PIECES = re.compile(r"[^\W_]+")
_CAMEL = re.compile(r"[a-z][A-Z]|[A-Z]{2}[a-z](?!\Z)|[A-Z]{2}[a-rt-z]\Z")  # but no plural: PDFs
_DOTTED = re.compile(r"[A-Za-z][\w-]*(?:\.[a-z][\w-]+)+")
_CALL = re.compile(r"(?<![\w.])([A-Za-z_][\w.]{0,60})\(([^()\n]{0,60})\)")
_BACKTICKS = re.compile(r"`{1,3}([^`]{1,400})`{1,3}")
_CLAUSE = re.compile(r"\d+(?:\([A-Za-z0-9]{1,3}\))+")  # of a law: 230(c)
_LANGUAGE = re.compile(r"[A-Za-z](?:\+\+|#)")
_OPERATORS = frozenset(
    (
        "=", "==", "===", "!=", "!==", "<", ">", "<=", ">=", "=>", "->", "&&", "||", "+=", "-=", "+", "*", "**", "//",
        ":=", "??", "^",
    )
)  # fmt: skip
_CODE_SIGNS = re.compile(
    r"\\|::|->|=>|==|!=|<=|>=|&&|\|\||[A-Za-z0-9]_|_[A-Za-z0-9]|^--?[A-Za-z][\w-]+|[{}^]|\w=|\[.*\]|\$[A-Za-z]"
)
_PATH = re.compile(r"(?:~|\.{1,2})?/[\w.-]+(?:/|$)|(?:[\w.-]+/){2,}[\w.-]*[A-Za-z]")
_NEGATIVE = re.compile(
    r"(?<!\d )(?:(?<![\w)\]}.,%\u2212\u2013-])[-\u2212\u2013]|\b(?:minus|negative) )(\d+)(?![-\u2013]?\w)"
)
_BELOW = re.compile(r"\b(?:below|under|sub)\b")
_RUN = re.compile(r"[^\W\d_]+(?:\+\+|#)?|\d+")
_PROSE = ".,;:!?\"'\u2018\u2019\u201c\u201d\u00ab\u00bb\u2026*\u3002\uff0c\uff1f\uff01"
_PLURALS = frozenset(("s", "es", "ies", "d", "ed", "n", "r"))
_GERMAN_PLURALS = frozenset(("n", "r"))  # of nouns, which begin with a capital
_YEARS = range(1000, 2101)


@dataclass(slots=True)
class ExactParts:
    """The parts of one text. A key joins the letters and digits of a part, without the signs between them."""

    numbers: frozenset[str]
    identifiers: frozenset[str]  # in lower case: order numbers, hashes, versions, dates, URLs, names like iPhone
    code: frozenset[str]  # as written
    operators: frozenset[str]
    dotted: frozenset[str]  # names with dots, in lower case: json.load
    words: frozenset[str]  # numbers in words, also those that are often none
    text: str
    spelled: tuple[str, ...] | None = None  # `runs`, once they are needed
    spelled_numbers: frozenset[str] | None = None  # those of `runs`, without leading zeros, once they are needed
    spelled_negatives: frozenset[str] | None = None  # `negatives`, once they are needed
    spelled_amounts: tuple[str, ...] | None = None  # `amounts`, once they are needed
    spelled_quantities: Mapping[str, frozenset[str]] | None = None  # `quantities`, once they are needed

    @property
    def runs(self) -> tuple[str, ...]:
        """The runs of letters and the runs of digits of the whole text, in lower case."""
        if self.spelled is None:
            self.spelled = tuple(_RUN.findall(self.text.lower()))
        return self.spelled

    @property
    def negatives(self) -> frozenset[str]:
        """The digits of the numbers below zero: "5" for "-5" and "minus 5", but not for "7 - 5"."""
        if self.spelled_negatives is None:
            self.spelled_negatives = frozenset(map(_without_zeros, _NEGATIVE.findall(self.text.lower())))
        return self.spelled_negatives

    @property
    def amounts(self) -> tuple[str, ...]:
        """All numbers in ascending order of their digits, in digits or words, as often as they occur.

        There are none in a text with a number of several words, such as "sixty-five".
        """
        if self.spelled_amounts is None:
            compound = not _COMPOUND.isdisjoint(self.runs)
            self.spelled_amounts = () if compound else tuple(sorted(_amounts(self.runs)))
        return self.spelled_amounts

    @property
    def quantities(self) -> Mapping[str, frozenset[str]]:
        """The units of the numbers, as `quantities_in` gives them."""
        if self.spelled_quantities is None:
            self.spelled_quantities = quantities_in(self.text)
        return self.spelled_quantities

    @property
    def digits(self) -> frozenset[str]:
        """The numbers in digits, also within other parts."""
        if self.spelled_numbers is None:
            self.spelled_numbers = frozenset(_without_zeros(run) for run in self.runs if run.isdecimal())
        return self.spelled_numbers

    def has_number(self, number: str) -> bool:
        """Return whether the text has the number anywhere, also in words or within another part."""
        return number in self.words or number in self.digits


def _amounts(runs: Iterable[str]) -> list[str]:
    """Return the digits of the numbers, in their order. A "k" behind a number is three zeros."""
    amounts, behind_number = list[str](), False
    for run in runs:
        if run == "k" and behind_number:
            amounts[-1] += "000"
        behind_number = run.isdecimal()
        if behind_number:
            amounts.append(_without_zeros(run))
        elif run in WORDS_OF_NUMBERS and run not in _SOFT:
            amounts.append(_VALUES[run])
    return amounts


def _without_zeros(digits: str) -> str:
    return digits.lstrip("0") or "0"


def read_parts(text: str, words: Set[str], signs: Set[str]) -> ExactParts | None:
    """Return the parts of a text, or None if it has none. `words` are in lower case. `signs` are its characters."""
    if not _may_have_chunks(text, signs):
        return None if WORDS_OF_NUMBERS.isdisjoint(words) else _Parts(words).parts(text)
    text = text[:MAX_CHARACTERS]
    if not text.isascii():
        text = _SCRIPTS.sub(" ", normalize("NFKC", text))
    if "," in text:
        text = _GROUPED.sub("", text)
    parts, previous = _Parts(words), ""
    for chunk in text.split(maxsplit=MAX_CHUNKS)[:MAX_CHUNKS]:
        if not (chunk.isalpha() and (chunk.islower() or (len(chunk) > 1 and chunk.istitle()))):
            if chunk in _OPERATORS:
                parts.operators.add(chunk)
            else:
                parts.add(chunk[:MAX_CHUNK], labelled=previous.strip(_PROSE).lower() in _LABELS)
        previous = chunk
    if "(" in text:
        parts.add_calls(text)
    if "`" in text:
        parts.code.update(" ".join(span.split()) for span in _BACKTICKS.findall(text))
    return parts.parts(text)


def _may_have_chunks(text: str, signs: Set[str]) -> bool:
    """Return whether a part between two spaces may be no plain word.

    The end of a sentence is no dot within a name. A capital at the beginning is no abbreviation.
    """
    if not _SIGNS.isdisjoint(signs) or ("." in signs and "." in text.rstrip(". ")):
        return True
    if ("-" in signs and " -" in text) or (":" in signs and "::" in text):
        return True
    return not text[1:].islower() and _CAPITALS.search(text) is not None


class _Parts:
    """Collects the parts of a text."""

    def __init__(self, words: Set[str]) -> None:
        numbers = words & WORDS_OF_NUMBERS
        self.words = frozenset([_VALUES[word] for word in numbers])
        self.numbers = {_VALUES[word] for word in numbers - _SOFT}
        self.compound = not _COMPOUND.isdisjoint(words)
        self.identifiers = set[str]()
        self.code = set[str]()
        self.operators = set[str]()
        self.dotted = set[str]()

    def parts(self, text: str) -> ExactParts:
        return ExactParts(
            frozenset(() if self.compound else self.numbers),
            frozenset(self.identifiers),
            frozenset(self.code),
            frozenset(self.operators),
            frozenset(self.dotted),
            self.words,
            text,
        )

    def add_calls(self, text: str) -> None:
        """Add calls of functions: `name(a, b)`. A plural is none: "name(s)"."""
        for name, inside in _CALL.findall(text):
            arguments = "".join(inside.split())
            if arguments not in _PLURALS or (arguments in _GERMAN_PLURALS and not name[0].isupper()):
                self.code.add(f"{name}({arguments})" if arguments else name)

    def add(self, chunk: str, *, labelled: bool) -> None:
        """Add the parts of a text between spaces. With `labelled`, a word before it says that it counts or names."""
        core = _unwrapped(chunk)
        if not core or "`" in core:
            return
        if chunk[0] == "." and core[0].isalpha():  # the ending of a file, or a hidden one
            self.code.add(f".{core}")
            return
        if "://" in core or core[:4].lower() == "www." or "@" in core[1:-1]:
            self._add_address(core)
        elif (number := _NUMBER.fullmatch(core)) is not None and _is_unit(number[2]):
            self._add_number(number[1], number[2], labelled=labelled or core[0] == "#")
        elif _CLAUSE.fullmatch(core):
            self.identifiers.add(_joined(core))
        elif _LANGUAGE.fullmatch(core):
            self.identifiers.add(core.lower())
        elif _PATH.match(core) or (_CODE_SIGNS.search(core) and any(map(str.isalnum, core))):
            if "(" not in core and ")" not in core:  # else a part of a call
                self.code.add(core)
        elif _IDENTIFIER.fullmatch(core):
            self._add_identifier(core)
        else:
            for piece in _PIECES.findall(core):
                self._add_identifier(piece)

    def _add_address(self, core: str) -> None:
        """Add a URL or a mail address by its letters and digits. Signs alone, such as "@@@", count as written."""
        name = _joined(core.partition("://")[2] or core)
        if name:
            self.identifiers.add(name)
        else:
            self.code.add(core)

    def _add_number(self, number: str, unit: str | None, *, labelled: bool = False) -> None:
        if not number.isdecimal():
            names = labelled or len(_SEPARATORS.split(number)) > 2
            (self.identifiers if names else self.numbers).add(_joined(number))
            return
        value = _without_zeros(number)
        names = len(value) > 3 and not value.endswith("00") and int(value) not in _YEARS
        (self.identifiers if labelled or names else self.numbers).add(value + "000" * (unit in ("k", "K")))

    def _add_identifier(self, core: str) -> None:
        if core in _ROMAN:
            self.numbers.add(_ROMAN[core])
        elif not any(map(str.isdigit, core)):
            dotted = _DOTTED.fullmatch(core) and max(map(len, core.split("."))) > 2
            capital = len(core) == 1 and core.isupper() and core != "I"
            if dotted:
                self.dotted.add(_joined(core))
            elif capital or ("." not in core and "-" not in core and _CAMEL.search(core)):
                self.identifiers.add(_singular(_joined(core)))
        else:
            pieces = _SEPARATORS.split(core)
            number = _NUMBER.fullmatch(core)
            if number is not None and _is_unit(number[2]):
                self._add_number(number[1], number[2])
            elif all(piece.isupper() or piece.isdecimal() or _is_mixed(piece) for piece in pieces):
                self.identifiers.add(_joined(core))
            else:  # words with numbers: 16-year-old
                for piece in filter(_has_digit, pieces):
                    self._add_identifier(piece)


def _is_unit(unit: str | None) -> bool:
    return unit is None or not unit.isalpha() or unit.lower() in _UNITS


def _has_digit(piece: str) -> bool:
    return any(map(str.isdigit, piece))


def _is_mixed(piece: str) -> bool:
    return _has_digit(piece) and not piece.isdecimal()


def _unwrapped(chunk: str) -> str:
    """Return a chunk without the punctuation of the sentence around it."""
    core = chunk.strip(_PROSE)
    for opening, closing in ("()", "[]", "<>"):
        if core.startswith(opening) and (core.endswith(closing) or closing not in core):
            core = core[1:]
        if core.endswith(closing) and opening not in core:
            core = core[:-1]
    core = core.strip(_PROSE)
    return core[:-2] if core.endswith("'s") else core


def _joined(text: str) -> str:
    return "".join(_RUN.findall(text.lower()))


def _singular(name: str) -> str:
    return name[:-1] if len(name) > 3 and name.endswith("s") else name


def parts_difference(mine: ExactParts, other: ExactParts) -> Refusal | None:
    """Return the first kind of parts of which each text has one that the other lacks.

    Numbers are not among them: see `have_other_numbers`.
    """
    if mine.code != other.code and _lacks_code(mine, other) and _lacks_code(other, mine):
        return Refusal.CODE
    if mine.operators - other.operators and other.operators - mine.operators:
        return Refusal.CODE
    if mine.dotted != other.dotted and _lacks_dotted(mine, other) and _lacks_dotted(other, mine):
        return Refusal.IDENTIFIER
    if mine.identifiers != other.identifiers and _lacks_name(mine, other) and _lacks_name(other, mine):
        return Refusal.IDENTIFIER
    return None


def have_other_numbers(mine: ExactParts, other: ExactParts) -> bool:
    """Return whether each text has a number that the other lacks."""
    return mine.numbers != other.numbers and _lacks_number(mine, other) and _lacks_number(other, mine)


def differs_in_sign(mine: ExactParts, other: ExactParts) -> bool:
    """Return whether a number is below zero in one text, and above it in the other.

    Words can say that, too: "5 degrees below zero".
    """
    return any(
        number in b.digits and not _BELOW.search(b.text.lower())
        for a, b in ((mine, other), (other, mine))
        for number in a.negatives - b.negatives
    )


def have_other_amounts(mine: ExactParts, other: ExactParts) -> bool:
    """Return whether both texts have the same count of numbers, at least two, but different values.

    One of them may occur twice: "3 times 11" and "3 times 3". A text with more numbers may only tell more.
    """
    return len(mine.amounts) == len(other.amounts) > 1 and mine.amounts != other.amounts


def counts_otherwise(mine: ExactParts, other: ExactParts) -> bool:
    """Return whether two texts are equal but for their numbers in digits.

    The same numbers in another order often ask the same: "17 times 23". They differ where they name something, such as
    "entry 7 of catalogue 3".
    """
    a, b = mine.runs, other.runs
    if a == b or len(a) != len(b):
        return False
    other_numbers, named = list[tuple[str, str]](), True
    for at, (run, its) in enumerate(zip(a, b, strict=True)):
        if run != its:
            if not (run.isdecimal() and its.isdecimal()):
                return False
            if run.lstrip("0") != its.lstrip("0"):
                other_numbers.append((run.lstrip("0"), its.lstrip("0")))
                named = named and at > 0 and a[at - 1] in _LABELS
    return bool(other_numbers) and (named or sorted(x for x, _ in other_numbers) != sorted(y for _, y in other_numbers))


def is_number(word: str) -> bool:
    """Return whether the word has a digit, or is a number. `word` is in lower case."""
    return word in WORDS_OF_NUMBERS or word in _COMPOUND or _has_digit(word) or word.upper() in _ROMAN


def numbers_in_words(words: Set[str]) -> frozenset[str] | None:
    """Return the digits of the numbers among words in lower case. Return None if one of them has several words, or a
    sign."""
    numbers = list(filter(is_number, words))
    if not _COMPOUND.isdisjoint(numbers) or not all(word in WORDS_OF_NUMBERS or word.isdecimal() for word in numbers):
        return None
    return frozenset([_VALUES.get(word, word) for word in numbers])


def _lacks_code(mine: ExactParts, other: ExactParts) -> bool:
    return any(not _contains_whole(part, other.text) for part in mine.code - other.code)


def _lacks_name(mine: ExactParts, other: ExactParts) -> bool:
    return any(
        not _is_written(part, other.runs) or _is_longer_in(part, other.identifiers)
        for part in mine.identifiers - other.identifiers
    )


def _lacks_dotted(mine: ExactParts, other: ExactParts) -> bool:
    return any(not _is_written(part, other.runs, plural="") for part in mine.dotted - other.dotted)


def _is_longer_in(name: str, others: Set[str]) -> bool:
    """Return whether one of `others` continues a name of letters and digits without a sign: H2O and H2O2."""
    return _is_mixed(name) and any(other.startswith(name) for other in others)


def _lacks_number(mine: ExactParts, other: ExactParts) -> bool:
    return any(
        not other.has_number(part) and not _is_written(part, other.runs) for part in mine.numbers - other.numbers
    )


def _contains_whole(part: str, text: str) -> bool:
    """Return whether the text has the part as written, and not within a longer one."""
    at = text.find(part)
    while at >= 0:
        before, after = text[at - 1 : at], text[at + len(part) : at + len(part) + 2]
        inside = before.isalnum() or before in ("_", "/", "\\") or after[:1].isalnum() or after[:1] == "_"
        if not inside and not (after[:1] in (".", "/", "-", "\\", "(") and after[1:].isalnum()):
            return True
        at = text.find(part, at + 1)
    return False


def _is_written(key: str, runs: tuple[str, ...], plural: str = "s") -> bool:
    """Return whether adjacent runs join to the key, which may have lost its plural."""
    for start, run in enumerate(runs):
        if run[0] != key[0]:
            continue
        at, joined = start, run
        while len(joined) < len(key) and key.startswith(joined) and at + 1 < len(runs):
            at += 1
            joined += runs[at]
        if joined in (key, f"{key}{plural}"):
            return True
    return False


# Characters that nobody sees and the embedding model drops, while a language model may read them: control characters,
# soft hyphens, zero widths, direction marks, other format characters, variation selectors and tags. They can carry
# instructions to the model.
#
# So can marks that are combined with a letter, such as a stroke through it. Where a letter with its mark is one
# character, it is written so first. The marks of scripts that need them to be read have blocks of their own.
_HIDDEN = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180b-\u180f"
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb\U000110bd\U000110cd"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
)


def differs_unseen(a: str, b: str) -> bool:
    """Return whether two texts differ in characters that nobody sees, or in marks on their letters."""
    if a.isascii() and b.isascii() and a.isprintable() and b.isprintable():
        return False
    return _HIDDEN.findall(normalize("NFC", a)) != _HIDDEN.findall(normalize("NFC", b))
