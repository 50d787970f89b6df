"""Find personal data in a text, and replace it by its kind. Pure.

Each kind has a pattern and, where the kind has one, a checksum. So a number of sixteen digits is rarely a card by
chance. The patterns miss data that is written in words, and they know no names: docs/security.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from gateway.features.privacy.call_texts import decoded_text
from gateway.features.privacy.plain_text import is_disguised, plain_readings

Kind = Literal["email", "phone", "card", "iban", "ssn"]

# Characters that are read: 6 ms for prose, and at most 80 ms for texts made to be slow. A longer text counts as having
# personal data.
MAX_READ = 32_768


@dataclass(frozen=True, slots=True)
class Finding:
    kind: Kind
    start: int  # characters
    end: int
    value: str  # without separators, so that two ways to write it are equal


_DIGITS = re.compile(r"[0-9]+")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{16,4096}")  # a word of ASCII letters is shorter
# Each repetition is bounded. So the time grows with the length of the text only.
_EMAIL = re.compile(
    r"(?:(?<![\w\u0300-\u036f%+-])[\w%+-][\w\u0300-\u036f.%+'-]{0,63}|\"[^\"@\n]{1,62}\")@"
    r"(?:(?:[^\W_][\w-]{0,62}\.){1,8}(?:xn--[A-Za-z\d-]{2,59}|[^\W\d_]{2,24})(?!\w)|\[[\dA-Fa-fIPv:.]{7,45}\])"
)
_IBAN_START = re.compile(r"(?<!\w)([A-Za-z]{2})[ -]?\d{2}")
_IBAN_REST = re.compile(r"(?:[\s._/\\:*~\u00b7\u2022-]{0,2}[A-Za-z\d]){11,30}")
_SSN = re.compile(r"[0-9]{3}(?<![\w-][0-9]{3})(?<!000|666|9..)([ -])(?!00)[0-9]{2}\1(?!0000)[0-9]{4}(?!\w|-[0-9])")
# With a country code, with the 0 of a national number, or in the groups of North America and Mexico, Brazil, Spain and
# China. Without one of them and without separators a number is more often something else.
_PHONE = re.compile(
    r"(?<![\w+])(?:\+ ?|(?<!\d[ .\-/])00(?=[1-9]))\d(?:[ ().\-/_\u00b7\u2022~*]{0,2}\d){7,14}(?![^\W_])"
    r"|(?<![\w.+-])(?:1[ .-])?(?:\([2-9]\d{2}\) ?|[2-9]\d{2}[ .-])\d{3}[ .-]\d{4}(?!\w|-\d)"
    r"|(?<![\w.+-])(?:\([1-9]{2}\) ?\d{4,5}-|1[3-9]\d[ -]\d{4}[ -])\d{4}(?!\w|-\d)"
    r"|(?<![\w.+-])(?<!\d )[6-9]\d{2}(?: \d{2}){3}(?!\w| ?\d)"
    r"|(?<![\w.+-])(?<![\d+][ .\-/])\(?0[1-9]\d{0,4}\)?[ /-]\d{2,5}(?:[ /-]?\d{2,4}){0,3}(?!\w|-\d)"
)
MIN_NATIONAL = 9  # digits of a national number; a date such as 01-02-2024 has eight
# Behind its name a number needs no such form.
_SSN_NAMES = ("ssn", "social security", "social_security", "social-security", "socialsecurity")
_NAMED_SSN = re.compile(
    r"(?:[ _-]?(?:number|no\.?))?\W{0,5}(?:is\W{1,2})?"
    r"((?!000|666|9)\d{3}[ .\-/]?(?!00)\d{2}[ .\-/]?(?!0000)\d{4})(?!\w)",
    re.IGNORECASE,
)
_PHONE_NAMES = ("phone", "telefon", "mobile", "whatsapp", "cell", "tel", "fax")
_NAMED_PHONE = re.compile(
    r"(?:[ _-]?(?:number|no\.?|nr\.?))?(?: is |\W{0,3}[:=]\W{0,3})(\d(?:[ ().\-/]{0,2}\d){8,14})(?!\w)", re.IGNORECASE
)
# Digits of one number stand at most so far apart, and a number of a person has at least so many.
MAX_GAP, MIN_DIGITS = 4, 9
CARD_DIGITS = range(13, 20)  # ISO/IEC 7812-1 allows 19; cards in use have 13 or more
MAX_GROUPS = 6  # groups of digits of a card
# A card whose digits stand apart, all by the same sign. A longer row of numbers is a table.
_SPREAD = re.compile(r"[0-9]{1,6}([ ._/\\:*~\u00b7\u2022-]{1,3}|\r?\n)[0-9]{1,6}(?:\1[0-9]{1,6}){1,40}")
_SPREAD_SIZES = ((4, 6, 5), (4, 6, 4))  # of the groups, other than equal ones with a shorter last one
# The numbers of issuers: Visa, Mastercard, American Express, Diners, Discover, JCB, Maestro, UnionPay.
_ISSUER = re.compile(
    r"4(?:.{12}|.{15}|.{18})|(?:5[1-5]|222[1-9]|22[3-9].|2[3-6]..|27[01].|2720).{12,14}|3[47].{13}|3(?:0[0-5]|[689]).{11,16}"
    r"|(?:6011|6[45]|35|62|81|50|5[6-9]|6[37]).{10,17}"
)
_DOUBLED = bytes.maketrans(b"0123456789", b"0246813579")  # the sum of the digits of the double
_AS_NUMBERS = {ord(letter): str(at) for at, letter in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZ", 10)}

# Lengths of an IBAN by country: the registry of ISO 13616.
_IBAN_LENGTHS = {
    country: length
    for length, countries in {
        15: "NO", 16: "BE", 18: "DK FI FO GL NL", 19: "MK SI", 20: "AT BA EE KZ LT LU XK", 21: "CH HR LI LV",
        22: "BG BH CR DE GB GE IE ME RS VA", 23: "AE GI IL IQ TL", 24: "AD CZ ES MD PK RO SA SE SK TN VG",
        25: "LY PT ST", 26: "IS TR", 27: "FR GR IT MC MR SM", 28: "AL AZ BY CY DO GT HU LB PL SV",
        29: "BR EG PS QA UA", 30: "JO KW MU", 31: "MT SC", 32: "LC",
    }.items()
    for country in countries.split()
}  # fmt: skip


def find(text: str, kinds: Collection[Kind]) -> tuple[Finding, ...]:
    """Return what `text` has of `kinds`, in its order. No two findings overlap: the kind with the checksum wins.

    The text is read with its escapes decoded and its characters folded: `plain_text`. Base64 is read, too.
    """
    if text.isascii() and _DIGITS.search(text) is None and not is_disguised(text) and "@" not in text:
        return ()
    findings: list[Finding] = []
    taken = bytearray(len(text))
    for finding in (*_found_in_plain(text, kinds), *_found_in_base64(text, kinds)):
        start, end = finding.start, finding.end
        if not any(taken[start:end]):
            taken[start:end] = b"\x01" * (end - start)
            findings.append(finding)
    return tuple(sorted(findings, key=lambda finding: finding.start))


def _found_in_plain(text: str, kinds: Collection[Kind]) -> Iterator[Finding]:
    for plain in plain_readings(text):
        reading = _Reading(plain.text)
        for kind, reader in _READERS.items():
            if kind in kinds:
                for finding in reader(reading):
                    start, end = plain.source_span(finding.start, finding.end)
                    yield Finding(kind, start, end, finding.value)


def _found_in_base64(text: str, kinds: Collection[Kind]) -> Iterator[Finding]:
    """Yield one finding for each encoded part that has some. Its value is the first one's."""
    for match in _BASE64.finditer(text):
        if match[0].islower() or match[0].isdecimal():
            continue
        decoded = decoded_text(match[0].replace("-", "+").replace("_", "/"))
        finding = next(_found_in_plain(decoded, kinds), None) if decoded else None
        if finding is not None:
            yield Finding(finding.kind, match.start(), match.end(), f"{finding.value} {match[0]}")


