"""Fold forms of writing that carry no meaning, before a question is embedded, compared or named. Pure.

A text keeps everything else: case, accents, emoji, signs and punctuation. `gateway.cache.spelling` decides which of
those may differ between two texts that count as the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from unicodedata import category, decomposition, normalize

# Tags of compatibility decompositions in the Unicode character database (UAX 44, table 14). Canonical ones, which have
# no tag, are the same character by definition (UAX 15), and are composed.
FOLDED: Mapping[str, str] = {
    "<wide>": "full width is a matter of East Asian layout",
    "<narrow>": "so is half width",
    "<small>": "a variant for Chinese layout",
    "<vertical>": "a variant for vertical text",
    "<isolated>": "an Arabic letter in one of its shapes",
    "<initial>": "an Arabic letter in one of its shapes",
    "<medial>": "an Arabic letter in one of its shapes",
    "<final>": "an Arabic letter in one of its shapes",
    "<noBreak>": "it says where a line may not end",
    "<square>": "a unit in one cell: \u338f is kg",
    "<compat>": "a ligature, a Roman numeral, an ellipsis, a letter-like sign: \ufb01, \u2163, \u2026, \u2103",
}
KEPT: Mapping[str, str] = {
    "<super>": "an exponent: x\u00b2 is not x2",
    "<font>": "a symbol of mathematics: \u211d is not R",
    "<circle>": "a mark of its own: \u24c2 is a line of a metro",
    "<sub>": "folded behind a letter only: CO\u2082 is CO2, and 10\u2082 is not 102",
    "<fraction>": "folded with a space behind a digit: 1\u00bd is 1 1/2, and not 11/2",
}

_SUBSCRIPT = re.compile(r"(?<=[^\W\d_])[\u2080-\u2089]+")
_SUBSCRIPTS = {0x2080 + digit: str(digit) for digit in range(10)}
_FRACTION = re.compile(r"(\d?)([\u00bc-\u00be\u2150-\u215e\u2189])")
# Both ask to show an emoji as a picture, which is its usual form.
_PICTURE = re.compile("(?<=[\u2190-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff])\ufe0f")
_FULL_STOP = {0x3002: "."}  # ideographic

# Signs without a form of their own: joiners, marks of direction, selectors of glyphs, strokes, key caps.
_INVISIBLE = frozenset(
    map(
        chr,
        (0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x20E3, 0x3164, 0xFFA0, *range(0x334, 0x339), *range(0x180B, 0x1810)),
    )
) | frozenset(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))


def is_invisible(sign: str) -> bool:
    """Return whether nobody sees a character: a format character of Unicode, or a sign without a form of its own."""
    return category(sign) == "Cf" or sign in _INVISIBLE


class _Forms(dict[int, str]):
    """The plain form of each character that was read, by its code point."""

    def __missing__(self, point: int) -> str:
        self[point] = plain = _plain_form(chr(point))
        return plain


def _plain_form(sign: str) -> str:
    if category(sign) == "Zs":
        return " "
    tag, *points = decomposition(sign).split() or ("",)
    # A spacing accent is a character of its own, although it decomposes into a space and an accent.
    if tag not in FOLDED or points[0] == "0020":
        return sign
    return "".join([_plain_form(chr(int(point, 16))) for point in points])


_FORMS = _Forms(_FULL_STOP)


def fold_forms(text: str) -> str:
    """Return the text with other forms of the same characters written plainly."""
    if text.isascii():
        return text
    text = normalize("NFC", text)
    plain = text.translate(_FORMS)
    if _FRACTION.search(plain):
        plain = _FRACTION.sub(_fraction, plain)
    if _SUBSCRIPT.search(plain):
        plain = _SUBSCRIPT.sub(lambda match: match[0].translate(_SUBSCRIPTS), plain)
    return _PICTURE.sub("", plain)


def _fraction(match: re.Match[str]) -> str:
    before, sign = match.groups()
    written = normalize("NFKC", sign).replace("\u2044", "/")
    return f"{before} {written}" if before else written


def fold_spaces(text: str) -> str:
    """Return the text with the spaces that carry no meaning removed.

    In a text of several lines, spaces within a line count, as they may be the indentation of code.
    """
    stripped = text.strip()
    if "\n" not in stripped:
        return " ".join(stripped.split())
    return "\n".join([line.rstrip() for line in stripped.split("\n")])
