"""Records of jobs and batches, and the ports of their stores."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

import msgpack
import orjson

from gateway.priority import Priority
from gateway.transmission import Transmission

# Jobs, their results, and the encoding of both. Pure.
VERSION = 1

ODD = "surrogatepass"  # `msgpack` error handler for headers that are not UTF-8

Headers = tuple[tuple[str, str], ...]


class JobStatus(StrEnum):
    """The status of a job, as its client sees it."""

    QUEUED = "queued"  # also between two attempts
    RUNNING = "running"
    COMPLETED = "completed"  # the answer has a status below 400
    FAILED = "failed"  # the answer is an error, or there is no answer
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self not in (JobStatus.QUEUED, JobStatus.RUNNING)


class Unsealable(Exception):
    """Sealed credentials of a client cannot be opened. The message gives the reason in one sentence."""


class RecordUnreadable(ValueError):
    """A record in the store is no job, or has another version."""


@dataclass(frozen=True, slots=True)
class Job:
    """A request that is answered later."""

    id: str
    tenant: str
    method: str
    path: str
    query: str
    headers: Headers  # without credentials
    body: bytes
    sealed: bytes  # headers with credentials, encrypted, or b"" without any
    priority: Priority  # rank among jobs; at a backend every job yields to interactive requests
    webhook: str  # a URL, or ""
    subjects: tuple[str, ...] = ()  # digests of those who caused it (`gateway.subjects`); not in the record
    transmission: Transmission = field(
        default_factory=Transmission, compare=False
    )  # of this attempt; not in the record


@dataclass(frozen=True, slots=True)
class JobResult:
    """The answer to a job."""

    status: int
    headers: Headers
    body: bytes


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A job that a worker has claimed. `token` rises with every claim; the store ignores calls with an older token."""

    job: Job
    token: int
    attempt: int  # 1: the first
    age_s: float  # since it was accepted, by the store's clock


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of a job. Times are seconds on the store's wall clock, or 0 before they come."""

    id: str
    tenant: str
    status: JobStatus
    created: float
    started: float
    finished: float
    attempts: int
    error: str  # why it failed, if the answer does not tell
    result: JobResult | None
    dead: bool = False  # failed through no fault of its client: an operator may retry it


def encode_job(job: Job) -> bytes:
    fields = [VERSION, job.id, job.tenant, job.method, job.path, job.query, job.headers, job.body, job.sealed]
    return bytes(msgpack.packb([*fields, int(job.priority), job.webhook], unicode_errors=ODD))


def decode_job(data: bytes) -> Job:
    """Return the job. Raise `RecordUnreadable`."""
    try:
        version, *fields = msgpack.unpackb(data, unicode_errors=ODD)
        identity, tenant, method, path, query, headers, body, sealed, priority, webhook = fields
        pairs = tuple((str(name), str(value)) for name, value in headers)
        if version != VERSION:
            raise ValueError(f"version {version!r}")
        return Job(identity, tenant, method, path, query, pairs, body, sealed, Priority(priority), webhook)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RecordUnreadable(f"not a job of version {VERSION}: {type(error).__name__}") from None


def encode_result(result: JobResult) -> bytes:
    return bytes(msgpack.packb([VERSION, result.status, result.headers, result.body], unicode_errors=ODD))


def decode_result(data: bytes) -> JobResult:
    """Return the result. Raise `RecordUnreadable`."""
    try:
        version, status, headers, body = msgpack.unpackb(data, unicode_errors=ODD)
        if version != VERSION:
            raise ValueError(f"version {version!r}")
        return JobResult(status, tuple((str(name), str(value)) for name, value in headers), body)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RecordUnreadable(f"not a result of version {VERSION}: {type(error).__name__}") from None


def job_json(job_state: JobState, *, response: bool = True) -> dict[str, Any]:
    """Return the job as its client sees it."""
    view: dict[str, Any] = {
        "id": job_state.id,
        "object": "job",
        "status": job_state.status.value,
        "created_at": job_state.created,
        "started_at": job_state.started or None,
        "finished_at": job_state.finished or None,
        "attempts": job_state.attempts,
    }
    if job_state.error:
        view["error"] = job_state.error
    if response:
        view["response"] = None if job_state.result is None else result_json(job_state.result)
    return view


