"""Serve `POST /v1/jobs`, `Prefer: respond-async` and the state of jobs. `workers` runs the jobs."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from gateway.config.schema import JobsConfig
from gateway.context import RequestContext
from gateway.dialects.json_body import check_keys, parse_object
from gateway.errors import (
    BadRequest,
    Conflict,
    GatewayError,
    NotFound,
    Overloaded,
    PayloadTooLarge,
    StoreUnavailable,
    TooManyJobs,
)
from gateway.features.jobs.notifications import JobNotifications
from gateway.features.jobs.store import Admittance, Bounds, Job, JobState, JobStatus, JobStore, job_json
from gateway.features.jobs.submission import (
    QUERY,
    JobRequest,
    parse_description,
    parse_preferred,
    stored_headers,
)
from gateway.features.jobs.workers import JobWorkers
from gateway.jobs import PATH
from gateway.messages import Event, EventStream, FullBody, Provenance, Response
from gateway.observability.telemetry import Telemetry
from gateway.outcomes import Bypass, Verdict
from gateway.principal import ACCOUNT, HEADER
from gateway.streams import ClosingStream
from gateway.subjects import SubjectsOf, body_user

if TYPE_CHECKING:
    from gateway.features.jobs.credential_encryption import Sealer

JOB_PATH = re.compile(r"/v1/jobs/(job_[0-9a-f]{32})(/events)?")
RETRY_AFTER_S = 5
# A description carries the body in JSON, so it may be this much larger than the body itself.
MAX_DESCRIPTION = 64 * 1024


@dataclass(frozen=True, slots=True)
class CredentialPolicy:
    """`CredentialPolicy` says how clients' credentials are stored while their jobs wait.

    If they are `needed`, a backend is called with them. Without a `sealer` there is no key to encrypt them.
    """

    needed: bool
    sealer: Sealer | None

    def sealed(self, headers: tuple[tuple[str, str], ...], job: str) -> bytes:
        """Return the encrypted credentials. Raise `BadRequest` if they are needed and there is no key."""
        if not headers or not self.needed:
            return b""
        if self.sealer is None:
            raise BadRequest(
                "a job cannot store your credentials: a backend without its own key (api_key_env) needs them, and the "
                "gateway has no key to encrypt them. On a shared store, set jobs.key_env to the name of a variable "
                "with a secret that all gateways have"
            )
        return self.sealer.seal(headers, job)


class JobEndpoint:
    """`JobEndpoint` accepts, reports and cancels jobs. `on_job_end` is called with the id of a cancelled job."""

    def __init__(
        self,
        config: JobsConfig,
        store: JobStore,
        workers: JobWorkers,
        notifications: JobNotifications,
        on_job_end: Callable[[str], None],
        credentials: CredentialPolicy,
        telemetry: Telemetry,
        subjects_of: SubjectsOf | None = None,
    ) -> None:
        self._subjects_of = subjects_of
        self._config = config
        self._store = store
        self._workers = workers
        self._notifications = notifications
        self._on_job_end = on_job_end
        self._credentials = credentials
        self._telemetry = telemetry
        self._bounds = bounds_of(config)

    async def answer(self, request: RequestContext) -> Response:
        try:
            if request.path == PATH and request.method == "POST":
                return await self._accept_described(request)
            return await (self._answer_job if request.path.startswith(PATH + "/") else self._accept_preferred)(request)
        except StoreUnavailable as error:
            raise Overloaded(f"jobs are unavailable: {error}", retry_after_s=RETRY_AFTER_S) from None

    async def _accept_described(self, request: RequestContext) -> Response:
        raw = await request.body_source.read()
        if len(raw) > self._config.max_body + MAX_DESCRIPTION:
            raise self._too_large()
        check_keys(raw)
        job_request = parse_description(parse_object(raw), request.headers, self._config.webhook_hosts)
        return await self.accept_job(request, job_request, explicit=True)

    async def _accept_preferred(self, request: RequestContext) -> Response:
        body = await request.body_source.read()
        job_request = parse_preferred(
            request.method, request.path, request.query, request.headers, body, self._config.webhook_hosts
        )
        return await self.accept_job(request, job_request, explicit=False)

    async def accept_job(self, request: RequestContext, job_request: JobRequest, *, explicit: bool) -> Response:
        """Accept a job with status 202, or raise an error."""
        if len(job_request.body) > self._config.max_body:
            raise self._too_large()
        if job_request.webhook and self._config.webhook_secret_env is None:
            raise BadRequest(
                "webhooks are not available: the gateway has no secret to sign them (jobs.webhook_secret_env)"
            )
        identity = f"job_{secrets.token_hex(16)}"
        headers, credentials = stored_headers(
            request.headers_with_parent(request.headers),
            job_request.body,
            request.client.credentials.rules,
            explicit=explicit,
        )
        query = request.client.credentials.rules.without_secrets(job_request.query)
        if query != job_request.query:
            credentials += ((QUERY, job_request.query),)
        headers += key_header(request)
        sealed = self._credentials.sealed(credentials, identity)
        job = Job(
            identity,
            request.client.tenant,
            job_request.method,
            job_request.path,
            query,
            headers,
            job_request.body,
            sealed,
            job_request.priority,
            job_request.webhook,
            subjects_of_job(self._subjects_of, job_request.body, request),
        )
        admittance, identity = await self._store.accept(job, self._bounds, job_request.key, job_request.digest)
        self._telemetry.jobs.add(admittance.value)
        if admittance is Admittance.CONFLICT:
            raise Conflict("the idempotency key was used for another request: expected a new key for each request")
        if admittance in (Admittance.FULL, Admittance.TENANT_FULL):
            raise _full(admittance)
        self._workers.wake()
        job_state = (
            await self._store.status(identity, request.client.tenant) if admittance is Admittance.KNOWN else None
        )
        body = {"id": identity, "object": "job", "status": (job_state or JobStatus.QUEUED).value}
        applied = () if explicit else (("Preference-Applied", "respond-async"),)
        return _json(202, body, (("Location", f"{PATH}/{identity}"), *applied))

    async def _answer_job(self, request: RequestContext) -> Response:
        match = JOB_PATH.fullmatch(request.path)
        if match is None:
            raise NotFound("there is no such job")
        job, events = match[1], match[2] is not None
        if request.method == "GET":
            job_state = await self._job_state(job, request.client.tenant)
            if events:
                return await self._events(job_state)
            return _json(200, job_json(job_state), _retry_after(job_state))
        if request.method == "DELETE" and not events:
            cancelled = await self._store.cancel(job, request.client.tenant, self._config.result_ttl)
            if cancelled is None:
                raise NotFound("there is no such job")
            if cancelled.status is JobStatus.CANCELLED:
                self._telemetry.jobs.add("cancelled")
                self._workers.give_up(job)
                self._on_job_end(job)
            return _json(200, job_json(cancelled))
        raise BadRequest(
            f"the method {request.method} is not supported: expected GET or DELETE for a job, GET for its events"
        )

    async def _job_state(self, job: str, tenant: str) -> JobState:
        """Return the state of a job. Raise `NotFound`, also if it belongs to another tenant."""
        job_state = await self._store.job_state(job)
        if job_state is None or job_state.tenant != tenant:
            raise NotFound("there is no such job")
        return job_state

    async def _events(self, job_state: JobState) -> Response:
        if not self._notifications.enter():
            raise Overloaded("too many clients follow jobs at this gateway", retry_after_s=RETRY_AFTER_S)
        events = EventStream(ClosingStream(self._follow(job_state), self._notifications.leave))
        headers = (("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-store"))
        return Response(200, headers, events, _PROVENANCE)

    async def _follow(self, job_state: JobState) -> AsyncGenerator[Event, None]:
        """Yield each change of status, then the result; heartbeats while nothing changes."""
        job, tenant, status = job_state.id, job_state.tenant, job_state.status
        if not status.is_final:
            yield _event("status", job_json(job_state, response=False))
        for _ in range(self._notifications.max_beats):
            if status.is_final:
                break
            try:
                now = await self._notifications.wait_change(job, status, lambda: self._store.status(job, tenant))
            except StoreUnavailable:
                now = status
            if now is None:
                return
            if now is status:
                yield _event("heartbeat", {"id": job})
            elif not now.is_final:
                yield _event("status", {"id": job, "object": "job", "status": now.value})
            status = now
        last = await self._store.job_state(job)
        if last is not None and last.status.is_final:
            yield _event("result", job_json(last))

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(f"the body is larger than {self._config.max_body} bytes (jobs.max_body)")


def key_header(request: RequestContext) -> tuple[tuple[str, str], ...]:
    """Return the headers by which a running job counts against its client's key and account."""
    permit = request.client.permit
    key = () if permit is None or not permit.id else ((HEADER, permit.id),)
    return key if request.client.account == request.client.tenant else (*key, (ACCOUNT, request.client.account))


