"""Jobs, what became of them, and how both are kept. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import msgpack
import orjson

from gateway.priority import Priority

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