def redact(text: str, findings: Sequence[Finding]) -> str:
    """Return `text` with each finding replaced by its kind, such as `<email>`."""
    parts, at = [], 0
    for finding in findings:
        parts += [text[at : finding.start], f"<{finding.kind}>"]
        at = finding.end
    return "".join([*parts, text[at:]])


def values_digest(findings: Sequence[Finding]) -> bytes:
    """Return a digest of the values in their order, 32 bytes. Separators do not matter."""
    return sha256("\0".join([f"{finding.kind}\0{finding.value}" for finding in findings]).encode()).digest()


class _Reading:
    """`_Reading` is a plain text, and where its digits are."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.groups = [match.span() for match in _DIGITS.finditer(text)]
        self.clusters = list(_clusters(self.groups))  # the places of digits that may be a number of a person

    def matches(self, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
        """Yield the matches around digits, with the signs next to them."""
        for start, end in self.clusters:
            yield from pattern.finditer(self.text, max(0, start - 3), end + 2)

    def named(self, names: Sequence[str], pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
        """Yield the matches directly behind one of the names, which is no end of another word."""
        lower = self.text.lower() if self.clusters else ""
        for name in names:
            at = -1
            while (at := lower.find(name, at + 1)) >= 0:
                match = pattern.match(self.text, at + len(name))
                if match is not None and len(lower) == len(self.text):
                    yield match


def _clusters(groups: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    begin = before = digits = 0
    for start, end in groups:
        if start - before > MAX_GAP:
            if digits >= MIN_DIGITS:
                yield begin, before
            begin, digits = start, 0
        digits += end - start
        before = end
    if digits >= MIN_DIGITS:
        yield begin, before


def _emails(reading: _Reading) -> Iterator[Finding]:
    text = reading.text
    if "@" in text:
        for match in _EMAIL.finditer(text):
            yield Finding("email", match.start(), match.end(), match[0].lower())


def _ibans(reading: _Reading) -> Iterator[Finding]:
    text = reading.text
    if not reading.groups:
        return
    for match in _IBAN_START.finditer(text):
        length, rest = _IBAN_LENGTHS.get(match[1].upper()), _IBAN_REST.match(text, match.end())
        if length is None or rest is None:
            continue
        # A word after the number may look like more of it.
        value = "".join(filter(str.isalnum, match[0] + rest[0])).upper()[:length]
        if len(value) < length or not _is_iban(value):
            continue
        ends = [at for at in range(match.start() + 1, rest.end() + 1) if text[at - 1].isalnum()]
        end = ends[length - 1]
        if not text[end : end + 1].isalnum():
            yield Finding("iban", match.start(), end, value)


def _cards(reading: _Reading) -> Iterator[Finding]:
    """Yield the cards. The numbers before and after one, such as an amount and a date, may look like more of it."""
    if not reading.clusters:
        return
    text, groups = reading.text, reading.groups
    read = 0  # characters
    for at, (start, end) in enumerate(groups):
        if start >= read and end - start >= 4 and text[start] in "23456" and not _adjoins_word(text, start):
            card = _longest_card(text, groups[at : at + MAX_GROUPS])
            if card is not None:
                read = card.end
                yield card
    yield from _spread_cards(reading)


def _spread_cards(reading: _Reading) -> Iterator[Finding]:
    """Yield the cards whose groups stand apart by another sign, or have another size."""
    text = reading.text
    for match in reading.matches(_SPREAD):
        groups = match[0].split(match[1])
        digits = "".join(groups)
        if len(digits) not in CARD_DIGITS or not (_is_even(groups) and _ISSUER.fullmatch(digits) and _is_luhn(digits)):
            continue
        start, end = match.span()
        if not _adjoins_word(text, start) and not text[end : end + 1].isalnum():
            yield Finding("card", start, end, digits)


def _is_even(groups: Sequence[str]) -> bool:
    sizes = tuple(map(len, groups))
    return sizes in _SPREAD_SIZES or (set(sizes[:-1]) == {sizes[0]} and sizes[-1] <= sizes[0])


def _longest_card(text: str, groups: Sequence[tuple[int, int]]) -> Finding | None:
    """Return the card that begins with the first of the groups of digits. Groups are 4 digits or more at first, and
    then 3 or more."""
    start, before = groups[0]
    digits, longest = "", None
    for begin, end in groups:
        if digits and (begin - before != 1 or text[before] not in " -" or end - begin < 3):
            break
        digits, before = digits + text[begin:end], end
        if len(digits) > CARD_DIGITS[-1]:
            break
        if len(digits) in CARD_DIGITS and not text[end : end + 1].isalpha() and _is_luhn(digits):
            longest = Finding("card", start, end, digits)
    return longest


def _adjoins_word(text: str, start: int) -> bool:
    """Return whether a number is the end of a word, or the decimals of a number."""
    second, first = text[start - 2 : start - 1] if start > 1 else "", text[start - 1 : start] if start else ""
    return first.isalnum() or (first == "_" and second.isalnum()) or (first == "." and second.isdecimal())


def _ssns(reading: _Reading) -> Iterator[Finding]:
    for match in reading.matches(_SSN):
        yield Finding("ssn", match.start(), match.end(), _digits(match[0]))
    for match in reading.named(_SSN_NAMES, _NAMED_SSN):
        yield Finding("ssn", match.start(1), match.end(1), _digits(match[1]))


def _phones(reading: _Reading) -> Iterator[Finding]:
    for match in reading.matches(_PHONE):
        value = _digits(match[0])
        if len(value) >= MIN_NATIONAL:
            yield Finding("phone", match.start(), match.end(), ("+" if match[0][0] == "+" else "") + value)
    for match in reading.named(_PHONE_NAMES, _NAMED_PHONE):
        yield Finding("phone", match.start(1), match.end(1), _digits(match[1]))


def _digits(text: str) -> str:
    return "".join([char for char in text if char.isdecimal()])


def _is_luhn(digits: str) -> bool:
    """Return whether the last digit is the check digit (ISO/IEC 7812-1, annex B)."""
    codes = digits.encode()
    return (sum(codes[::-2]) + sum(codes[-2::-2].translate(_DOUBLED)) - ord("0") * len(codes)) % 10 == 0


def _is_iban(value: str) -> bool:
    """Return whether the check digits are right (ISO 13616: modulo 97 is 1)."""
    return int((value[4:] + value[:4]).translate(_AS_NUMBERS)) % 97 == 1


# Those with a checksum come first: their digits are no phone number.
_READERS: dict[Kind, Callable[[_Reading], Iterator[Finding]]] = {
    "email": _emails,
    "iban": _ibans,
    "card": _cards,
    "ssn": _ssns,
    "phone": _phones,
}
