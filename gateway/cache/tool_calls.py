"""Decide whether a stored answer that calls tools may be served. Pure.

The policy names the tools. Arguments must not carry an identifier that the request's own turns lack: such an order
number or session id came from elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from gateway.calls import Call
from gateway.config.policy.schema import AdmitRule
from gateway.entries import Entry
from gateway.outcomes import Admission

TURNS = ("messages", "input", "system", "instructions", "prompt")  # fields of a request that hold its texts
_MARKS = (b"tool", b"_call")  # one of them is in the JSON of every answer that calls a tool
_WORD = re.compile(r"[\w@#][\w@#./:\-]*", re.ASCII)
_AMOUNT = re.compile(r"\d{1,5}(?:\.\d+)?")  # or a year
MIN_DIGITS, MIN_MIXED = 6, 8


def refuse_tool_calls(rules: AdmitRule, call: Call, payload: Sequence[bytes], streamed: bool) -> Admission | None:
    """Return why an answer with tool calls is neither stored nor served, or None if it may be, or calls no tool."""
    if not any(mark in data for data in payload for mark in _MARKS):
        return None
    answer = call.dialect.answer_parts(call, payload, streamed)
    if answer is None:
        return Admission.MALFORMED
    if not all(_is_named(rules.tools, made.name) for made in answer.tool_calls):
        return Admission.TOOLS
    identifiers = {found for made in answer.tool_calls for found in identifiers_of(made.arguments)}
    if not identifiers:
        return None
    said = " ".join(_texts([call.body.get(key) for key in TURNS])).casefold()
    return None if all(_occurs(found, said) for found in identifiers) else Admission.FOREIGN_ID


def may_serve(rules: AdmitRule, call: Call, entry: Entry) -> bool:
    """Return whether the policy in force lets an entry answer this request, as far as its tool calls matter."""
    return refuse_tool_calls(rules, call, entry.payload, entry.streamed) is None


def identifiers_of(arguments: Any) -> Iterator[str]:
    """Yield the words of all names and values that look like identifiers, in lower case.

    Such a word has a digit, and with it a separator, `MIN_DIGITS` digits, or `MIN_MIXED` letters and digits. A UUID has
    them, and so have a hash, an order number, a date and the address of a file.
    """
    for text in _texts(arguments):
        for word in _WORD.findall(text.casefold()):
            found = word.rstrip("./:-")
            if _is_identifier(found):
                yield found


def _is_identifier(word: str) -> bool:
    digits = sum(map(str.isdigit, word))
    if digits == 0 or _AMOUNT.fullmatch(word):
        return False
    return digits >= MIN_DIGITS or len(word) >= MIN_MIXED or not word.isalnum()


def _is_named(globs: Sequence[str], name: str) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


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
