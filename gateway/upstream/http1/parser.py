"""Parse the responses of one connection with llhttp."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import httptools

from gateway.upstream.http1.errors import MalformedAnswer
from gateway.upstream.http1.headers import HeaderNames, check_coding, keep_alive_s
from gateway.upstream.http1.response import HttpResponse

# A cache of response heads that llhttp has parsed, keyed by their bytes. Pure.
#
# Servers repeat the same head with every response, except for the body length, the date and an id. llhttp would parse
# it to the same result again. The cache learns only from a complete response that came in one piece and whose body is
# as long as its head says. A later head matches only if its bytes are the same except for the varying values. These
# must be printable ASCII, and the length a few digits. So the cache accepts no head that llhttp has not accepted.

END = b"\r\n\r\n"

MAX_CACHED_HEADS = 1024  # each from some 100 bytes to `MAX_HEAD`; beyond this number the cache is cleared

MAX_HEAD = 2048  # bytes

MISS_LIMIT = 64

# It lists the usual spellings: matching takes three quarters of the time that IGNORECASE takes.
VARYING = re.compile(rb"(\r\n(?:[Cc]ontent-[Ll]ength|[Dd]ate|[Xx]-[Rr]equest-[Ii][Dd]): )([ -~]*)(?=\r\n)")

CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: ", re.IGNORECASE)

REQUEST_ID = re.compile(rb"\r\nx-request-id: ", re.IGNORECASE)

DIGITS = re.compile(rb"[0-9]{1,15}")


class HeadShape:
    """`HeadShape` is the common part of heads that differ only in varying values.

    `value_indexes` are the positions of the headers with these values.
    """

    __slots__ = ("_header_map", "_headers", "has_request_id", "keep_alive", "length_index", "status", "value_indexes")

    def __init__(
        self,
        status: int,
        headers: list[tuple[str, str]],
        header_map: Mapping[str, str],
        head: bytes,
        *,
        keep_alive: bool,
    ) -> None:
        self.status = status
        self.keep_alive = keep_alive
        self._headers = headers
        self._header_map = header_map
        matches = list(VARYING.finditer(head))
        self.value_indexes = [head.count(b"\r\n", 0, match.start()) for match in matches]
        self.length_index = next(
            (i for i, match in zip(self.value_indexes, matches, strict=True) if CONTENT_LENGTH.match(match[1])), -1
        )
        self.has_request_id = any(REQUEST_ID.match(match[1]) for match in matches)

    def with_values(self, values: list[bytes]) -> CachedHead | None:
        """Return the head with these values, or None if llhttp must parse it."""
        if len(values) != len(self.value_indexes):
            return None
        headers, length = self._headers.copy(), b""
        for i, value in zip(self.value_indexes, values, strict=True):
            headers[i] = headers[i][0], value.decode().strip(" ")
            if i == self.length_index:
                length = value
        if DIGITS.fullmatch(length) is None:
            return None
        return CachedHead(self, headers, {**self._header_map, "content-length": length.decode()}, int(length))


class CachedHead:
    """`CachedHead` is shared by all responses with this head, so `headers` and `header_map` must not be changed.

    `length` is the body length in bytes. `memo` stores results that follow from the headers.
    """

    __slots__ = ("header_map", "headers", "length", "memo", "shape")

    def __init__(
        self, shape: HeadShape, headers: list[tuple[str, str]], header_map: dict[str, str], length: int
    ) -> None:
        self.shape = shape
        self.headers = headers
        self.header_map = header_map
        self.length = length
        self.memo: dict[bool, Any] = {}


class ResponseHeadCache(dict[bytes, CachedHead]):
    """`ResponseHeadCache` maps the bytes of heads to parsed heads. `find` searches by shape, for heads that are not
    keys.

    After `MISS_LIMIT` consecutive misses only every `MISS_LIMIT`th head is searched, which is enough
    for a server that sends a different head with each response.
    """

    def __init__(self) -> None:
        super().__init__()
        self._shapes: dict[bytes, HeadShape] = {}  # by the bytes around the varying values
        self._misses = 0  # in a row

    @property
    def _should_look_up(self) -> bool:
        return self._misses < MISS_LIMIT or self._misses % MISS_LIMIT == 0

    def find(self, head: bytes) -> CachedHead | None:
        self._misses += 1
        if len(head) > MAX_HEAD or not self._shapes or not self._should_look_up:
            return None
        chunks = VARYING.split(head)  # text, name, value, text, ...
        values = chunks[2::3]
        del chunks[2::3]
        shape = self._shapes.get(b"".join(chunks))
        known = None if shape is None else shape.with_values(values)
        if known is None:
            return None
        self._misses = 0
        if not known.shape.has_request_id:
            if len(self) >= MAX_CACHED_HEADS:
                self.clear()
            self[head] = known
        return known

    def learn(
        self,
        data: bytes,
        status: int,
        headers: list[tuple[str, str]],
        header_map: Mapping[str, str],
        *,
        keep_alive: bool,
    ) -> None:
        """Learn the head of `data`, which is exactly one parsed response whose body is as long as its head says."""
        if not self._should_look_up:
            return
        end = data.find(END) + len(END)
        head = data[:end]
        # llhttp accepts lines that end without a CR; the positions counted here would be wrong for them.
        if len(head) > MAX_HEAD or not head.count(b"\n") == head.count(b"\r\n") == len(headers) + 2:
            return
        shape = HeadShape(status, headers, header_map, head, keep_alive=keep_alive)
        if shape.length_index < 0 or header_map.get("content-length") != str(len(data) - end):
            return
        if len(self._shapes) >= MAX_CACHED_HEADS:
            self._shapes.clear()
            self.clear()
        self._shapes[VARYING.sub(rb"\1", head)] = shape


MAX_NON_BODY_BYTES = 64 * 1024  # bytes without body data: a head, chunk extensions, trailers

MAX_HEADERS = 128

MAX_INFORMATIONAL = 16  # 1xx responses before the final one

BODILESS = frozenset({204, 304})


class ResponseParser:
    """`ResponseParser` parses one response after another: `start`, then `feed` until `ended`.

    `names` and `known` may be shared between connections.
    """

    def __init__(self, names: HeaderNames, known: ResponseHeadCache) -> None:
        self._names = names
        self._head_cache = known
        self._parser = self._new_parser()
        self._answer: HttpResponse | None = None
        self.ended = False
        self.has_started = False  # the first byte of the response has arrived
        self.is_close_delimited = False  # the head has arrived, and the body ends when the connection closes
        self._header_map: dict[str, str] = {}
        self._fields: list[tuple[str, str]] | None = None  # of the current head; None: no head is being parsed
        self._non_body_bytes = self._informational_count = 0
        self._error: MalformedAnswer | None = None

    def start(self, answer: HttpResponse, *, is_head_request: bool) -> None:
        """Begin to parse a response. The response to a HEAD (`is_head_request`) has no body."""
        self._answer = answer
        self._is_head_request = is_head_request
        self.ended = self.has_started = self.is_close_delimited = False
        self._keep_alive = False  # whether the server keeps the connection open
        self._has_excess = False  # data arrived after the end of the response

    def feed(self, data: bytes) -> None:
        """Parse received bytes. Raise `MalformedAnswer`."""
        answer = self._answer
        assert answer is not None
        first = not self.has_started
        if first:
            self.has_started = True
            end = data.find(END) + len(END)
            head = data[:end]
            known = self._head_cache.get(head) or self._head_cache.find(head)
            if known is not None and len(data) == end + known.length and not self._is_head_request:
                shape = known.shape
                answer.status, answer.headers, answer.header_map = shape.status, known.headers, known.header_map
                answer.memo = known.memo
                if known.length:
                    answer.chunks.append(data[end:])
                    answer.unread = known.length
                self._header_map, self._keep_alive, self.ended = known.header_map, shape.keep_alive, True
                return
            self._reset()
        before = answer.unread
        self._non_body_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._has_excess = True
            if not self.ended:  # errors after the end are not about this response
                raise self._error or MalformedAnswer(f"the response is malformed: {error}") from None
        if self._error is not None:
            raise self._error
        if answer.unread > before:
            self._non_body_bytes = 0
        elif self._non_body_bytes > MAX_NON_BODY_BYTES and not self.ended:
            raise MalformedAnswer(
                f"the response has more than {MAX_NON_BODY_BYTES} bytes in a row that are not body data"
            )
        if first and self.ended:
            self._learn(answer, data)

    def _reset(self) -> None:
        self._fields = None
        self._non_body_bytes = self._informational_count = 0
        self._error = None

    def _learn(self, answer: HttpResponse, data: bytes) -> None:
        """Let the cache learn from a complete response that came in one piece."""
        if self._has_excess or self._is_head_request or self._informational_count or answer.status in BODILESS:
            return
        if "transfer-encoding" not in self._header_map:
            self._head_cache.learn(data, answer.status, answer.headers, answer.header_map, keep_alive=self._keep_alive)

    def idle_s(self, max_idle_s: float) -> float:
        """Return the seconds that the connection may be idle after this response: 0 if it may not be reused."""
        if self._has_excess or not self._keep_alive:
            return 0.0
        if self._is_head_request:
            # llhttp expects the body that a response to HEAD announces but does not send
            self._parser = self._new_parser()
        value = self._header_map.get("keep-alive")
        return max_idle_s if value is None else keep_alive_s(value, max_idle_s)

    def close(self) -> None:
        """Release the parser, which holds a reference cycle with this object."""
        self._parser = self._answer = None

    def _new_parser(self) -> Any:
        """Return a strict parser, except for bare LFs and spaces after a chunk size: they occur and are unambiguous."""
        parser = httptools.HttpResponseParser(self)
        parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True)
        return parser

    # Callbacks of llhttp. They store errors instead of raising them, because httptools would replace the message.

    def on_message_begin(self) -> None:
        self._has_excess = self._has_excess or self.ended
        self._fields, self._header_map = [], {} if not self.ended else self._header_map

    def on_header(self, name: bytes, value: bytes) -> None:
        fields = self._fields
        if fields is None:
            return  # trailers are dropped
        field, listed = self._names[name]
        text = value.decode("utf-8", "surrogateescape").rstrip(" \t")
        fields.append((field, text))
        if listed is not None:
            self._header_map[listed] = f"{self._header_map[listed]}, {text}" if listed in self._header_map else text

    def on_headers_complete(self) -> None:
        answer, fields, self._fields = self._answer, self._fields, None
        if self.ended or answer is None or fields is None:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self._informational_count += 1
            if status == 101 or self._informational_count > MAX_INFORMATIONAL:
                self._error = MalformedAnswer(f"a response with an unexpected status {status}")
            return
        header_map = self._header_map
        try:
            if "transfer-encoding" in header_map:
                check_coding(header_map["transfer-encoding"])
            if len(fields) > MAX_HEADERS or (
                self._non_body_bytes > MAX_NON_BODY_BYTES and _size(fields) > MAX_NON_BODY_BYTES
            ):
                raise MalformedAnswer(
                    f"the response's head has more than {MAX_HEADERS} headers or {MAX_NON_BODY_BYTES} bytes"
                )
        except MalformedAnswer as error:
            self._error = error
            return
        answer.status, answer.headers, answer.header_map = status, fields, header_map
        self._keep_alive = self._parser.should_keep_alive()
        if self._is_head_request:
            self.ended = True
        elif status not in BODILESS and not header_map.keys() & {"content-length", "transfer-encoding"}:
            self.is_close_delimited = True

    def on_body(self, data: bytes) -> None:
        answer = self._answer
        if self.ended or answer is None:
            self._has_excess = True
            return
        answer.chunks.append(data)
        answer.unread += len(data)

    def on_message_complete(self) -> None:
        if self._answer is not None and self._answer.status:  # otherwise this was a 1xx
            self.ended = True


def _size(fields: list[tuple[str, str]]) -> int:
    return sum(len(name) + len(value) + 4 for name, value in fields)