def result_json(result: JobResult) -> dict[str, Any]:
    """Return the result as JSON. `body` is the parsed JSON, else the text, else null with the bytes in
    `body_base64`."""
    view: dict[str, Any] = {"status": result.status, "headers": _by_name(result.headers)}
    content_type = next((value for name, value in result.headers if name.lower() == "content-type"), "")
    if "json" in content_type.lower():
        try:
            return view | {"body": orjson.loads(result.body)}
        except orjson.JSONDecodeError:
            pass
    try:
        return view | {"body": result.body.decode()}
    except UnicodeDecodeError:
        return view | {"body": None, "body_base64": base64.b64encode(result.body).decode()}


def _by_name(headers: Headers) -> Mapping[str, str]:
    by_name: dict[str, str] = {}
    for name, value in headers:
        low, text = name.lower(), value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        by_name[low] = f"{by_name[low]}, {text}" if low in by_name else text
    return by_name


OPEN = frozenset({"validating", "in_progress", "cancelling"})


@dataclass(frozen=True, slots=True)
class BatchFile:
    """A file of a tenant. Times are seconds on the wall clock of the gateway that stored it."""

    id: str
    tenant: str
    filename: str
    purpose: str
    created: float
    expires: float
    size: int


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A request of a batch."""

    number: int  # from 1
    custom_id: str
    body: bytes


@dataclass(frozen=True, slots=True)
class BatchError:
    """A fault in a batch file. `line` is 0 if the fault is in the file as a whole."""

    line: int
    message: str
    code: str = "invalid_request"


@dataclass(frozen=True, slots=True)
class JobBatch:
    """A batch. `headers` and `sealed` go with each of its requests, as with a job. The keys of `times` are OpenAI's
    names without `_at`."""

    id: str
    tenant: str
    endpoint: str
    input_file: str
    created: float
    expires: float
    metadata: Mapping[str, str]
    headers: Headers
    sealed: bytes
    status: str = "validating"
    total: int = 0
    output_file: str = ""
    error_file: str = ""
    faults: tuple[BatchError, ...] = ()
    times: Mapping[str, float] = field(default_factory=dict)

    @property
    def open(self) -> bool:
        return self.status in OPEN

    def with_status(self, status: str, now: float, **more: Any) -> JobBatch:
        return replace(self, status=status, times={**self.times, status: now}, **more)


# The port to the store of jobs and of their pending webhooks.
class Admittance(StrEnum):
    """The outcome of offering a job to the store."""

    ACCEPTED = "accepted"
    KNOWN = "known"  # the same idempotency key came before, with the same request
    CONFLICT = "conflict"  # the same idempotency key came before, with another request
    FULL = "full"  # the gateways on the store have reached their common limit
    TENANT_FULL = "tenant-full"


class LeaseState(StrEnum):
    """The answer to a heartbeat for a claim."""

    HELD = "held"
    LOST = "lost"  # cancelled, or claimed by another worker


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on the jobs of all gateways on a store."""

    max_queued: int
    max_queued_per_tenant: int
    max_bytes: int
    keep_key_s: float  # seconds for which an idempotency key is kept


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The end of a job."""

    status: JobStatus
    result: JobResult | None
    error: str
    keep_s: float
    dead: bool = False


@dataclass(frozen=True, slots=True)
class Counts:
    """Totals over all gateways on a store."""

    queued: int  # including jobs that wait for their next attempt
    running: int
    dead: int
    bytes: int  # request bytes of unfinished jobs
    webhooks: int  # not yet delivered
    oldest_s: float  # age of the oldest unfinished job


@dataclass(frozen=True, slots=True)
class Delivery:
    """A webhook to deliver. `attempt` 1 is the first attempt."""

    job: str
    url: str
    attempt: int
    job_state: JobState


class JobStore(Protocol):
    """The port to the job store. Every method is atomic and raises `StoreUnavailable`."""

    async def accept(self, job: Job, bounds: Bounds, key: str, digest: str) -> tuple[Admittance, str]:
        """Put a job at the end of its tenant's queue.

        Return the outcome and the job's id; for `KNOWN`, the id of the first job. `key` is the idempotency key, empty
        for none; `digest` is that of the request.
        """

    async def claim(
        self, worker: str, most: int, *, visibility_s: float, attempts: int, dead_s: float, lost: bool = True
    ) -> list[ClaimedJob]:
        """Claim at most `most` jobs for `worker`, by priority, and within a priority by tenant in turns.

        Jobs of workers silent for `visibility_s` come first. A job that was started `attempts` times becomes dead
        instead, and is kept for `dead_s`.
        """

    async def beat(self, worker: str, leases: Sequence[tuple[str, int]]) -> list[LeaseState]:
        """Prolong claims (id, token) by the visibility timeout."""

    async def conclude(self, job: str, token: int, conclusion: Conclusion) -> bool:
        """End a job. Return False, and write nothing, if the claim was lost."""

    async def requeue(self, job: str, token: int, delay_s: float, *, counted: bool, error: str) -> bool:
        """Queue the job again after `delay_s`. Unless `counted`, this does not count as an attempt. Return False if the
        claim was lost."""

    async def job_state(self, job: str) -> JobState | None: ...

    async def status(self, job: str, tenant: str) -> JobStatus | None:
        """Return the status cheaply; None if the tenant has no such job."""

    async def cancel(self, job: str, tenant: str, keep_s: float) -> JobState | None:
        """Cancel a job at once. A worker that runs it learns of it with its next heartbeat. A finished job stays as it
        is. Return None if the tenant has no such job."""

    async def due_webhooks(
        self, most: int, hold_s: float, per_tenant: int, running: Mapping[str, int]
    ) -> list[Delivery]:
        """Return due webhooks. No other caller gets them for `hold_s`.

        `running` counts the caller's deliveries by tenant. No tenant gets more than `per_tenant` with these; its other
        webhooks are due a second later.
        """

    async def record_delivery(self, job: str, outcome: str, retry_s: float | None) -> None:
        """Record the outcome of a delivery. Deliver again after `retry_s`, or never if it is None."""

    async def counts(self) -> Counts: ...

    async def listed(self, state: str, limit: int) -> list[JobState]:
        """Return jobs without results, youngest first. `state` is `active`, `dead` or `finished`."""

    async def retry(self, job: str) -> bool:
        """Queue a dead job again with its attempts reset. Return False if there is no such dead job."""

    async def drop(self, job: str) -> bool:
        """Delete a dead job. Return False if there is no such dead job."""

    async def sweep(self, worker: str) -> None:
        """Delete expired records, in steps of bounded size."""


@dataclass(frozen=True, slots=True)
class WebhookOutcome:
    """The outcome of a webhook delivery. `status` is None without a response. The store and the metrics have `word`."""

    status: int | None
    word: str

    @property
    def is_delivered(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


# The port to the store of files and batches.
@dataclass(frozen=True, slots=True)
class BatchProgress:
    """The progress of a batch, by line number."""

    jobs: dict[int, str]  # ids of accepted jobs
    done: frozenset[int]  # lines that have output


class BatchStore(Protocol):
    """The port to the batch store. Every method raises `StoreUnavailable`. A driver may repeat its writes: they are
    idempotent."""

    async def put_file(self, file: BatchFile, content: bytes) -> None: ...

    async def file(self, identity: str) -> BatchFile | None: ...

    async def content(self, identity: str) -> bytes | None: ...

    async def files(self, tenant: str) -> Sequence[BatchFile]:
        """Return the files of a tenant, youngest first."""

    async def file_totals(self) -> tuple[int, int]:
        """Return the number of files and their bytes, over all tenants."""

    async def delete_file(self, identity: str, tenant: str) -> None: ...

    async def create(self, batch: JobBatch) -> None:
        """Store a batch. From now on it is driven, and its input file does not expire."""

    async def save(self, batch: JobBatch) -> None: ...

    async def batch(self, identity: str) -> JobBatch | None: ...

    async def batches(self, tenant: str) -> Sequence[str]:
        """Return the ids of the existing batches, youngest first."""

    async def request_counts(self, batch: str) -> tuple[int, int]:
        """Return the numbers of completed and failed requests so far."""

    async def cancel(self, batch: str) -> None: ...

    async def is_cancelled(self, batch: str) -> bool: ...

    async def open(self) -> Sequence[str]:
        """Return the ids of batches to drive."""

    async def lease(self, batch: str, driver: str, hold_s: float) -> bool:
        """Take or prolong the driver's lease by `hold_s` seconds. Return whether `driver` has it."""

    async def progress(self, batch: str) -> BatchProgress: ...

    async def revision(self, batch: str) -> int:
        """Return how often lines were taken out of the batch's input."""

    async def record_start(self, batch: str, line: int, job: str) -> None: ...

    async def record_output(self, batch: str, line: int, output: bytes, *, completed: bool) -> None: ...

    async def outputs(self, batch: str, *, completed: bool) -> dict[int, bytes]: ...

    async def close(self, batch: JobBatch, keep_s: float) -> None:
        """End a batch: no driver takes it any more, and its input file expires again."""
