"""Export stored answers from the cache as JSON lines, and import them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from gateway.cache.bans import BanConditions
from gateway.cache.embedding_spaces import Space, Spaces
from gateway.cache.memory_cache import TieredStore
from gateway.cache.purge import Purge
from gateway.cache.redaction import Redaction
from gateway.calls import Dialect
from gateway.entries import EmbeddedVector, Entry, Vector
from gateway.errors import EmbedderUnavailable, GatewayError, StoreUnavailable
from gateway.features.export.lines import ImportedEntry, LineInvalid, chat_line_of, is_admitted, line_of, read_line
from gateway.ports import Clock, VectorStore

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """`Transfer` reads and writes entries behind the memory tier.

    Imported entries are not hot, so they must not push others out of `front`.
    """

    front: TieredStore
    removal: Purge
    spaces: Spaces
    store: VectorStore  # behind `front`, while no route compares questions
    dialects: Mapping[str, Dialect]
    stored: Callable[[Entry, Vector | None], None]  # called for each imported entry
    clock: Clock
    max_entry: int  # bytes
    redaction_of: Callable[[str], Redaction | None]  # returns that of a route by its name

    @property
    def max_line(self) -> int:
        """The maximum size of a line in bytes: an answer as JSON text may take six times its size, and a vector some
        kB.
        """
        return 6 * self.max_entry + 2**20

    async def export(self, route: str | None, tag: str | None, *, chat: bool) -> AsyncGenerator[bytes, None]:
        """Yield one line per entry, with at most one page of entries in memory. Raise `StoreUnavailable`."""
        conditions = BanConditions(tags=frozenset([tag] if tag else ()), route=route)
        async with aclosing(self.removal.stored(conditions)) as entries:
            async for entry, own_vector in entries:
                line = self._line(entry, own_vector, chat=chat)
                if line is not None:
                    yield line

    def _line(self, entry: Entry, own_vector: EmbeddedVector | None, *, chat: bool) -> bytes | None:
        dialect = self.dialects.get(entry.dialect)
        if chat:
            return chat_line_of(entry, dialect)
        item = (
            ImportedEntry(entry, None, "")
            if own_vector is None
            else ImportedEntry(entry, own_vector.vector, own_vector.embedder)
        )
        return line_of(item, dialect, self.clock.wall())

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
        item = read_line(data, self.clock.wall(), self.max_entry)
        dialect = self.dialects.get(item.entry.dialect)
        if dialect is None:
            raise LineInvalid(f"dialect: expected one of {', '.join(sorted(self.dialects))}")
        if not is_admitted(item.entry, dialect):
            raise LineInvalid("payload: expected a complete, successful answer")
        if self.front.bans.is_erased(item.entry):
            raise LineInvalid("subjects: the answer was made before one of its subjects was erased")
        redaction = self.redaction_of(item.entry.route)
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
        entry, space = item.entry, self.spaces.serving if self.spaces.is_open else None
        store = self.store if space is None else space.backing_store
        known = await store.get(entry.fingerprint)
        if known is not None and known.created >= entry.created and not self.front.banned(known):
            return _ImportCounts.KNOWN
        vector = None if space is None else await self._vector(item, space, result)
        await store.put(entry, vector)
        self.front.forget(entry.fingerprint)
        if space is not None and vector is not None:
            await space.index.add(entry.fingerprint, entry.scope, vector)
        self.stored(entry, vector)
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
