"""Export stored answers from the cache as JSON lines, and import them."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from typing import Annotated, Any, get_origin, get_type_hints

import numpy as np
import orjson
from pydantic import Field, ValidationError, create_model

from gateway.cache.bans import BanConditions
from gateway.cache.embedding_spaces import Space, Spaces
from gateway.cache.memory_cache import TieredStore
from gateway.cache.purge import Purge
from gateway.cache.redaction import Redaction
from gateway.config.units import parse_duration
from gateway.config.validation import Section, error_messages
from gateway.errors import EmbedderUnavailable, GatewayError, StoreUnavailable
from gateway.messages import Admission, Call, Decisive, Dialect, EmbeddedVector, Entry, Vector
from gateway.ports import Clock

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


def call_of(entry: Entry, dialect: Dialect) -> Call:
    """Return a call with the fields that are needed to read its answer."""
    return Call(
        dialect=dialect,
        operation=entry.operation,
        body={},
        model=entry.model,
        stream=entry.streamed,
        decisive_source=Decisive(b"", b"", entry.question),
        prompt_source="",
        max_tokens=None,
        user=None,
    )


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


BATCH = 32  # lines per batch, as many as the embedder takes in one forward pass

MAX_FAULTS = 100  # lines that are reported; all are counted


class _ImportCounts(Enum):
    NEW = "new"
    KNOWN = "known"  # the store has this answer or a newer one


@dataclass(slots=True)
class ImportResult:
    """The counts of an import so far."""

    imported: int = 0
    unchanged: int = 0  # the store had the same answer or a newer one
    embedded: int = 0  # questions that were embedded again
    refused: int = 0
    faults: list[tuple[int, str]] = field(default_factory=list)  # line number, fault

    def refuse(self, line: int, sentence: str) -> None:
        self.refused += 1
        if len(self.faults) < MAX_FAULTS:
            self.faults.append((line, sentence))

    def as_json(self) -> dict[str, Any]:
        faults = [{"line": line, "error": error} for line, error in sorted(self.faults)]
        return {
            "imported": self.imported,
            "unchanged": self.unchanged,
            "embedded": self.embedded,
            "refused": self.refused,
            "faults": faults,
        }


class ImportIncomplete(GatewayError):
    status = 503
    kind = "store_unavailable"

    def __init__(self, result: ImportResult, error: str) -> None:
        super().__init__(f"{error}; the lines imported so far stay; repeat the import", retry_after_s=1)
        self.result = result


class ExportImport:
    """`ExportImport` reads and writes entries behind the memory tier.

    Imported entries are not hot, so they must not push others out of `front`. `stored` is called for each of them.
    """

    def __init__(
        self,
        *,
        front: TieredStore,
        removal: Purge,
        spaces: Spaces,
        dialects: Mapping[str, Dialect],
        stored: Callable[[Entry, Vector | None], None],
        clock: Clock,
        max_entry: int,
        redaction_of: Callable[[str], Redaction | None],
    ) -> None:
        self._front = front
        self._removal = removal
        self._spaces = spaces
        self._dialects = dialects
        self._stored = stored
        self._clock = clock
        self._max_entry = max_entry
        self._redaction_of = redaction_of

    @property
    def max_line(self) -> int:
        """The maximum size of a line in bytes: an answer as JSON text may take six times its size, and a vector some
        kB.
        """
        return 6 * self._max_entry + 2**20

    async def export(self, route: str | None, tag: str | None, *, chat: bool) -> AsyncGenerator[bytes, None]:
        """Yield one line per entry, with at most one page of entries in memory. Raise `StoreUnavailable`."""
        conditions = BanConditions(tags=frozenset([tag] if tag else ()), route=route)
        async with aclosing(self._removal.stored(conditions)) as entries:
            async for entry, own_vector in entries:
                line = self._line(entry, own_vector, chat=chat)
                if line is not None:
                    yield line

    def _line(self, entry: Entry, own_vector: EmbeddedVector | None, *, chat: bool) -> bytes | None:
        dialect = self._dialects.get(entry.dialect)
        if chat:
            return chat_line_of(entry, dialect)
        item = (
            ImportedEntry(entry, None, "")
            if own_vector is None
            else ImportedEntry(entry, own_vector.vector, own_vector.embedder)
        )
        return line_of(item, dialect, self._clock.wall())

    async def import_lines(self, lines: AsyncIterator[tuple[int, bytes | None]]) -> ImportResult:
        """Import numbered lines; None stands for a line that is too long. Raise `ImportIncomplete`."""
        result = ImportResult()
        batch: list[tuple[int, ImportedEntry]] = []
        async for number, data in lines:
            try:
                batch.append((number, self._parse_line(data)))
            except LineInvalid as error:
                result.refuse(number, str(error))
            if len(batch) == BATCH:
                await self._import_batch(batch, result)
                batch = []
        await self._import_batch(batch, result)
        return result

    def _parse_line(self, data: bytes | None) -> ImportedEntry:
        if data is None:
            raise LineInvalid(f"expected a line of at most {self.max_line} bytes")
        item = read_line(data, self._clock.wall(), self._max_entry)
        dialect = self._dialects.get(item.entry.dialect)
        if dialect is None:
            raise LineInvalid(f"dialect: expected one of {', '.join(sorted(self._dialects))}")
        if not is_admitted(item.entry, dialect):
            raise LineInvalid("payload: expected a complete, successful answer")
        if self._front.bans.is_erased(item.entry):
            raise LineInvalid("subjects: the answer was made before one of its subjects was erased")
        redaction = self._redaction_of(item.entry.route)
        if redaction is not None and redaction.keeps_out(item.entry.question):
            raise LineInvalid("question: has personal data, which the privacy rule of its route keeps out")
        return item

    async def _import_batch(self, batch: Sequence[tuple[int, ImportedEntry]], result: ImportResult) -> None:
        outcomes = await asyncio.gather(
            *(self._import_entry(item, result) for _, item in batch), return_exceptions=True
        )
        failed: StoreUnavailable | None = None
        for (number, _), outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, StoreUnavailable):
                failed = outcome
            elif isinstance(outcome, EmbedderUnavailable):
                result.refuse(number, f"question: {outcome}")
            elif isinstance(outcome, BaseException):
                raise outcome
            elif outcome is _ImportCounts.NEW:
                result.imported += 1
            else:
                result.unchanged += 1
        if failed is not None:
            raise ImportIncomplete(result, str(failed))

    async def _import_entry(self, item: ImportedEntry, result: ImportResult) -> _ImportCounts:
        entry, space = item.entry, self._spaces.serving
        known = await space.backing_store.get(entry.fingerprint)
        if known is not None and known.created >= entry.created and not self._front.banned(known):
            return _ImportCounts.KNOWN
        vector = await self._vector(item, space, result)
        await space.backing_store.put(entry, vector)
        self._front.forget(entry.fingerprint)
        if vector is not None:
            await space.index.add(entry.fingerprint, entry.scope, vector)
        self._stored(entry, vector)
        return _ImportCounts.NEW

    async def _vector(self, item: ImportedEntry, space: Space, result: ImportResult) -> Vector | None:
        """Return a vector of the serving embedder; None if the line has none, as its route compares no questions."""
        if item.vector is None or item.entry.question is None:
            return None
        embedder = space.embedder
        if item.embedder == embedder.fingerprint and len(item.vector) == embedder.dimension:
            return item.vector
        embedding = await embedder.embed(item.entry.question)
        result.embedded += 1
        return None if embedding.partial else embedding.vector
