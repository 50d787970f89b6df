"""Heads of answers that llhttp has read, known by their bytes.

A server says the same head with every answer, but for how long its body is, the date and an id: llhttp would read it to
the same end again. Known is only what it has read as the head of a whole answer that came in one piece, with a body as
long as the head says; what is looked for is nothing but the same bytes again, save the values that vary, and those are
printable ASCII, the length a few digits. So nothing is read here that llhttp has not. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

END = b"\r\n\r\n"
MAX_KNOWN = 1024  # of some 100 bytes to `MAX_HEAD`; a server that invents more makes it begin anew
MAX_HEAD = 2048  # bytes
VAIN = 64
# In the spellings that there are: three quarters of the time of IGNORECASE.
VARYING = re.compile(rb"(\r\n(?:[Cc]ontent-[Ll]ength|[Dd]ate|[Xx]-[Rr]equest-[Ii][Dd]): )([ -~]*)(?=\r\n)")
LENGTH = re.compile(rb"\r\ncontent-length: ", re.IGNORECASE)
UNIQUE = re.compile(rb"\r\nx-request-id: ", re.IGNORECASE)
DIGITS = re.compile(rb"[0-9]{1,15}")


class Like:
    """What heads have in common that differ in nothing but values that vary. `at`: which of the headers those are."""

    __slots__ = ("_headers", "_noted", "at", "keeps", "length_at", "status", "unique")

    def __init__(
        self, status: int, headers: list[tuple[str, str]], noted: Mapping[str, str], head: bytes, *, keeps: bool
    ) -> None:
        self.status = status
        self.keeps = keeps
        self._headers = headers
        self._noted = noted
        found = list(VARYING.finditer(head))
        self.at = [head.count(b"\r\n", 0, each.start()) for each in found]
        self.length_at = next((i for i, each in zip(self.at, found, strict=True) if LENGTH.match(each[1])), -1)
        self.unique = any(UNIQUE.match(each[1]) for each in found)

    def with_values(self, values: list[bytes]) -> KnownHead | None:
        """None where that has to be read."""
        if len(values) != len(self.at):
            return None
        headers, length = self._headers.copy(), b""
        for i, value in zip(self.at, values, strict=True):
            headers[i] = headers[i][0], value.decode().strip(" ")
            if i == self.length_at:
                length = value
        if DIGITS.fullmatch(length) is None:
            return None
        return KnownHead(self, headers, {**self._noted, "content-length": length.decode()}, int(length))


class KnownHead:
    """Shared by all answers that have it: nobody changes `headers` or `noted`. `length`: of the body; `memo`: for what
    follows from the headers."""

    __slots__ = ("headers", "length", "like", "memo", "noted")

    def __init__(self, like: Like, headers: list[tuple[str, str]], noted: dict[str, str], length: int) -> None:
        self.like = like
        self.headers = headers
        self.noted = noted
        self.length = length
        self.memo: dict[bool, Any] = {}


class KnownHeads(dict[bytes, KnownHead]):
    """By all of their bytes. To `find` is for those that are not among them. Where `VAIN` in a row were like none
    before, as from a server that says something else with each answer, only every `VAIN`th is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self._likes: dict[bytes, Like] = {}  # by what they have in common
        self._vain = 0  # that were like none, in a row

    @property
    def _looks(self) -> bool:
        return self._vain < VAIN or self._vain % VAIN == 0

    def find(self, head: bytes) -> KnownHead | None:
        self._vain += 1
        if len(head) > MAX_HEAD or not self._likes or not self._looks:
            return None
        pieces = VARYING.split(head)  # text, name, value, text, ...
        values = pieces[2::3]
        del pieces[2::3]
        like = self._likes.get(b"".join(pieces))
        known = None if like is None else like.with_values(values)
        if known is None:
            return None
        self._vain = 0
        if not known.like.unique:
            if len(self) >= MAX_KNOWN:
                self.clear()
            self[head] = known
        return known

    def learn(
        self, data: bytes, status: int, headers: list[tuple[str, str]], noted: Mapping[str, str], *, keeps: bool
    ) -> None:
        """`data` was read, in one piece: nothing but one answer, whose body is as long as its head says."""
        if not self._looks:
            return
        end = data.find(END) + len(END)
        head = data[:end]
        # Lines that end without a CR are lines to llhttp, and are not counted here.
        if len(head) > MAX_HEAD or not head.count(b"\n") == head.count(b"\r\n") == len(headers) + 2:
            return
        like = Like(status, headers, noted, head, keeps=keeps)
        if like.length_at < 0 or noted.get("content-length") != str(len(data) - end):
            return
        if len(self._likes) >= MAX_KNOWN:
            self._likes.clear()
            self.clear()
        self._likes[VARYING.sub(rb"\1", head)] = like
