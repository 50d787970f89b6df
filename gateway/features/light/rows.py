"""Questions with the large model's answers, from which the light model is trained. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgpack

MAX_TEXT = 4_096  # characters of a question
MAX_LABEL = 200  # characters of an answer; a longer one is a text, not a class
HELD_OUT = 0.2  # share of the rows that the comparison is made with, the newest ones


class AnsweredRow(NamedTuple):
    """A question and its answer. Times are in seconds since the epoch. `subjects` are those who asked, by digest."""

    at: float
    ends: float
    text: str
    label: str
    tenant: str
    subjects: tuple[str, ...]

    @staticmethod
    def of(data: bytes) -> AnsweredRow | None:
        """Return the row of a record of the store, or None if it cannot be read."""
        try:
            at, ends, text, label, tenant, subjects = msgpack.unpackb(data)
            return AnsweredRow(float(at), float(ends), str(text), str(label), str(tenant), tuple(map(str, subjects)))
        except (ValueError, TypeError, msgpack.UnpackException):
            return None


def is_teachable(text: str, label: str) -> bool:
    """Return whether an answer can be a class, and its question is short enough."""
    return bool(text.strip() and label.strip()) and len(text) <= MAX_TEXT and len(label) <= MAX_LABEL


def same_label(one: str, other: str) -> bool:
    """Return whether two answers are the same class: white space and case do not count."""
    return " ".join(one.split()).casefold() == " ".join(other.split()).casefold()


def split_rows(rows: Iterable[AnsweredRow], now: float) -> tuple[list[AnsweredRow], list[AnsweredRow]]:
    """Return the rows to train on, and the newest fifth, which is held out.

    The newest of equal questions counts. So a corrected answer takes the place of an older one, and no question is on
    both sides. Labels that only the newest fifth has cannot be learnt, so it leaves them out.
    """
    newest = {" ".join(row.text.casefold().split()): row for row in rows if row.ends > now}
    ordered: Sequence[AnsweredRow] = sorted(newest.values(), key=lambda row: row.at)
    cut = len(ordered) - round(HELD_OUT * len(ordered))
    known = {row.label for row in ordered[:cut]}
    return list(ordered[:cut]), [row for row in ordered[cut:] if row.label in known]
