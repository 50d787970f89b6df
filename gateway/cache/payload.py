"""Texts that a question is about rather than made of: what is to be translated, quoted, or run. Pure.

Two requests to translate differ in a few words only where it matters, and look alike everywhere else: with a fixed
instruction around varying content, every content would get the first one's answer.
"""

from __future__ import annotations

import re

# Verbs that ask for a text to be turned into another: English, German, Spanish. They count where a request begins.
_TRANSFORM = re.compile(
    r"\W{0,9}(?:(?:please|kindly|hi|hello|hey|bitte|por favor|can you|could you|would you|will you|i want you to|"
    r"i need you to|kannst du|k\u00f6nnen sie|puedes)\W{1,9}){0,3}"
    r"(?:translate|summari[sz]e|rewrite|rephrase|paraphrase|proofread|correct|classify|categori[sz]e|extract|shorten|"
    r"simplify|transcribe|transliterate|reformat|edit|label|tag|anonymi[sz]e|spell-?check|complete the|"
    r"\u00fcbersetze?n?|fasse?n?|korrigiere?n?|traduce|traducir|resume|resumir|corrige)\b",
    re.IGNORECASE,
)
_QUOTED = re.compile(
    r"```(.{1,4000}?)```|`([^`\n]{1,400})`|\"([^\"\n]{1,400})\"|\u201c([^\u201d\n]{1,400})\u201d|\u00ab([^\u00bb\n]{1,400})\u00bb",
    re.DOTALL,
)


def transforms(text: str) -> bool:
    """Whether the text asks for another text to be turned into something."""
    return _TRANSFORM.match(text) is not None


def quoted_in(text: str) -> frozenset[str]:
    """What stands in quotes or is marked as code, lower-cased, with single spaces."""
    return frozenset(plain(next(group for group in match.groups() if group)) for match in _QUOTED.finditer(text))


def plain(text: str) -> str:
    return " ".join(text.split()).lower()
