"""Erase the jobs of a subject or a tenant, the lines of a subject in files and batches, or all of a tenant.

A line of an input file belongs to the users that its body names. The lines of output and error files have the same
`custom_id`. A batch that runs reads its input again, without these lines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from gateway.cache.erasure import ErasureTarget, ErasureTraces
from gateway.cache.stored_parts import FILES, JOBS, StoredPart
from gateway.cache.stores import Stores
from gateway.features.jobs.redis_batches import RedisBatches
from gateway.features.jobs.redis_jobs import RedisJobs
from gateway.features.jobs.store import BatchFile, JobBatch
from gateway.subjects import SubjectsOf, body_user

INPUT = "batch"  # the purpose of a file


class JobsOfSubjects(Protocol):
    async def find(self, matches: Callable[[Sequence[str], str], bool]) -> list[str]: ...

    async def erase(self, jobs: Sequence[str]) -> int: ...


class ErasedJobs:
    """The jobs with their requests and results. A worker that runs one loses its claim with the next heartbeat."""

    part = JOBS

    def __init__(self, store: JobsOfSubjects) -> None:
        self._store = store

    async def erase(self, target: ErasureTarget, traces: ErasureTraces, *, dry_run: bool) -> int:
        jobs = await self._store.find(target.matches)
        return len(jobs) if dry_run else await self._store.erase(jobs)


class ErasableBatches(Protocol):
    """The files and batches of all tenants. Raises `StoreUnavailable`."""

    async def erase(self, tenant: str, *, dry_run: bool) -> int: ...

    async def all_files(self) -> Sequence[BatchFile]: ...

    async def content(self, identity: str) -> bytes | None: ...

    async def batches(self, tenant: str) -> Sequence[str]: ...

    async def batch(self, identity: str) -> JobBatch | None: ...

    async def replace_content(self, file: BatchFile, content: bytes) -> None: ...

    async def drop_lines(self, batch: str, lines: Sequence[int]) -> None: ...


@dataclass(slots=True)
class _InputLines:
    """The lines of a subject in an input file, and the content without them."""

    numbers: list[int] = field(default_factory=list)
    custom_ids: set[str] = field(default_factory=set)
    content: bytes = b""


class BatchLines:
    """`BatchLines` is the part of an erasure for files and batches."""

    part = FILES

    def __init__(self, store: ErasableBatches, subjects_of: SubjectsOf) -> None:
        self._store = store
        self._subjects_of = subjects_of

    async def erase(self, target: ErasureTarget, traces: ErasureTraces, *, dry_run: bool) -> int:
        """Return the number of lines, or of files and batches of a tenant."""
        if not target.subjects:
            return 0 if target.tenant is None else await self._store.erase(target.tenant, dry_run=dry_run)
        if any(subject.startswith("k") for subject in target.subjects):
            traces.notes.append("not reached: the lines of files and batches of an API key, as lines name users only")
        files = [file for file in await self._store.all_files() if target.matches(tuple(target.subjects), file.tenant)]
        inputs = {file.id: lines for file in files if (lines := await self._lines(file, target)) is not None}
        erased, unknown = 0, 0
        for tenant in {file.tenant for file in files}:
            for name in await self._store.batches(tenant):
                batch = await self._store.batch(name)
                if batch is None:
                    continue
                outputs = [file for file in files if file.id in (batch.output_file, batch.error_file)]
                lines = inputs.get(batch.input_file)
                if lines is not None:
                    erased += await self._erase_outputs(outputs, lines.custom_ids, dry_run=dry_run)
                elif outputs and all(file.id != batch.input_file for file in files):
                    unknown += len(outputs)
        # The input goes last: a run that was cut off finds the outputs by it again.
        for file in files:
            if (lines := inputs.get(file.id)) is not None:
                erased += len(lines.numbers)
                if not dry_run:
                    await self._erase_input(file, lines)
        if unknown:
            traces.notes.append(f"not reached: {unknown} output files of batches whose input file is gone")
        return erased

    async def _lines(self, file: BatchFile, target: ErasureTarget) -> _InputLines | None:
        """Return the lines of the target in a file, or None if it has none or is no input file."""
        content = await self._store.content(file.id) if file.purpose == INPUT else None
        if content is None:
            return None
        input_lines = await asyncio.to_thread(
            _lines_of, content, lambda user: target.names(self._subjects_of(user, ""))
        )
        return input_lines if input_lines.numbers else None

    async def _erase_outputs(self, files: Sequence[BatchFile], custom_ids: set[str], *, dry_run: bool) -> int:
        erased = 0
        for file in files:
            content = await self._store.content(file.id)
            if content is None:
                continue
            content_left, gone = await asyncio.to_thread(_without, content, custom_ids)
            erased += gone
            if gone and not dry_run:
                await self._store.replace_content(file, content_left)
        return erased

    async def _erase_input(self, file: BatchFile, lines: _InputLines) -> None:
        await self._store.replace_content(file, lines.content)
        for name in await self._store.batches(file.tenant):
            batch = await self._store.batch(name)
            if batch is not None and batch.open and batch.input_file == file.id:
                await self._store.drop_lines(name, lines.numbers)


def _lines_of(content: bytes, is_of: Callable[[str | None], bool]) -> _InputLines:
    """Return the lines for whose user `is_of` is true. An empty line takes the place of each: the others keep their
    numbers."""
    input_lines, lines_left = _InputLines(), list[bytes]()
    for number, raw in enumerate(content.split(b"\n"), 1):
        line = _parsed(raw)
        if is_of(body_user(orjson.dumps(line.get("body")))):
            input_lines.numbers.append(number)
            input_lines.custom_ids.add(str(line.get("custom_id")))
            lines_left.append(b"")
        else:
            lines_left.append(raw)
    input_lines.content = b"\n".join(lines_left)
    return input_lines


def _without(content: bytes, custom_ids: set[str]) -> tuple[bytes, int]:
    """Return the content without the lines of these ids, and their number."""
    lines = content.split(b"\n")
    lines_left = [raw for raw in lines if str(_parsed(raw).get("custom_id")) not in custom_ids]
    return b"\n".join(lines_left), len(lines) - len(lines_left)


def _parsed(raw: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _jobs(stores: Stores, _: SubjectsOf) -> StoredPart:
    return ErasedJobs(RedisJobs(stores.redis, stores.client))


def _files(stores: Stores, subjects_of: SubjectsOf) -> StoredPart:
    return BatchLines(RedisBatches(stores.redis, stores.client), subjects_of)


PARTS: Mapping[str, Callable[[Stores, SubjectsOf], StoredPart]] = {JOBS.name: _jobs, FILES.name: _files}
