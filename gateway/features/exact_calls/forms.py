"""The forms of calls that are cached by exact match. Pure.

Fields count by name and value, and files by their bytes, their type and the suffix of their name, by which servers tell
the format. The order of fields, the boundary and the rest of a file's name decide nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from multipart import parse_options_header

from gateway.calls import Content
from gateway.dialects.forms import FormPart, is_form, parse_form, write_form
from gateway.dialects.json_body import dump_json
from gateway.errors import BadRequest

FORM = "form"  # the key of a form in the body of its call
OFF = frozenset({"", "0", "false", "no", "off"})
CHARSETS = frozenset({"", "utf-8", "utf8", "us-ascii"})  # of a field


@dataclass(frozen=True, slots=True)
class Form(Content):
    """A form that was read. `content_type` is that of `written`, the form that goes to the backend."""

    fields: Mapping[str, tuple[str, ...]]
    files: tuple[tuple[str, str, str, str], ...]  # name, suffix, type and digest
    written: bytes
    content_type: str

    def texts(self) -> Iterator[object]:
        for name, values in self.fields.items():
            yield from (name, *values)

    def value(self, name: str) -> str | None:
        """Return the value of a field, or None. Raise `BadRequest` if it occurs twice, or as a file: servers then
        differ."""
        values = self.fields.get(name, ())
        if any(file[0] == name for file in self.files):
            raise BadRequest(f"the field '{name}' is a file: expected a text", param=name)
        if len(values) > 1:
            raise BadRequest(f"the field '{name}' occurs twice: expected it once", param=name)
        return values[0] if values else None

    def is_on(self, name: str) -> bool:
        return (self.value(name) or "").strip().lower() not in OFF

    def canonical(self, path: str, defaults: Mapping[str, str]) -> bytes:
        """Return what decides the answer. A field counts as absent if its only value is that of `defaults`."""
        fields: dict[str, Any] = {
            name: values
            for name, values in self.fields.items()
            if name not in ("stream", "user") and values != (defaults.get(name),)
        }
        return dump_json([path, fields, sorted(self.files, key=lambda file: file[0])], canonical=True)


def read_form(body: bytes, headers: Mapping[str, str]) -> Form:
    """Read a form. Raise `BadRequest` if it is none, or has a part that cannot be read for certain."""
    content_type = headers.get("content-type", "")
    if not is_form(content_type):
        raise BadRequest("the Content-Type is invalid: expected multipart/form-data")
    if _charset_of(content_type) not in CHARSETS:
        raise BadRequest("the form is no text in UTF-8")
    fields: dict[str, tuple[str, ...]] = {}
    files, parts = [], parse_form(body, content_type)
    for part in parts:
        if not part.is_plain:
            raise BadRequest("a part of the form has an unknown header")
        if part.filename is None:
            fields[part.name] = (*fields.get(part.name, ()), _text_of(part))
        else:
            suffix = PurePosixPath(part.filename).suffix.lower()
            files.append((part.name, suffix, (part.content_type or "").lower(), part.digest))
    written, kind = write_form(parts)
    return Form(fields, tuple(files), written, kind)


def _text_of(part: FormPart) -> str:
    content_type = part.content_type or "text/plain"
    if parse_options_header(content_type)[0] != "text/plain" or _charset_of(content_type) not in CHARSETS:
        raise BadRequest("a field of the form is no text in UTF-8", param=part.name)
    try:
        return part.data.decode()
    except UnicodeDecodeError:
        raise BadRequest("a field of the form is no text in UTF-8", param=part.name) from None


def _charset_of(content_type: str) -> str:
    charset: str = parse_options_header(content_type)[1].get("charset", "")
    return charset.lower()
