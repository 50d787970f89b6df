"""Turn batches into jobs, and their responses into files.

The gateway with a batch's lease drives the batch. If that gateway dies, another one continues, so every step may be
repeated.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING

from gateway.errors import StoreUnavailable
from gateway.features.jobs.batches import BatchReader, file_id, key_of, output_of
from gateway.features.jobs.store import (
    Admittance,
    BatchError,
    BatchFile,
    BatchLine,
    BatchStore,
    Bounds,
    Job,
    JobBatch,
    JobState,
    JobStore,
    Unsealable,
)
from gateway.ports import Clock
from gateway.priority import Priority
from gateway.subjects import SubjectsOf, body_user

if TYPE_CHECKING:
    from gateway.features.jobs.credential_encryption import Sealer

LOG = logging.getLogger("nearhit.jobs")
POLL_EVERY_S = 1.0
LEASE_S = 15.0
RENEW_S = 4.0  # seconds; with the ten that a step of the store takes at most, the lease still holds
# Accepted, unfinished jobs of one batch: enough to keep workers busy, few of what a tenant may queue.
WINDOW = 200
MAX_OUTPUT = 64 * 2**20  # bytes of a batch's responses; further requests fail
CANCELLED, EXPIRED = "batch_cancelled", "batch_expired"


class _LeaseLost(Exception):
    """The lease may belong to another gateway by now, so nothing more may be written."""


@dataclass(slots=True)
class _DrivenBatch:
    """A batch that this gateway drives. `leased` is the monotonic time of the lease's last renewal."""

    batch: JobBatch
    leased: float
    lines: list[BatchLine]
    jobs: dict[int, str]  # accepted, and not known to have ended
    done: set[int]
    next: int = 0  # index of the first line that may not be accepted yet
    size: int = 0  # bytes of the responses that this gateway has written
    by_number: dict[int, BatchLine] = field(default_factory=dict)
    revision: int = 0  # of the input, when it was read


