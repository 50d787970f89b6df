"""Find the identifiers in the arguments of a tool call, such as an order number. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

_WORD = re.compile(r"[\w@#][\w@#./:\-]*", re.ASCII)
_AMOUNT = re.compile(r"\d{1,5}(?:\.\d+)?")  # or a year
MIN_DIGITS, MIN_MIXED = 6, 8


def identifiers_of(arguments: Any) -> Iterator[str]:
    """Yield the words of all names and values that look like identifiers, in lower case.

    Such a word has a digit, and with it a separator, `MIN_DIGITS` digits, or `MIN_MIXED` letters and digits. A UUID has
    them, and so have a hash, an order number, a date and the address of a file.
    """
    for text in _texts(arguments):
        for word in _WORD.findall(text.casefold()):
            name = word.rstrip("./:-")
            if _is_identifier(name):
                yield name


def _is_identifier(word: str) -> bool:
    digits = sum(map(str.isdigit, word))
    if digits == 0 or _AMOUNT.fullmatch(word):
        return False
    return digits >= MIN_DIGITS or len(word) >= MIN_MIXED or not word.isalnum()


def all_occur(identifiers: Iterable[str], value: Any) -> bool:
    """Return whether each of the identifiers stands in a text of a JSON value, and not as a part of a longer word."""
    text = " ".join(_texts(value)).casefold()
    return all(_occurs(each, text) for each in identifiers)


def _occurs(word: str, text: str) -> bool:
    """Return whether a word stands in a text, and not as a part of a longer one."""
    at = text.find(word)
    while at >= 0:
        before, after = text[at - 1 : at] if at else "", text[at + len(word) : at + len(word) + 1]
        if not before.isalnum() and not after.isalnum():
            return True
        at = text.find(word, at + 1)
    return False


def _texts(value: Any) -> Iterator[str]:
    """Yield every text and every whole number of a JSON value, and the names of its fields."""
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            pending += [*one, *one.values()]
        elif isinstance(one, list):
            pending += one
        elif isinstance(one, int) and not isinstance(one, bool):
            yield str(one)
