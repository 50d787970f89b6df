"""Entries as JSON lines: of an export, and of a training conversation. Pure."""

from __future__ import annotations

import base64
import binascii
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, get_origin, get_type_hints

import numpy as np
import orjson
from pydantic import Field, ValidationError, create_model

from gateway.cache.hits import call_of
from gateway.calls import Dialect
from gateway.config.units import parse_duration
from gateway.config.validation import Section, error_messages
from gateway.entries import Entry, Vector
from gateway.outcomes import Admission

# JSON lines are for backups, for moves to another store and for training a light model.
VERSION, OLDEST = 2, 1  # lines of version 1 do not name the subjects of an entry

MAX_LIFETIME_S = parse_duration("3650d")

CONVERSATIONS = ("chat.completions", "responses", "messages")  # operations whose question and answer are turns

SKEW_S = 60.0  # seconds; another machine's clock may be ahead


class LineInvalid(ValueError):
    """A line cannot be imported. The message says what is wrong and what is expected."""


class _LineHead(Section):
    """The fields of a line besides those of its entry. `answer` and `age_s` are for readers of the file; clients get
    the payload."""

    version: Annotated[int, Field(ge=OLDEST, le=VERSION, examples=[str(VERSION)])]
    answer: str | None = None
    age_s: float | None = None
    embedder: str | None = None
    vector: str | None = None


# Lines that another program writes may leave these out, as they may leave out what `Entry` has a default for.
_ASSUMED = {"backend": "", "input_tokens": 0, "output_tokens": 0, "cost_dollars": 0.0, "upstream_s": 0.0}

_ENTRY_FIELDS = tuple(field.name for field in fields(Entry))


def _line_fields() -> dict[str, Any]:
    """Return the fields of `Entry` as fields of a line. JSON has no tuples and no bytes."""
    bare, bounded = get_type_hints(Entry), get_type_hints(Entry, include_extras=True)
    on_line = dict[str, Any]()
    for each in fields(Entry):
        kind = bounded[each.name]
        if bare[each.name] == tuple[bytes, ...]:
            kind = tuple[str | dict[str, str], ...]
        if get_origin(bare[each.name]) is tuple:
            kind = Annotated[kind, Field(strict=False)]
        default = ... if each.default is MISSING else each.default
        on_line[each.name] = (kind, _ASSUMED.get(each.name, default))
    return on_line


ExportLine: type[_LineHead] = create_model("ExportLine", __base__=_LineHead, **_line_fields())
"""One entry: the fields of `_LineHead`, and all fields of `Entry`."""


@dataclass(frozen=True, slots=True)
class ImportedEntry:
    """An entry with its vector and the fingerprint of the vector's embedder."""

    entry: Entry
    vector: Vector | None
    embedder: str | None


def line_of(item: ImportedEntry, dialect: Dialect | None, now: float) -> bytes:
    """Return an entry as a line with its line break. `dialect` is None if it is not known here. `answer` is null
    then."""
    entry, vector = item.entry, item.vector
    answer = None if dialect is None else dialect.answer_text(call_of(entry, dialect), entry.payload, entry.streamed)
    line = {
        "version": VERSION,
        **{name: getattr(entry, name) for name in _ENTRY_FIELDS},
        "answer": answer,
        "age_s": round(max(0.0, now - entry.created), 3),
        "embedder": None if vector is None else item.embedder,
        "vector": None if vector is None else base64.b64encode(vector.astype("<f4").tobytes()).decode(),
    }
    return orjson.dumps(line, default=_encode_bytes, option=orjson.OPT_APPEND_NEWLINE)


def chat_line_of(entry: Entry, dialect: Dialect | None) -> bytes | None:
    """Return question and answer as a training conversation; None where they are not both text."""
    if dialect is None or entry.question is None or entry.operation not in CONVERSATIONS:
        return None
    answer = dialect.answer_text(call_of(entry, dialect), entry.payload, entry.streamed)
    if answer is None:
        return None
    messages = [{"role": "user", "content": entry.question}, {"role": "assistant", "content": answer}]
    return orjson.dumps({"messages": messages}, option=orjson.OPT_APPEND_NEWLINE)


def read_line(data: bytes, now: float, max_entry: int) -> ImportedEntry:
    """Parse a line. An answer has at most `max_entry` bytes. Raise `LineInvalid`."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise LineInvalid(f"not JSON ({error.msg}), expected one object per line") from None
    if not isinstance(value, dict):
        raise LineInvalid("expected a JSON object")
    try:
        line = ExportLine.model_validate(value)
    except ValidationError as error:
        path, sentence = error_messages(error)[0]
        raise LineInvalid(f"{'.'.join(map(str, path))}: {sentence}" if path else sentence) from None
    entry = _entry(line, now)
    _check(entry, now, max_entry)
    return ImportedEntry(entry, _vector(line.vector), line.embedder)


def is_admitted(entry: Entry, dialect: Dialect) -> bool:
    """Return whether this gateway would have stored the answer: it is complete and successful."""
    return dialect.inspect(call_of(entry, dialect), entry.payload, entry.streamed).admission is Admission.STORED


def _entry(line: _LineHead, now: float) -> Entry:
    values: dict[str, Any] = {name: getattr(line, name) for name in _ENTRY_FIELDS}
    return Entry(**{**values, "payload": tuple(map(_decode_payload, values["payload"])), "imported": now})


def _check(entry: Entry, now: float, max_entry: int) -> None:
    if entry.expires <= now:
        raise LineInvalid("expires: the entry has expired")
    if entry.created > now + SKEW_S:
        raise LineInvalid("created: expected a time in the past, got one in the future")
    if entry.expires - entry.created > MAX_LIFETIME_S:
        raise LineInvalid("expires: expected at most 3650 days after created")
    if not entry.payload or (not entry.streamed and len(entry.payload) != 1):
        raise LineInvalid("payload: expected one body, or a stream's events")
    if sum(map(len, entry.payload)) > max_entry:
        raise LineInvalid(f"payload: expected at most {max_entry} bytes (store.max_entry)")


def _encode_bytes(data: object) -> str | dict[str, str]:
    """Return bytes as text, or as base64 where they are no text."""
    if not isinstance(data, bytes):
        raise TypeError(type(data).__name__)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _decode_payload(encoded: str | dict[str, str]) -> bytes:
    if isinstance(encoded, str):
        return encoded.encode("utf-8", "surrogatepass")
    return _decode_base64("payload", encoded.get("base64", "!"))


def _vector(encoded: str | None) -> Vector | None:
    if encoded is None:
        return None
    data = _decode_base64("vector", encoded)
    if not data or len(data) % 4:
        raise LineInvalid("vector: expected 32-bit floats in base64")
    vector = np.frombuffer(data, "<f4").astype(np.float32)
    if not np.isfinite(vector).all() or abs(float(np.linalg.norm(vector)) - 1.0) > 0.01:
        raise LineInvalid("vector: expected a vector of unit length")
    return vector


def _decode_base64(name: str, encoded: str) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise LineInvalid(f"{name}: expected base64") from None
