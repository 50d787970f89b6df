"""The answers of one connection, read with llhttp."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import httptools

from gateway.upstream.http1.errors import MalformedAnswer
from gateway.upstream.http1.headers import HeaderNames, check_coding, kept_s
from gateway.upstream.http1.response import HttpResponse

# Heads of answers that llhttp has read, known by their bytes.
#
# A server says the same head with every answer, but for how long its body is, the date and an id: llhttp would read it to
# the same end again. Known is only what it has read as the head of a whole answer that came in one piece, with a body as
# long as the head says; what is looked for is nothing but the same bytes again, save the values that vary, and those are
# printable ASCII, the length a few digits. So nothing is read here that llhttp has not. Pure.

END = b"\r\n\r\n"

MAX_KNOWN = 1024  # of some 100 bytes to `MAX_HEAD`; a server that invents more makes it begin anew

MAX_HEAD = 2048  # bytes

VAIN = 64

# In the spellings that there are: three quarters of the time of IGNORECASE.
VARYING = re.compile(rb"(\r\n(?:[Cc]ontent-[Ll]ength|[Dd]ate|[Xx]-[Rr]equest-[Ii][Dd]): )([ -~]*)(?=\r\n)")

LENGTH = re.compile(rb"\r\ncontent-length: ", re.IGNORECASE)

UNIQUE = re.compile(rb"\r\nx-request-id: ", re.IGNORECASE)

DIGITS = re.compile(rb"[0-9]{1,15}")


class HeadShape:
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

    def with_values(self, values: list[bytes]) -> CachedHead | None:
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
        return CachedHead(self, headers, {**self._noted, "content-length": length.decode()}, int(length))


class CachedHead:
    """Shared by all answers that have it: nobody changes `headers` or `noted`. `length`: of the body; `memo`: for what
    follows from the headers."""

    __slots__ = ("headers", "length", "like", "memo", "noted")

    def __init__(self, like: HeadShape, headers: list[tuple[str, str]], noted: dict[str, str], length: int) -> None:
        self.like = like
        self.headers = headers
        self.noted = noted
        self.length = length
        self.memo: dict[bool, Any] = {}


class ResponseHeadCache(dict[bytes, CachedHead]):
    """By all of their bytes. To `find` is for those that are not among them. Where `VAIN` in a row were like none
    before, as from a server that says something else with each answer, only every `VAIN`th is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self._likes: dict[bytes, HeadShape] = {}  # by what they have in common
        self._vain = 0  # that were like none, in a row

    @property
    def _looks(self) -> bool:
        return self._vain < VAIN or self._vain % VAIN == 0

    def find(self, head: bytes) -> CachedHead | None:
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
        like = HeadShape(status, headers, noted, head, keeps=keeps)
        if like.length_at < 0 or noted.get("content-length") != str(len(data) - end):
            return
        if len(self._likes) >= MAX_KNOWN:
            self._likes.clear()
            self.clear()
        self._likes[VARYING.sub(rb"\1", head)] = like


# The answers of one connection, read with llhttp.
MAX_BARREN_BYTES = 64 * 1024  # that come without a body: a head, chunk extensions, trailers

MAX_HEADERS = 128

MAX_INFORMATIONAL = 16  # answers 1xx before the final one

BODILESS = frozenset({204, 304})


