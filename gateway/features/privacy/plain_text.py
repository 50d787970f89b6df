"""Read a text as a person reads it: with its escapes decoded, and other forms of characters folded. Pure.

A place in the plain text leads back to the text as it came, so that a part of it can be replaced.
"""

from __future__ import annotations

import html
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import cached_property

from gateway.text_forms import is_invisible

# Each pattern is bounded, and begins with a sign that few texts have. JSON within JSON doubles its backslashes.
_JSON_ESCAPE = re.compile(
    r"\\{1,16}(?:u(?P<high>d[89ab][\da-f]{2})\\{1,16}u(?P<low>d[c-f][\da-f]{2})|u(?P<unit>[\da-f]{4})"
    r"|x(?P<byte>[\da-f]{2})|(?P<space>[nrt])|(?P<sign>[\"'/@+.() -]))",
    re.IGNORECASE,
)
_HTML_ESCAPE = re.compile(r"&(?:amp;){0,4}(#\d{1,7}|#[xX][\da-fA-F]{1,6}|[A-Za-z]{2,8});?")
_AT = re.compile(r"[(\[{<] ?(?:at|@) ?[)\]}>]", re.IGNORECASE)
_SPOKEN_SIGN = re.compile(r" {0,2}[(\[{<] ?(?:(?P<at>at|@)|dot|\.) ?[)\]}>] {0,2}", re.IGNORECASE)
# The signs of addresses and numbers. Letters are left, so that "50%4111..." stays a number.
_PERCENT = re.compile(r"%(?:25){0,3}(2[089BDEbde]|3\d|40)")

_SIGNS = {"\u2212": "-", "\u2043": "-", "\u3002": ".", "\uff61": ".", "\u2215": "/", "\u2044": "/", "\u2e31": "\u00b7"}


def fold(char: str) -> str:
    """Return the plain form of a character: of digits, spaces and hyphens of all scripts the one of ASCII.

    Compatibility forms become what they stand for (NFKC), and invisible characters nothing.
    """
    if is_invisible(char):
        return ""
    category = unicodedata.category(char)
    if category == "Nd":
        return str(unicodedata.decimal(char))
    if category in ("Zs", "Zl", "Zp"):
        return " "
    if category == "Pd":
        return "-"
    folded = _SIGNS.get(char) or unicodedata.normalize("NFKC", char)
    return folded if folded.isascii() else char


Replacement = Callable[[re.Match[str]], str]


class _Layer:
    """`_Layer` replaces the matches of a pattern in a text, and knows where they were."""

    def __init__(self, source: str, pattern: re.Pattern[str], plain: Replacement) -> None:
        self._source = source
        self._pattern = pattern
        self._plain = plain
        self.text = pattern.sub(plain, source)

    @cached_property
    def _parts(self) -> tuple[list[int], list[int], list[tuple[int, int]]]:
        """The begins and the ends of the replacements in the new text, and the spans in `source`. Few texts
        need them."""
        begins, ends, spans, shift = [], [], [], 0
        for match in self._pattern.finditer(self._source):
            begins.append(match.start() + shift)
            ends.append(begins[-1] + len(self._plain(match)))
            spans.append(match.span())
            shift = ends[-1] - match.end()
        return begins, ends, spans

    def source_span(self, start: int, end: int) -> tuple[int, int]:
        """Return where the non-empty part `start` to `end` of the new text comes from."""
        return self._place(start)[0], self._place(end - 1)[1]

    def _place(self, at: int) -> tuple[int, int]:
        """Return where one character comes from."""
        begins, ends, spans = self._parts
        before = bisect_right(begins, at) - 1
        if before < 0:
            return at, at + 1
        if at < ends[before]:
            return spans[before]
        source = spans[before][1] + at - ends[before]
        return source, source + 1


class PlainText:
    """`PlainText` is one reading of a text."""

    def __init__(self, text: str, layers: tuple[_Layer, ...] = ()) -> None:
        self.text = text
        self._layers = layers

    def source_span(self, start: int, end: int) -> tuple[int, int]:
        """Return where the non-empty part `start` to `end` comes from."""
        for layer in reversed(self._layers):
            start, end = layer.source_span(start, end)
        return start, end

    def replace(self, pattern: re.Pattern[str], plain: Replacement) -> PlainText:
        layer = _Layer(self.text, pattern, plain)
        return PlainText(layer.text, (*self._layers, layer))


def plain_readings(text: str) -> Iterator[PlainText]:
    """Yield the readings of a text; most have one."""
    plain = PlainText(text)
    if not text.isascii():
        folded = {ord(char): form for char in set(text) if not char.isascii() and (form := fold(char)) != char}
        if all(len(form) == 1 for form in folded.values()):
            plain = PlainText(text.translate(folded) if folded else text)
        else:
            plain = plain.replace(
                re.compile("[" + "".join(map(re.escape, map(chr, folded))) + "]"), lambda match: folded[ord(match[0])]
            )
    if "\\" in plain.text:
        plain = plain.replace(_JSON_ESCAPE, _unescaped)
    if "&" in plain.text:
        plain = plain.replace(_HTML_ESCAPE, _character)
    if _AT.search(plain.text) is not None:
        plain = plain.replace(_SPOKEN_SIGN, lambda match: "." if match["at"] is None else "@")
    if "\t" in plain.text:
        plain = PlainText(plain.text.replace("\t", " "), plain._layers)
    yield plain
    if "%" in plain.text and _PERCENT.search(plain.text) is not None:
        yield plain.replace(_PERCENT, lambda match: chr(int(match[1], 16)))


def is_disguised(text: str) -> bool:
    """Return whether an ASCII text without digits and without "@" may have an address."""
    return "&" in text or _AT.search(text) is not None


def _unescaped(match: re.Match[str]) -> str:
    if match["space"] is not None:
        return " " if match["space"] in "tT" else "\n"
    if match["sign"] is not None:
        return match["sign"]
    if match["high"] is not None:
        high, low = int(match["high"], 16), int(match["low"], 16)
        return _plain(0x10000 + ((high & 0x3FF) << 10) + (low & 0x3FF))
    return _plain(int(match["unit"] or match["byte"], 16))


def _character(match: re.Match[str]) -> str:
    character = html.unescape(f"&{match[1]};")
    return _plain(ord(character)) if len(character) == 1 else match[0]


def _plain(code: int) -> str:
    return chr(code) if code < 128 else fold(chr(code))