class BatchDriver:
    """`BatchDriver` drives the batches of this gateway. `on_accepted` wakes the workers after jobs were accepted."""

    def __init__(
        self,
        name: str,
        store: BatchStore,
        jobs: JobStore,
        bounds: Bounds,
        sealer: Sealer | None,
        clock: Clock,
        on_accepted: Callable[[], None],
        *,
        max_lines: int,
        keep_s: float,
        result_s: float,
        subjects_of: SubjectsOf | None = None,
        is_erased: Callable[[Sequence[str], str, float], bool] = lambda *_: False,
    ) -> None:
        self._is_erased = is_erased
        self._subjects_of = subjects_of
        self._name = name
        self._store = store
        self._jobs = jobs
        self._bounds = bounds
        self._sealer = sealer
        self._clock = clock
        self._on_accepted = on_accepted
        self._max_lines = max_lines
        self._keep_s = keep_s
        self._result_s = result_s
        self._driven: dict[str, _DrivenBatch] = {}
        self._wake = asyncio.Event()
        self._ended: set[str] = set()  # since the last round
        self._last_full_check = -inf  # monotonic time of the last check of all jobs

    def wake(self) -> None:
        """Start a round now: a batch was created or cancelled."""
        self._wake.set()

    def on_job_end(self, job: str) -> None:
        """Record that a job ended in this gateway. Jobs of other gateways are found by polling."""
        self._ended.add(job)
        self._wake.set()

    async def run(self) -> None:
        """Drive batches until cancelled. Other gateways continue once the leases expire."""
        while True:
            now = self._clock.monotonic()
            full, (ended, self._ended) = now - self._last_full_check >= POLL_EVERY_S, (self._ended, set())
            self._last_full_check = now if full else self._last_full_check
            names: Sequence[str] = ()
            with suppress(StoreUnavailable):
                names = await self._store.open()
            for name in names:
                if not await self._drive(name, None if full else ended):
                    self._driven.pop(name, None)  # it is loaded again the next time
            for name in set(self._driven) - set(names):
                del self._driven[name]
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_EVERY_S):
                    await self._wake.wait()
            self._wake.clear()

    async def _drive(self, name: str, ended: set[str] | None) -> bool:
        """Run a step of a batch. Return whether it succeeded; a failing batch does not block the others."""
        now = self._clock.monotonic()
        try:
            if not await self._store.lease(name, self._name, LEASE_S):
                return False
            await self._step(name, now, ended)
        except (StoreUnavailable, _LeaseLost):
            return False
        except Exception:
            LOG.exception("a step of a batch failed", extra={"fields": {"batch": name}})
            return False
        return True

    async def _step(self, name: str, leased: float, ended: set[str] | None) -> None:
        """Run one step. `ended` are the jobs to check, or None for all of them."""
        driven = self._driven.get(name)
        if driven is None or await self._store.revision(name) != driven.revision:
            driven = await self._load(name, leased)
        if driven is None:
            return
        self._driven[name], driven.leased = driven, max(leased, driven.leased)
        await self._collect(driven, ended)
        stop = await self._stop_reason(driven.batch)
        if stop:
            await self._cancel_remaining(driven, stop)
        else:
            await self._submit(driven)
        if len(driven.done) == len(driven.lines):
            await self._finish(driven, {"": "completed", CANCELLED: "cancelled", EXPIRED: "expired"}[stop])

    async def _renew_lease(self, driven: _DrivenBatch) -> None:
        """Renew the lease during long steps: cancelling 10,000 lines takes as many writes. Raise `_LeaseLost`."""
        driven.leased = await self._renewed_at(driven.batch.id, driven.leased)

    async def _renewed_at(self, batch: str, leased: float) -> float:
        """Return the time of the last renewal. Raise `_LeaseLost`."""
        now = self._clock.monotonic()
        if now - leased < RENEW_S:
            return leased
        if now - leased >= LEASE_S or not await self._store.lease(batch, self._name, LEASE_S):
            raise _LeaseLost
        return now

    async def _load(self, name: str, leased: float) -> _DrivenBatch | None:
        """Read the batch, or return None if it has ended."""
        batch = await self._store.batch(name)
        if batch is None:
            return None
        revision = await self._store.revision(name)  # before the input: a change of that is seen later
        content = await self._store.content(batch.input_file)
        reader = BatchReader(content or b"", batch.endpoint, self._max_lines)
        while content is not None and not reader.at_end:
            reader.step()
            await asyncio.sleep(0)
            leased = await self._renewed_at(name, leased)
        missing = [BatchError(0, "the input file no longer exists", "file_not_found")]
        lines, faults = reader.lines, missing if content is None else reader.faults
        now = self._clock.wall()
        if faults:
            await self._store.close(batch.with_status("failed", now, faults=tuple(faults)), self._keep_s)
            return None
        if batch.status == "validating":
            batch = batch.with_status("in_progress", now, total=len(lines))
            await self._store.save(batch)
        elif batch.total != len(lines):  # some were erased
            batch = replace(batch, total=len(lines))
            await self._store.save(batch)
        by_number = {line.number: line for line in lines}
        progress = await self._store.progress(name)
        done = progress.done & by_number.keys()
        jobs = {line: job for line, job in progress.jobs.items() if line in by_number and line not in done}
        return _DrivenBatch(batch, leased, lines, jobs, set(done), by_number=by_number, revision=revision)

    async def _collect(self, driven: _DrivenBatch, ended: set[str] | None) -> None:
        for number, job in list(driven.jobs.items()):
            if ended is not None and job not in ended:
                continue
            await self._renew_lease(driven)
            job_state = await self._jobs.job_state(job)
            if job_state is None or job_state.status.is_final:
                await self._write(driven, driven.by_number[number], job_state, "" if job_state else "result_lost")

    async def _write(self, driven: _DrivenBatch, line: BatchLine, job_state: JobState | None, reason: str) -> None:
        await self._renew_lease(driven)
        if self._is_erased_line(driven.batch, line):  # its driver has not read the input again yet
            driven.jobs.pop(line.number, None)
            driven.done.add(line.number)
            return
        if driven.size > MAX_OUTPUT:
            job_state, reason = None, "output_too_large"
        output, completed = output_of(driven.batch.id, line, job_state, reason)
        driven.size += len(output)
        await self._store.record_output(driven.batch.id, line.number, output, completed=completed)
        driven.jobs.pop(line.number, None)
        driven.done.add(line.number)

    async def _stop_reason(self, batch: JobBatch) -> str:
        """Return why the rest of the batch is not run. It is empty if it is run."""
        if await self._store.is_cancelled(batch.id):
            return CANCELLED
        return EXPIRED if self._clock.wall() >= batch.expires else ""

    async def _cancel_remaining(self, driven: _DrivenBatch, reason: str) -> None:
        for number, job in list(driven.jobs.items()):
            job_state = await self._jobs.cancel(job, driven.batch.tenant, self._result_s)
            await self._write(driven, driven.by_number[number], job_state, reason)
        for line in driven.lines:
            if line.number not in driven.done:
                await self._write(driven, line, None, reason)

    async def _submit(self, driven: _DrivenBatch) -> None:
        began = False
        while driven.next < len(driven.lines) and len(driven.jobs) < WINDOW:
            line = driven.lines[driven.next]
            if line.number not in driven.done and line.number not in driven.jobs:
                job = await self._job(driven, line)
                if job is None:
                    break
                began = True
            driven.next += 1
        if began:
            self._on_accepted()

    async def _job(self, driven: _DrivenBatch, line: BatchLine) -> str | None:
        """Submit a line. Return the job's id. It is empty if the line cannot have a job, and None if there is no room
        now."""
        await self._renew_lease(driven)
        if self._is_erased_line(driven.batch, line):
            driven.done.add(line.number)
            return ""
        batch, identity = driven.batch, f"job_{secrets.token_hex(16)}"
        try:
            sealed = self._resealed(batch, identity)
        except Unsealable as error:
            LOG.warning("a batch cannot be submitted", extra={"fields": {"batch": batch.id, "error": str(error)}})
            await self._write(driven, line, None, "credentials_lost")
            return ""
        headers = (*batch.headers, ("Content-Type", "application/json"), ("Content-Length", str(len(line.body))))
        subjects = self._subjects(line)
        job = Job(
            identity, batch.tenant, "POST", batch.endpoint, "", headers, line.body, sealed, Priority.LOW, "", subjects
        )
        admittance, identity = await self._jobs.accept(job, self._bounds, key_of(batch.id, line.number), "")
        if admittance not in (Admittance.ACCEPTED, Admittance.KNOWN):
            return None
        await self._store.record_start(batch.id, line.number, identity)
        driven.jobs[line.number] = identity
        return identity

    def _subjects(self, line: BatchLine) -> tuple[str, ...]:
        return () if self._subjects_of is None else self._subjects_of(body_user(line.body), "")

    def _is_erased_line(self, batch: JobBatch, line: BatchLine) -> bool:
        return self._is_erased(self._subjects(line), batch.tenant, batch.created)

    def _resealed(self, batch: JobBatch, job: str) -> bytes:
        if not batch.sealed:
            return b""
        if self._sealer is None:
            raise Unsealable("the batch's credentials are encrypted, and this gateway has no key (jobs.key_env)")
        return self._sealer.seal(self._sealer.open(batch.sealed, batch.id), job)

    async def _finish(self, driven: _DrivenBatch, status: str) -> None:
        batch, now = driven.batch, self._clock.wall()
        names = {}
        for kind, completed in (("output", True), ("error", False)):
            await self._renew_lease(driven)
            all_outputs = await self._store.outputs(batch.id, completed=completed)
            outputs = {line: output for line, output in all_outputs.items() if line in driven.by_number}
            if outputs:
                content = await asyncio.to_thread(_joined, outputs)  # up to `MAX_OUTPUT` and a little more
                names[f"{kind}_file"] = name = file_id(batch.id, kind)
                filename = f"{batch.id}_{kind}.jsonl"
                file = BatchFile(name, batch.tenant, filename, "batch_output", now, now + self._keep_s, len(content))
                await self._store.put_file(file, content)
        await self._renew_lease(driven)
        done = batch.with_status("finalizing", now).with_status(status, now, **names)
        await self._store.close(done, self._keep_s)
        self._driven.pop(batch.id, None)


def _joined(outputs: Mapping[int, bytes]) -> bytes:
    return b"".join(outputs[line] + b"\n" for line in sorted(outputs))