class ResponseParser:
    """`begin` an answer, then `feed` what comes until it has `ended`. `names` and `known` may be shared."""

    def __init__(self, names: HeaderNames, known: ResponseHeadCache) -> None:
        self._names = names
        self._known = known
        self._parser = self._made()
        self._answer: HttpResponse | None = None
        self.ended = False
        self.heard = False  # a byte of the answer has come
        self.until_close = False  # its head is here, and its body ends with the connection
        self._noted: dict[str, str] = {}
        self._fields: list[tuple[str, str]] | None = None  # of the head that comes; None: none does
        self._barren = self._informed = 0
        self._refused: MalformedAnswer | None = None

    def begin(self, answer: HttpResponse, *, headless: bool) -> None:
        """`headless`: it answers a HEAD."""
        self._answer = answer
        self._headless = headless
        self.ended = self.heard = self.until_close = False
        self._keeps = False  # the server does not close the connection
        self._surplus = False  # more came than the answer

    def feed(self, data: bytes) -> None:
        """Raises `MalformedAnswer`."""
        answer = self._answer
        assert answer is not None
        first = not self.heard
        if first:
            self.heard = True
            end = data.find(END) + len(END)
            head = data[:end]
            known = self._known.get(head) or self._known.find(head)
            if known is not None and len(data) == end + known.length and not self._headless:
                like = known.like
                answer.status, answer.headers, answer.noted = like.status, known.headers, known.noted
                answer.memo = known.memo
                if known.length:
                    answer.pieces.append(data[end:])
                    answer.unread = known.length
                self._noted, self._keeps, self.ended = known.noted, like.keeps, True
                return
            self._anew()
        before = answer.unread
        self._barren += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._surplus = True
            if not self.ended:  # what is wrong behind the end is not the answer's
                raise self._refused or MalformedAnswer(f"the answer is malformed: {error}") from None
        if self._refused is not None:
            raise self._refused
        if answer.unread > before:
            self._barren = 0
        elif self._barren > MAX_BARREN_BYTES and not self.ended:
            raise MalformedAnswer(f"more than {MAX_BARREN_BYTES} bytes of the answer are no body")
        if first and self.ended:
            self._learn(answer, data)

    def _anew(self) -> None:
        self._fields = None
        self._barren = self._informed = 0
        self._refused = None

    def _learn(self, answer: HttpResponse, data: bytes) -> None:
        """Of a whole answer that came in one piece."""
        if self._surplus or self._headless or self._informed or answer.status in BODILESS:
            return
        if "transfer-encoding" not in self._noted:
            self._known.learn(data, answer.status, answer.headers, answer.noted, keeps=self._keeps)

    def idle_s(self, longest_s: float) -> float:
        """For how long the connection may lie idle after the answer that has ended; 0: it is of no use any more."""
        if self._surplus or not self._keeps:
            return 0.0
        if self._headless:
            self._parser = self._made()  # llhttp waits for the body of which an answer to HEAD only speaks
        said = self._noted.get("keep-alive")
        return longest_s if said is None else kept_s(said, longest_s)

    def over(self) -> None:
        """For good. The parser refers to this object, and this to it."""
        self._parser = self._answer = None

    def _made(self) -> Any:
        """Bare LFs and spaces behind a chunk's size occur in the wild and mean one thing only; all else is strict."""
        parser = httptools.HttpResponseParser(self)
        parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True)
        return parser

    # What llhttp calls. Nothing is raised in there: it would say so in its own words.

    def on_message_begin(self) -> None:
        self._surplus = self._surplus or self.ended
        self._fields, self._noted = [], {} if not self.ended else self._noted

    def on_header(self, name: bytes, value: bytes) -> None:
        fields = self._fields
        if fields is None:
            return  # a trailer, which ends here
        text, noted = self._names[name]
        said = value.decode("utf-8", "surrogateescape").rstrip(" \t")
        fields.append((text, said))
        if noted is not None:
            self._noted[noted] = f"{self._noted[noted]}, {said}" if noted in self._noted else said

    def on_headers_complete(self) -> None:
        answer, fields, self._fields = self._answer, self._fields, None
        if self.ended or answer is None or fields is None:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self._informed += 1
            if status == 101 or self._informed > MAX_INFORMATIONAL:
                self._refused = MalformedAnswer(f"an answer of status {status} that was not asked for")
            return
        noted = self._noted
        try:
            if "transfer-encoding" in noted:
                check_coding(noted["transfer-encoding"])
            if len(fields) > MAX_HEADERS or (self._barren > MAX_BARREN_BYTES and _size(fields) > MAX_BARREN_BYTES):
                raise MalformedAnswer(f"the answer has more than {MAX_HEADERS} headers, or {MAX_BARREN_BYTES} bytes")
        except MalformedAnswer as error:
            self._refused = error
            return
        answer.status, answer.headers, answer.noted = status, fields, noted
        self._keeps = self._parser.should_keep_alive()
        if self._headless:
            self.ended = True
        elif status not in BODILESS and not noted.keys() & {"content-length", "transfer-encoding"}:
            self.until_close = True

    def on_body(self, data: bytes) -> None:
        answer = self._answer
        if self.ended or answer is None:
            self._surplus = True
            return
        answer.pieces.append(data)
        answer.unread += len(data)

    def on_message_complete(self) -> None:
        if self._answer is not None and self._answer.status:  # else it was 1xx
            self.ended = True


def _size(fields: list[tuple[str, str]]) -> int:
    return sum(len(name) + len(value) + 4 for name, value in fields)
