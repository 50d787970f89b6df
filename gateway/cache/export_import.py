"""Takes stored answers out of the cache, and back in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from gateway.cache.bans import Conditions
from gateway.cache.embedding_spaces import Space, Spaces
from gateway.cache.export_format import Carried, LineInvalid, admitted, chat_line_of, line_of, read_line
from gateway.cache.memory_cache import FrontStore
from gateway.cache.purge import Removal
from gateway.errors import EmbedderUnavailable, Refused, StoreUnavailable
from gateway.messages import Dialect, Entry, Placed, Vector
from gateway.ports import Clock

BATCH = 32  # lines at once: what the embedder takes in one forward pass
MAX_FAULTS = 100  # lines that are named; all are counted


class _Came(Enum):
    NEW = "new"
    KNOWN = "known"  # a younger answer, or this one, is there


@dataclass(slots=True)
class Imported:
    """Counts what has been done so far."""

    imported: int = 0
    unchanged: int = 0  # the store had the same answer, or a younger one
    embedded: int = 0  # questions that were embedded anew
    refused: int = 0
    faults: list[tuple[int, str]] = field(default_factory=list)  # line, what is wrong with it

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


class ImportIncomplete(Refused):
    status = 503
    kind = "store_unavailable"

    def __init__(self, done: Imported, error: str) -> None:
        super().__init__(f"{error}; what was imported stays, the rest was not: ask again", retry_after_s=1)
        self.done = done


class Portability:
    """What is brought in goes to the store behind `front`: it is not hot, and pushes nothing out there. `stored` is
    told of it."""

    def __init__(
        self,
        *,
        front: FrontStore,
        removal: Removal,
        spaces: Spaces,
        dialects: Sequence[Dialect],
        stored: Callable[[Entry, Vector | None], None],
        clock: Clock,
        max_entry: int,
    ) -> None:
        self._front = front
        self._removal = removal
        self._spaces = spaces
        self._dialects: Mapping[str, Dialect] = {dialect.name: dialect for dialect in dialects}
        self._stored = stored
        self._clock = clock
        self._max_entry = max_entry

    @property
    def max_line(self) -> int:
        """Bytes: an answer as JSON text may take six times its size, and a vector some kB."""
        return 6 * self._max_entry + 2**20

    async def export(self, route: str | None, tag: str | None, *, chat: bool) -> AsyncGenerator[bytes, None]:
        """Line by line, at most a page of entries in memory. Raises `StoreUnavailable`."""
        conditions = Conditions(tags=frozenset([tag] if tag else ()), route=route)
        async with aclosing(self._removal.stored(conditions)) as entries:
            async for entry, placed in entries:
                line = self._line(entry, placed, chat=chat)
                if line is not None:
                    yield line

    def _line(self, entry: Entry, placed: Placed | None, *, chat: bool) -> bytes | None:
        dialect = self._dialects.get(entry.dialect)
        if chat:
            return chat_line_of(entry, dialect)
        carried = Carried(entry, None, "") if placed is None else Carried(entry, placed.vector, placed.embedder)
        return line_of(carried, dialect, self._clock.wall())

    async def take_in(self, lines: AsyncIterator[tuple[int, bytes | None]]) -> Imported:
        """`lines` with their numbers; None for one that is too long. Raises `ImportIncomplete`."""
        done = Imported()
        batch: list[tuple[int, Carried]] = []
        async for number, data in lines:
            try:
                batch.append((number, self._checked(data)))
            except LineInvalid as error:
                done.refuse(number, str(error))
            if len(batch) == BATCH:
                await self._take(batch, done)
                batch = []
        await self._take(batch, done)
        return done

    def _checked(self, data: bytes | None) -> Carried:
        if data is None:
            raise LineInvalid(f"expected a line of at most {self.max_line} bytes")
        carried = read_line(data, self._clock.wall(), self._max_entry)
        dialect = self._dialects.get(carried.entry.dialect)
        if dialect is None:
            raise LineInvalid(f"dialect: expected one of {', '.join(sorted(self._dialects))}")
        if not admitted(carried.entry, dialect):
            raise LineInvalid("payload: expected a complete, successful answer")
        return carried

    async def _take(self, batch: Sequence[tuple[int, Carried]], done: Imported) -> None:
        outcomes = await asyncio.gather(
            *(self._take_one(carried, done) for _, carried in batch), return_exceptions=True
        )
        failed: StoreUnavailable | None = None
        for (number, _), outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, StoreUnavailable):
                failed = outcome
            elif isinstance(outcome, EmbedderUnavailable):
                done.refuse(number, f"question: {outcome}")
            elif isinstance(outcome, BaseException):
                raise outcome
            elif outcome is _Came.NEW:
                done.imported += 1
            else:
                done.unchanged += 1
        if failed is not None:
            raise ImportIncomplete(done, str(failed))

    async def _take_one(self, carried: Carried, done: Imported) -> _Came:
        entry, space = carried.entry, self._spaces.serving
        known = await space.behind.get(entry.fingerprint)
        if known is not None and known.created >= entry.created and not self._front.banned(known):
            return _Came.KNOWN
        vector = await self._vector(carried, space, done)
        await space.behind.put(entry, vector)
        self._front.forget(entry.fingerprint)
        if vector is not None:
            await space.index.add(entry.fingerprint, entry.scope, vector)
        self._stored(entry, vector)
        return _Came.NEW

    async def _vector(self, carried: Carried, space: Space, done: Imported) -> Vector | None:
        """What had none, as its route compares no questions, gets none."""
        if carried.vector is None or carried.entry.question is None:
            return None
        embedder = space.embedder
        if carried.embedder == embedder.fingerprint and len(carried.vector) == embedder.dimension:
            return carried.vector
        embedding = await embedder.embed(carried.entry.question)
        done.embedded += 1
        return None if embedding.partial else embedding.vector
