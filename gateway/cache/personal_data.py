"""Find personal data in a text, and replace it by its kind. Pure.

Each kind has a pattern and, where the kind has one, a checksum. So a number of sixteen digits is rarely a card by
chance. The patterns miss data that is written in an unusual way, and they know no names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from gateway.config.policy.model import PersonalData, PrivacySettings
from gateway.messages import Bypass, Call, Decisive

# Characters that are read: 6 ms for prose, and at most 30 ms for texts made to be slow. A longer text counts as having
# personal data.
MAX_READ = 32_768


@dataclass(frozen=True, slots=True)
class Finding:
    kind: PersonalData
    start: int  # characters
    end: int
    value: str  # without separators, so that two ways to write it are equal


# Other forms of the characters that separate or form numbers and addresses. Each stands for one, so places stay.
_PLAIN_FORMS = str.maketrans(
    {
        **dict.fromkeys("\u00a0\u2007\u2009\u202f\u3000", " "),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d", "-"),
        **{chr(0xFF10 + digit): str(digit) for digit in range(10)},
        "\uff20": "@",
        "\uff0e": ".",
        "\uff0b": "+",
    }
)
_DIGITS = re.compile(r"[0-9]+")
# Each repetition is bounded. So the time grows with the length of the text only.
_EMAIL = re.compile(
    r"(?<![\w\u0300-\u036f%+-])[\w%+-][\w\u0300-\u036f.%+'-]{0,63}@"
    r"(?:[^\W_][\w-]{0,62}\.){1,8}(?:xn--[A-Za-z\d-]{2,59}|[^\W\d_]{2,24})(?!\w)"
)
_IBAN_START = re.compile(r"(?<!\w)([A-Za-z]{2})\d{2}")
_IBAN_REST = re.compile(r"(?:[ -]?[A-Za-z\d]){11,30}")
_SSN = re.compile(
    r"(?<![\w-])(?!000|666|9)\d{3}([ -])(?!00)\d{2}\1(?!0000)\d{4}(?!\w|-\d)"
    r"|(?:\bssn|\bsocial security)(?: (?:number|no\.?))?\W{0,3}(?:is\W{1,2})?"
    r"((?!000|666|9)\d{3}(?!00)\d{2}(?!0000)\d{4})(?!\w)",
    re.IGNORECASE,
)
# With a country code, with the 0 of a national number, or in the groups of North America and Mexico, Brazil, Spain and
# China. Without one of them and without separators a number is more often something else.
_PHONE = re.compile(
    r"(?<![\w+])(?:\+|(?<!\d[ .\-/])00(?=[1-9]))\d(?:[ ().\-/]{0,2}\d){7,14}(?!\w)"
    r"|(?<![\w.+-])(?:1[ .-])?(?:\([2-9]\d{2}\) ?|[2-9]\d{2}[ .-])\d{3}[ .-]\d{4}(?!\w|-\d)"
    r"|(?<![\w.+-])(?:\([1-9]{2}\) ?\d{4,5}-|1[3-9]\d[ -]\d{4}[ -])\d{4}(?!\w|-\d)"
    r"|(?<![\w.+-])(?<!\d )[6-9]\d{2}(?: \d{2}){3}(?!\w| ?\d)"
    r"|(?<![\w.+-])(?<![\d+][ .\-/])\(?0[1-9]\d{0,4}\)?[ /-]\d{2,5}(?:[ /-]?\d{2,4}){0,3}(?!\w|-\d)"
)
MIN_NATIONAL = 9  # digits of a national number; a date such as 01-02-2024 has eight
CARD_DIGITS = range(13, 20)  # ISO/IEC 7812-1 allows 19; cards in use have 13 or more
MAX_GROUPS = 6  # groups of digits of a card
_DOUBLED = bytes.maketrans(b"0123456789", b"0246813579")  # the sum of the digits of the double
_AS_NUMBERS = {ord(letter): str(at) for at, letter in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZ", 10)}

# The operations of models whose bodies are texts.
_CONVERSATIONS = frozenset({"chat.completions", "completions", "messages", "responses"})
# Names of the client, which no cache stores, and definitions by its developer. An answer may repeat all other fields.
_UNREAD_FIELDS = frozenset(
    {
        *("model", "user", "safety_identifier", "metadata", "client_metadata", "prompt_cache_key"),
        *("tools", "functions", "response_format", "text", "output_config"),
    }
)
# An image or a sound, in base64.
_BINARY = re.compile(r"(?:data:[\w/+.;=-]{1,128},)?[A-Za-z\d+/=_-]{1024,}")

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


def find(text: str, kinds: Collection[PersonalData]) -> tuple[Finding, ...]:
    """Return what `text` has of `kinds`, in its order. No two findings overlap: the kind with the checksum wins."""
    has_digits = _DIGITS.search(text) is not None
    if not has_digits and "@" not in text and text.isascii():
        return ()
    plain = text if text.isascii() else text.translate(_PLAIN_FORMS)
    found: list[Finding] = []
    taken = bytearray(len(text))
    for kind, reader in _READERS.items():
        if kind not in kinds:
            continue
        for new in reader(plain):
            if not any(taken[new.start : new.end]):
                taken[new.start : new.end] = b"\x01" * (new.end - new.start)
                found.append(new)
    return tuple(sorted(found, key=lambda finding: finding.start))


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


def apply_privacy(call: Call, rule: PrivacySettings) -> tuple[Call, tuple[PersonalData, ...]]:
    """Return the call as the caches and the logs may see it, and the kinds that were found.

    `bypass` reads all texts of the call, because an answer may repeat any of them. `redact-key` reads the question: the
    turns before it are part of the scope as a digest. The backend gets the request as it came.
    """
    if rule.action == "redact-key":
        return _redacted(call, rule.kinds)
    text = _text_of(call)
    kinds = () if text is None else _kinds_of(find(text, rule.kinds))
    if rule.action == "bypass" and (kinds or text is None):
        # The complexity model and the traffic log of the route read the question of such a call, too.
        call = replace(_redacted(call, rule.kinds)[0], uncached=call.uncached or Bypass.PERSONAL_DATA)
    return call, kinds


def keeps_out(question: str | None, rule: PrivacySettings) -> bool:
    """Return whether a stored question has data that the rule keeps out of the caches."""
    if question is None or rule.action == "store":
        return False
    return len(question) > MAX_READ or bool(find(question, rule.kinds))


def _redacted(call: Call, kinds: Collection[PersonalData]) -> tuple[Call, tuple[PersonalData, ...]]:
    found, findings = redact_question(call.decisive, kinds)
    return (call if found is call.decisive else replace(call, decisive_source=found)), _kinds_of(findings)


def _text_of(call: Call) -> str | None:
    """Return the texts of a call as one; None: they are longer than `MAX_READ`."""
    texts, length = [], 0
    for text in _texts_of(call):
        texts.append(text)
        length += len(text) + 1
        if length > MAX_READ:
            return None
    return "\n".join(texts)


def _texts_of(call: Call) -> Iterator[str]:
    """Yield the texts of a call: of a conversation, all turns with the tools' calls and results."""
    if call.operation not in _CONVERSATIONS and (call.questions or call.operation != "embeddings"):
        yield call.prompt
        yield from call.questions
        return
    waiting: list[object] = [value for name, value in call.body.items() if name not in _UNREAD_FIELDS]
    while waiting:  # not a recursion: a body may be nested deeply
        value = waiting.pop()
        if isinstance(value, str):
            if not _BINARY.fullmatch(value):
                yield value
        elif isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def redact_question(decisive: Decisive, kinds: Collection[PersonalData]) -> tuple[Decisive, tuple[Finding, ...]]:
    """Return what decides the answer, with a redacted question and the values as a part of the scope."""
    question, context = decisive.question, decisive.context
    if question is None:
        return decisive, ()
    if len(question) > MAX_READ:  # then it has an exact key only
        return Decisive(decisive.canonical, context, None, Bypass.TOO_LONG), ()
    findings = find(question, kinds)
    if not findings:
        return decisive, ()
    redacted = redact(question, findings)
    return Decisive(decisive.canonical, context + values_digest(findings), redacted, decisive.no_question), findings


