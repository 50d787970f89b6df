"""Forms (`multipart/form-data`, RFC 7578): read strictly, compared part by part, and written again. Pure.

The boundary differs in every request, so forms are compared by their parts. A backend gets the parts that were read, in
a form that is written again: no other parser can find other parts in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from multipart import (
    MultipartError,
    MultipartSegment,
    PushMultipartParser,
    content_disposition_quote,
    parse_options_header,
)

from gateway.calls import Content
from gateway.errors import BadRequest

FORM = "multipart/form-data"
MAX_PARTS = 256
_HEADERS = frozenset({"Content-Disposition", "Content-Type", "Content-Length"})


@dataclass(frozen=True, slots=True)
class FormPart(Content):
    """A part of a form, as it came. `content_type` has its parameters, such as a sample rate. Unless it `is_plain`, it
    has more headers or parameters, which are not kept."""

    name: str
    filename: str | None
    content_type: str | None
    data: bytes
    is_plain: bool = True

    def texts(self) -> Iterator[object]:
        yield from (self.name, self.filename, self.data)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def is_form(content_type: str) -> bool:
    kind: str = parse_options_header(content_type)[0]
    return kind == FORM


def parse_form(body: bytes, content_type: str) -> tuple[FormPart, ...]:
    """Parse a form strictly: bodies that two parsers could read differently are refused. Raise `BadRequest`."""
    boundary = parse_options_header(content_type)[1].get("boundary", "")
    try:
        with PushMultipartParser(
            boundary, content_length=len(body), max_segment_count=MAX_PARTS, strict=True
        ) as parser:
            return tuple(_parts(parser, body))
    except MultipartError as error:
        raise BadRequest(f"the multipart form is malformed: {error}") from None


def _parts(parser: PushMultipartParser, body: bytes) -> Iterator[FormPart]:
    head: MultipartSegment | None = None
    data = bytearray()
    for event in (*parser.parse(body), *parser.parse(b"")):
        if isinstance(event, MultipartSegment):
            head, data = event, bytearray()
        elif event:
            data += event
        elif head is not None:
            kind = head.header("Content-Type")
            yield FormPart(head.name or "", head.filename, kind, bytes(data), is_plain=_is_plain(head))


def _is_plain(head: MultipartSegment) -> bool:
    disposition = head.header("Content-Disposition", "")
    parameters = parse_options_header(disposition)[1]
    is_known = parameters.keys() <= {"name", "filename"} and "filename*" not in disposition.lower()
    return is_known and all(name in _HEADERS for name, _ in head.headerlist)


def write_form(parts: Sequence[FormPart]) -> tuple[bytes, str]:
    """Return a form and its Content-Type. Equal parts give equal bytes."""
    boundary, pieces = _boundary(parts), []
    for part in parts:
        disposition = f"form-data; name={content_disposition_quote(part.name)}"
        if part.filename is not None:
            disposition += f"; filename={content_disposition_quote(part.filename)}"
        head = f"--{boundary}\r\nContent-Disposition: {disposition}\r\n"
        if part.content_type is not None:
            head += f"Content-Type: {part.content_type}\r\n"
        pieces.append(head.encode() + b"\r\n" + part.data + b"\r\n")
    return b"".join(pieces) + f"--{boundary}--\r\n".encode(), f"{FORM}; boundary={boundary}"


def _boundary(parts: Sequence[FormPart]) -> str:
    """Derive a boundary from the parts, so that no part contains it and equal forms get the same one."""
    digest = hashlib.sha256(b"".join(part.data for part in parts)).hexdigest()
    while any(digest.encode() in part.data for part in parts):  # a collision that cannot be constructed
        digest = hashlib.sha256(digest.encode()).hexdigest()
    return digest