def subjects_of_job(subjects_of: SubjectsOf | None, body: bytes, request: RequestContext) -> tuple[str, ...]:
    """Return the digests of the users that a job's body names, and of its client's key."""
    if subjects_of is None:
        return ()
    key = "" if request.client.permit is None else request.client.permit.name
    return subjects_of(body_user(body), key)


def bounds_of(config: JobsConfig) -> Bounds:
    """Return the store's bounds. An idempotency key is kept for the longest life of its job."""
    keep_s = config.max_age + config.result_ttl
    return Bounds(config.max_queued, config.max_queued_per_tenant, config.max_bytes, keep_s)


_PROVENANCE = Provenance(Verdict.BYPASS, reason=Bypass.JOB)


def _full(admittance: Admittance) -> GatewayError:
    if admittance is Admittance.TENANT_FULL:
        return TooManyJobs(
            "you have reached your limit of waiting jobs (jobs.max_queued_per_tenant)", retry_after_s=RETRY_AFTER_S
        )
    return Overloaded("the job queue is full (jobs.max_queued, jobs.max_bytes)", retry_after_s=RETRY_AFTER_S)


def _retry_after(job_state: JobState) -> tuple[tuple[str, str], ...]:
    return () if job_state.status.is_final else (("Retry-After", "1"),)


def _json(status: int, body: Mapping[str, Any], headers: tuple[tuple[str, str], ...] = ()) -> Response:
    all_headers = (("Content-Type", "application/json"), ("Cache-Control", "no-store"), *headers)
    return Response(status, all_headers, FullBody(orjson.dumps(body)), _PROVENANCE)


def _event(name: str, body: Mapping[str, Any]) -> Event:
    return Event(orjson.dumps(body), name)
