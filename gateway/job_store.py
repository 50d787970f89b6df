"""Records of jobs and batches, and the ports to where they are kept."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

import msgpack
import orjson

from gateway.priority import Priority

# Jobs, what became of them, and how both are kept. Pure.
VERSION = 1

ODD = "surrogatepass"  # of headers that are no UTF-8, as `msgpack` writes and reads them

Headers = tuple[tuple[str, str], ...]


class JobStatus(StrEnum):
    """Of a job, as its client sees it."""

    QUEUED = "queued"  # also between two attempts
    RUNNING = "running"
    COMPLETED = "completed"  # with an answer of a status below 400
    FAILED = "failed"  # with an error, or without any answer
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        return self not in (JobStatus.QUEUED, JobStatus.RUNNING)


class Unsealable(Exception):
    """Clients' credentials that cannot be opened, and why: one sentence."""


class RecordUnreadable(ValueError):
    """What lies in the store is no job, or one of another version."""


@dataclass(frozen=True, slots=True)
class Job:
    """A request to be answered later."""

    id: str
    tenant: str
    method: str
    path: str
    query: str
    headers: Headers  # without credentials
    body: bytes
    sealed: bytes  # headers with credentials, encrypted; empty: none
    priority: Priority  # among jobs: at backends all of them yield to requests that somebody waits for
    webhook: str  # a URL; empty: none


@dataclass(frozen=True, slots=True)
class JobResult:
    """The answer to a job."""

    status: int
    headers: Headers
    body: bytes


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A job that a worker holds. `token`: rises with every claim; what is said under an older one is not heard."""

    job: Job
    token: int
    attempt: int  # 1: the first
    age_s: float  # since it was accepted, by the store's clock


@dataclass(frozen=True, slots=True)
class JobState:
    """How a job stands. Times: wall clock of the store, seconds; 0: not yet."""

    id: str
    tenant: str
    status: JobStatus
    created: float
    started: float
    finished: float
    attempts: int
    error: str  # why it failed, where there is more to say than its answer does
    result: JobResult | None
    dead: bool = False  # it failed though its client is not to blame: an operator may have it tried again


def encode_job(job: Job) -> bytes:
    fields = [VERSION, job.id, job.tenant, job.method, job.path, job.query, job.headers, job.body, job.sealed]
    return bytes(msgpack.packb([*fields, int(job.priority), job.webhook], unicode_errors=ODD))


def decode_job(data: bytes) -> Job:
    """Raises `RecordUnreadable`."""
    try:
        version, *fields = msgpack.unpackb(data, unicode_errors=ODD)
        identity, tenant, method, path, query, headers, body, sealed, priority, webhook = fields
        pairs = tuple((str(name), str(value)) for name, value in headers)
        if version != VERSION:
            raise ValueError(f"version {version!r}")
        return Job(identity, tenant, method, path, query, pairs, body, sealed, Priority(priority), webhook)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RecordUnreadable(f"no job of version {VERSION}: {type(error).__name__}") from None


def encode_result(result: JobResult) -> bytes:
    return bytes(msgpack.packb([VERSION, result.status, result.headers, result.body], unicode_errors=ODD))


def decode_result(data: bytes) -> JobResult:
    """Raises `RecordUnreadable`."""
    try:
        version, status, headers, body = msgpack.unpackb(data, unicode_errors=ODD)
        if version != VERSION:
            raise ValueError(f"version {version!r}")
        return JobResult(status, tuple((str(name), str(value)) for name, value in headers), body)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RecordUnreadable(f"no result of version {VERSION}: {type(error).__name__}") from None


def job_json(job_state: JobState, *, response: bool = True) -> dict[str, Any]:
    """What a client sees of its job."""
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
    """`body`: what its JSON says, else its text, else null beside `body_base64`."""
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
    found: dict[str, str] = {}
    for name, value in headers:
        low, text = name.lower(), value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        found[low] = f"{found[low]}, {text}" if low in found else text
    return found


OPEN = frozenset({"validating", "in_progress", "cancelling"})


@dataclass(frozen=True, slots=True)
class BatchFile:
    """Of a tenant. Times: wall clock of the store's gateway, seconds."""

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
    """What is wrong with a line; 0: with the file."""

    line: int
    message: str
    code: str = "invalid_request"


@dataclass(frozen=True, slots=True)
class JobBatch:
    """`headers` and `sealed`: what its requests are sent with, as of a job. `times`: by the names that OpenAI gives
    them, without `_at`."""

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