def _kinds_of(findings: Sequence[Finding]) -> tuple[PersonalData, ...]:
    return tuple(dict.fromkeys(finding.kind for finding in findings))


def _emails(text: str) -> Iterator[Finding]:
    if "@" in text:
        for match in _EMAIL.finditer(text):
            yield Finding("email", match.start(), match.end(), match[0].lower())


def _ibans(text: str) -> Iterator[Finding]:
    for match in _IBAN_START.finditer(text):
        length, rest = _IBAN_LENGTHS.get(match[1].upper()), _IBAN_REST.match(text, match.end())
        if length is None or rest is None:
            continue
        # A word after the number may look like more of it.
        value = (match[0] + rest[0]).replace(" ", "").replace("-", "").upper()[:length]
        if len(value) < length or not _is_iban(value):
            continue
        ends = [at for at in range(match.start() + 1, rest.end() + 1) if text[at - 1] not in " -"]
        end = ends[length - 1]
        if not text[end : end + 1].isalnum():
            yield Finding("iban", match.start(), end, value)


def _cards(text: str) -> Iterator[Finding]:
    """Yield the cards. The numbers before and after one, such as an amount and a date, may look like more of it."""
    groups = [match.span() for match in _DIGITS.finditer(text)]
    read = 0  # characters
    for at, (start, end) in enumerate(groups):
        if start >= read and end - start >= 4 and text[start] in "23456" and not _adjoins_word(text, start):
            found = _longest_card(text, groups[at : at + MAX_GROUPS])
            if found is not None:
                read = found.end
                yield found


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
    before = text[start - 1 : start]
    return before.isalnum() or before == "_" or (before == "." and text[start - 2 : start - 1].isdecimal())


def _ssns(text: str) -> Iterator[Finding]:
    for match in _SSN.finditer(text):
        start, end = match.span(2) if match[2] else match.span()
        yield Finding("ssn", start, end, _digits(text[start:end]))


def _phones(text: str) -> Iterator[Finding]:
    for match in _PHONE.finditer(text):
        value = _digits(match[0])
        if len(value) >= MIN_NATIONAL:
            yield Finding("phone", match.start(), match.end(), ("+" if match[0][0] == "+" else "") + value)


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
_READERS: dict[PersonalData, Callable[[str], Iterator[Finding]]] = {
    "email": _emails,
    "iban": _ibans,
    "card": _cards,
    "ssn": _ssns,
    "phone": _phones,
}
