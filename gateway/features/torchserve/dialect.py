"""TorchServe's inference API: predictions and explanations for arbitrary bytes or a form.

See https://pytorch.org/serve/inference_api.html.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import orjson
from multipart import (
    MultipartError,
    MultipartSegment,
    PushMultipartParser,
    content_disposition_quote,
    parse_options_header,
)

from gateway.calls import Call, Content, Decisive, Outgoing
from gateway.dialects.known import path_of
from gateway.dialects.unstreamed import Unstreamed
from gateway.errors import BadRequest
from gateway.outcomes import Bypass

MAX_PARTS = 256
STATUS = {"invalid_request_error": 400, "authentication_error": 401, "not_found_error": 404}


@dataclass(frozen=True, slots=True)
class FormPart(Content):
    """A part of a form, as it came."""

    name: str
    filename: str | None
    content_type: str | None
    data: bytes

    def texts(self) -> Iterator[object]:
        yield from (self.name, self.filename, self.data)


class TorchServe(Unstreamed):
    """`TorchServe` compares bodies byte for byte, because only the handler can interpret them.

    Forms are compared part by part, because the boundary differs in every request.
    """

    name = "torchserve"
    path = path_of("torchserve")

    def parse(self, path: str, body: bytes, headers: Mapping[str, str]) -> Call:
        operation, model, version = self.claimed(path).groups()
        kind, options = parse_options_header(headers.get("content-type", ""))
        if kind == "multipart/form-data":
            parts = tuple(_parts(body, options.get("boundary", "")))
            content: object = parts
            decisive = [[p.name, p.filename, p.content_type, _digest(p.data)] for p in parts]
        else:
            content, decisive = body, [[kind, _digest(body)]]
        canonical = orjson.dumps([model, version, decisive])
        return Call(
            dialect=self,
            operation=operation,
            body={"content": content},
            model=model,
            stream=False,
            decisive_source=Decisive(canonical, canonical, None, Bypass.NO_TEXT),
            prompt_source=_text(body) if kind in ("text/plain", "application/json", "") else "",
            max_tokens=None,
            user=None,
        )

    def outgoing(self, path: str, call: Call, *, model: str | None, kept: bool) -> Outgoing:
        match = self.claimed(path)
        target = f"/{match[1]}/{model or match[2]}{match[3] or ''}"
        content = call.body["content"]
        if isinstance(content, bytes):
            return Outgoing(target, content)
        boundary = _boundary(content)
        form = f"multipart/form-data; boundary={boundary}"
        return Outgoing(target, _form(content, boundary), (("Content-Type", form),))

    def error(self, kind: str, message: str, param: str | None = None) -> bytes:
        return orjson.dumps({"code": STATUS.get(kind, 503), "type": kind, "message": message})


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _text(body: bytes) -> str:
    """Return the text to judge complexity; empty if the bytes are not UTF-8."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return ""


def _parts(body: bytes, boundary: str) -> Iterator[FormPart]:
    """Parse a form strictly: bodies that two parsers could read differently are refused. Raise `BadRequest`."""
    try:
        with PushMultipartParser(
            boundary, content_length=len(body), max_segment_count=MAX_PARTS, strict=True
        ) as parser:
            head: MultipartSegment | None = None
            data = b""
            for event in (*parser.parse(body), *parser.parse(b"")):
                if isinstance(event, MultipartSegment):
                    head, data = event, b""
                elif event:
                    data += event
                elif head is not None:
                    yield FormPart(head.name, head.filename, head.content_type, data)
    except MultipartError as error:
        raise BadRequest(f"the multipart form is malformed: {error}") from None


def _form(parts: tuple[FormPart, ...], boundary: str) -> bytes:
    pieces = []
    for part in parts:
        disposition = f"form-data; name={content_disposition_quote(part.name)}"
        if part.filename is not None:
            disposition += f"; filename={content_disposition_quote(part.filename)}"
        head = f"--{boundary}\r\nContent-Disposition: {disposition}\r\n"
        if part.content_type is not None:
            head += f"Content-Type: {part.content_type}\r\n"
        pieces.append(head.encode() + b"\r\n" + part.data + b"\r\n")
    return b"".join(pieces) + f"--{boundary}--\r\n".encode()


def _boundary(parts: tuple[FormPart, ...]) -> str:
    """Derive a boundary from the parts, so that no part contains it and equal forms get the same one."""
    digest = hashlib.sha256(b"".join(part.data for part in parts)).hexdigest()
    while any(digest.encode() in part.data for part in parts):  # a collision that cannot be constructed
        digest = hashlib.sha256(digest.encode()).hexdigest()
    return digest
