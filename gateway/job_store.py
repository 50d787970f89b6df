"""The port to where jobs lie, and to what their webhooks still have to be told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gateway.job_records import BatchFile, ClaimedJob, Job, JobBatch, JobResult, JobState, JobStatus


# The port to where jobs lie, and to what their webhooks still have to be told.
class Admittance(StrEnum):
    """What came of offering a job."""

    ACCEPTED = "accepted"
    KNOWN = "known"  # the same idempotency key came with the same request before
    CONFLICT = "conflict"  # ... with another request
    FULL = "full"  # all gateways together hold as much as they may
    TENANT_FULL = "tenant-full"


class JobHold(StrEnum):
    """What a heartbeat says of a claim."""

    HELD = "held"
    LOST = "lost"  # cancelled, or taken over


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of all gateways on a store."""

    max_queued: int
    max_queued_per_tenant: int
    max_bytes: int
    keep_key_s: float  # an idempotency key


@dataclass(frozen=True, slots=True)
class Conclusion:
    """A job is over."""

    status: JobStatus
    result: JobResult | None
    error: str
    keep_s: float
    dead: bool = False


@dataclass(frozen=True, slots=True)
class Counts:
    """Of all gateways on a store."""

    queued: int  # those that wait for their next attempt included
    running: int
    dead: int
    bytes: int  # of the requests of those that are not over
    webhooks: int  # still to be told
    oldest_s: float  # age of the oldest that is not over


@dataclass(frozen=True, slots=True)
class Delivery:
    """A webhook to be told. `attempt`: 1 is the first."""

    job: str
    url: str
    attempt: int
    job_state: JobState


class JobStore(Protocol):
    """Every method raises `StoreUnavailable`. Each is one step: it happens as a whole or not at all."""

    async def accept(self, job: Job, bounds: Bounds, key: str, digest: str) -> tuple[Admittance, str]:
        """Puts a job at the end of its tenant's line. -> (what came of it, the job's id: of `KNOWN` the first one's).

        `key`: what must not be accepted twice, empty for none; `digest` of the request it stands for."""

    async def claim(
        self, worker: str, most: int, *, visibility_s: float, attempts: int, dead_s: float, lost: bool = True
    ) -> list[ClaimedJob]:
        """At most `most` jobs, for `worker` to run: by priority, within one round the tenants by turns. Jobs of workers
        not heard of for `visibility_s` go first; one that has been begun `attempts` times is dead instead, and kept for
        `dead_s`."""

    async def beat(self, worker: str, held: Sequence[tuple[str, int]]) -> list[JobHold]:
        """Keeps claims (id, token) for as long again."""

    async def conclude(self, job: str, token: int, conclusion: Conclusion) -> bool:
        """False, and nothing is written, where the claim was lost."""

    async def requeue(self, job: str, token: int, delay_s: float, *, counted: bool, error: str) -> bool:
        """To be tried again after `delay_s`. `counted` False: that was no attempt. False where the claim was lost."""

    async def job_state(self, job: str) -> JobState | None: ...

    async def status(self, job: str, tenant: str) -> JobStatus | None:
        """Cheap; None where that tenant has no such job."""

    async def cancel(self, job: str, tenant: str, keep_s: float) -> JobState | None:
        """At once, whoever runs it: he learns by his next beat. What is over stays as it is. None: that tenant has no
        such job."""

    async def due_webhooks(self, most: int, hold_s: float) -> list[Delivery]:
        """Nobody else gets them for `hold_s`."""

    async def record_delivery(self, job: str, outcome: str, retry_s: float | None) -> None:
        """`retry_s`: tell it again after that; None: it is over."""

    async def counts(self) -> Counts: ...

    async def listed(self, state: str, limit: int) -> list[JobState]:
        """`state`: active, dead or finished. The youngest first, without results."""

    async def retry(self, job: str) -> bool:
        """A dead one gets into line again, as if it had never been tried. False: there is no such dead job."""

    async def drop(self, job: str) -> bool:
        """A dead one is forgotten."""

    async def sweep(self, worker: str) -> None:
        """Forgets what has expired, in steps of bounded size."""


@dataclass(frozen=True, slots=True)
class WebhookOutcome:
    """What came of telling. `status`: None where there was no answer; `word` for the store and the metrics."""

    status: int | None
    word: str

    @property
    def is_delivered(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


# The port to where files and batches lie.
@dataclass(frozen=True, slots=True)
class BatchProgress:
    """What is known of a batch's requests, by line number."""

    jobs: dict[int, str]  # accepted ones
    done: frozenset[int]  # those whose line of output there is


class BatchStore(Protocol):
    """Every method raises `StoreUnavailable`. What a driver writes may be written twice: it comes out the same."""

    async def put_file(self, file: BatchFile, content: bytes) -> None: ...

    async def file(self, identity: str) -> BatchFile | None: ...

    async def content(self, identity: str) -> bytes | None: ...

    async def files(self, tenant: str) -> Sequence[BatchFile]:
        """The youngest first."""

    async def held(self) -> tuple[int, int]:
        """-> (files, bytes) of all tenants."""

    async def delete_file(self, identity: str, tenant: str) -> None: ...

    async def create(self, batch: JobBatch) -> None:
        """From now on it is driven, and its input file kept."""

    async def save(self, batch: JobBatch) -> None: ...

    async def batch(self, identity: str) -> JobBatch | None: ...

    async def batches(self, tenant: str) -> Sequence[str]:
        """The ids of those that there are, the youngest first."""

    async def counted(self, batch: str) -> tuple[int, int]:
        """-> (completed, failed) requests so far."""

    async def cancel(self, batch: str) -> None: ...

    async def cancelled(self, batch: str) -> bool: ...

    async def open(self) -> Sequence[str]:
        """Those to be driven."""

    async def lease(self, batch: str, driver: str, hold_s: float) -> bool:
        """Whether `driver` is to drive it, for so long again."""

    async def progress(self, batch: str) -> BatchProgress: ...

    async def began(self, batch: str, line: int, job: str) -> None: ...

    async def ended(self, batch: str, line: int, output: bytes, *, completed: bool) -> None: ...

    async def outputs(self, batch: str, *, completed: bool) -> dict[int, bytes]: ...

    async def close(self, batch: JobBatch, keep_s: float) -> None:
        """It is over: driven no more, and its input file expires again."""
