"""Stored answers as lines of JSON: to keep, to move to another store, to train a light model with. Pure."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import orjson
from pydantic import Field, ValidationError

from gateway.config.units import parse_duration
from gateway.config.validation import Section, complaints
from gateway.messages import Admission, Call, Decisive, Dialect, Entry, Vector

VERSION = 1
MAX_LIFETIME_S = parse_duration("3650d")
CONVERSATIONS = ("chat.completions", "responses", "messages")  # operations whose question and answer are turns
SKEW_S = 60.0  # a line that was written on a machine whose clock is ahead

Digest = Annotated[str, Field(min_length=64, max_length=64, pattern="^[0-9a-f]{64}$")]
Name = Annotated[str, Field(min_length=1, max_length=512)]
Tag = Annotated[str, Field(min_length=1, max_length=128)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Amount = Annotated[float, Field(ge=0)]


class LineInvalid(ValueError):
    """The message says what is wrong with a line, and what was expected."""


class Line(Section):
    """One entry. `answer` and `age_s` are for people and programs that read it; what is served is the payload."""

    version: Annotated[int, Field(ge=VERSION, le=VERSION, examples=["1"])]
    fingerprint: Digest
    scope: Digest
    tenant: Annotated[str, Field(max_length=512)]
    route: Name
    model: Annotated[str, Field(max_length=512)]
    operation: Name
    dialect: Name
    question: str | None
    answer: str | None = None
    streamed: bool
    payload: Annotated[tuple[str | dict[str, str], ...], Field(strict=False)]
    content_type: Name
    created: Amount
    expires: Amount
    age_s: float | None = None
    backend: Annotated[str, Field(max_length=512)] = ""
    input_tokens: Count = 0
    output_tokens: Count = 0
    cost_dollars: Amount = 0.0
    upstream_s: Amount = 0.0
    tags: Annotated[tuple[Tag, ...], Field(strict=False, max_length=32)] = ()
    embedder: str | None = None
    vector: str | None = None


@dataclass(frozen=True, slots=True)
class Carried:
    """An entry with the vector that it was found by, and the fingerprint of the embedder that made it."""

    entry: Entry
    vector: Vector | None
    embedder: str | None


def call_of(entry: Entry, dialect: Dialect) -> Call:
    """As much of the call as its answer is read by."""
    return Call(
        dialect=dialect,
        operation=entry.operation,
        body={},
        model=entry.model,
        stream=entry.streamed,
        found=Decisive(b"", b"", entry.question),
        said="",
        max_tokens=None,
        user=None,
    )


def line_of(carried: Carried, dialect: Dialect | None, now: float) -> bytes:
    """With its line break. `dialect` None: one that this gateway does not know, whose answer stays unread."""
    entry, vector = carried.entry, carried.vector
    answer = None if dialect is None else dialect.answer_text(call_of(entry, dialect), entry.payload, entry.streamed)
    fields = {
        "version": VERSION,
        "fingerprint": entry.fingerprint,
        "scope": entry.scope,
        "tenant": entry.tenant,
        "route": entry.route,
        "model": entry.model,
        "operation": entry.operation,
        "dialect": entry.dialect,
        "question": entry.question,
        "answer": answer,
        "streamed": entry.streamed,
        "payload": [_written(data) for data in entry.payload],
        "content_type": entry.content_type,
        "created": entry.created,
        "expires": entry.expires,
        "age_s": round(max(0.0, now - entry.created), 3),
        "backend": entry.backend,
        "input_tokens": entry.input_tokens,
        "output_tokens": entry.output_tokens,
        "cost_dollars": entry.cost_dollars,
        "upstream_s": entry.upstream_s,
        "tags": list(entry.tags),
        "embedder": None if vector is None else carried.embedder,
        "vector": None if vector is None else base64.b64encode(vector.astype("<f4").tobytes()).decode(),
    }
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)


def chat_line_of(entry: Entry, dialect: Dialect | None) -> bytes | None:
    """The question and its answer as a conversation to train with; None where they are not both text."""
    if dialect is None or entry.question is None or entry.operation not in CONVERSATIONS:
        return None
    answer = dialect.answer_text(call_of(entry, dialect), entry.payload, entry.streamed)
    if answer is None:
        return None
    messages = [{"role": "user", "content": entry.question}, {"role": "assistant", "content": answer}]
    return orjson.dumps({"messages": messages}, option=orjson.OPT_APPEND_NEWLINE)


def read_line(data: bytes, now: float, max_entry: int) -> Carried:
    """`max_entry`: bytes of an answer that may be stored. Raises `LineInvalid`."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise LineInvalid(f"not JSON ({error.msg}), expected an object a line") from None
    if not isinstance(value, dict):
        raise LineInvalid("expected a JSON object")
    try:
        line = Line.model_validate(value)
    except ValidationError as error:
        path, sentence = complaints(error)[0]
        raise LineInvalid(f"{'.'.join(map(str, path))}: {sentence}" if path else sentence) from None
    entry = _entry(line, now)
    _check(entry, now, max_entry)
    return Carried(entry, _vector(line.vector), line.embedder)


def admitted(entry: Entry, dialect: Dialect) -> bool:
    """Whether it would have been stored here: a complete, successful answer."""
    return dialect.inspect(call_of(entry, dialect), entry.payload, entry.streamed).admission is Admission.STORED


def _entry(line: Line, now: float) -> Entry:
    fields: dict[str, Any] = line.model_dump(exclude={"version", "answer", "age_s", "embedder", "vector", "payload"})
    return Entry(**{**fields, "payload": tuple(map(_read, line.payload)), "imported": now})


def _check(entry: Entry, now: float, max_entry: int) -> None:
    if entry.expires <= now:
        raise LineInvalid("expires: it has expired")
    if entry.created > now + SKEW_S:
        raise LineInvalid("created: expected a time that has been, got one to come")
    if entry.expires - entry.created > MAX_LIFETIME_S:
        raise LineInvalid("expires: expected at most 3650 days after created")
    if not entry.payload or (not entry.streamed and len(entry.payload) != 1):
        raise LineInvalid("payload: expected one body, or the events of a stream")
    if sum(map(len, entry.payload)) > max_entry:
        raise LineInvalid(f"payload: expected at most {max_entry} bytes (store.max_entry)")


def _written(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _read(given: str | dict[str, str]) -> bytes:
    if isinstance(given, str):
        return given.encode("utf-8", "surrogatepass")
    return _decoded("payload", given.get("base64", "!"))


def _vector(given: str | None) -> Vector | None:
    if given is None:
        return None
    data = _decoded("vector", given)
    if not data or len(data) % 4:
        raise LineInvalid("vector: expected 32-bit floats in base64")
    vector = np.frombuffer(data, "<f4").astype(np.float32)
    if not np.isfinite(vector).all() or abs(float(np.linalg.norm(vector)) - 1.0) > 0.01:
        raise LineInvalid("vector: expected one of unit length")
    return vector


def _decoded(name: str, given: str) -> bytes:
    try:
        return base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError):
        raise LineInvalid(f"{name}: expected base64") from None
