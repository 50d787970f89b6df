"""`POST /v1/jobs`, `Prefer: respond-async`, and what becomes of jobs: accepted here, run by `gateway.jobs.workers`."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from gateway.config.schema import JobsConfig
from gateway.context import RequestContext
from gateway.dialects.json_body import parse_object
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
from gateway.job_records import Job, JobState, JobStatus, shown
from gateway.job_store import Admittance, Bounds, JobStore
from gateway.jobs.notifications import JobNotifications
from gateway.jobs.submission import PATH, JobRequest, kept_headers, preferred, submitted, wants_async
from gateway.jobs.workers import JobWorkers
from gateway.messages import Bypass, Event, EventStream, FullBody, Provenance, Response, Verdict
from gateway.observability.telemetry import Telemetry
from gateway.principal import HEADER
from gateway.streams import ClosingStream

if TYPE_CHECKING:
    from gateway.jobs.credential_encryption import Sealer

ONE = re.compile(r"/v1/jobs/(job_[0-9a-f]{32})(/events)?")
RETRY_AFTER_S = 5
# A description carries the body in JSON: room for that, beside what the body itself may have.
DESCRIPTION = 64 * 1024


@dataclass(frozen=True, slots=True)
class CredentialPolicy:
    """What becomes of clients' credentials while their jobs wait. `needed`: a backend is asked with them; `sealer`
    None: there is no key to keep them with."""

    needed: bool
    sealer: Sealer | None

    def sealed(self, headers: tuple[tuple[str, str], ...], job: str) -> bytes:
        """Raises `BadRequest` where they would have to lie in clear."""
        if not headers or not self.needed:
            return b""
        if self.sealer is None:
            raise BadRequest(
                "a job cannot keep your credentials: the gateway has no key to seal them with (jobs.key_env), and a "
                "backend without a key of its own (api_key_env) would need them"
            )
        return self.sealer.seal(headers, job)


class JobEndpoint:
    def __init__(
        self,
        config: JobsConfig,
        store: JobStore,
        workers: JobWorkers,
        announcements: JobNotifications,
        over: Callable[[str], None],
        credentials: CredentialPolicy,
        telemetry: Telemetry,
    ) -> None:
        self._config = config
        self._store = store
        self._workers = workers
        self._announcements = announcements
        self._over = over
        self._credentials = credentials
        self._telemetry = telemetry
        self._bounds = bounds_of(config)

    def claims(self, request: RequestContext) -> bool:
        path = request.path
        if path.startswith(PATH + "/") or (path == PATH and request.method == "POST"):
            return True
        return wants_async(request.headers)

    async def answer(self, request: RequestContext) -> Response:
        try:
            if request.path == PATH and request.method == "POST":
                return await self._described(request)
            return await (self._one if request.path.startswith(PATH + "/") else self._preferred)(request)
        except StoreUnavailable as error:
            raise Overloaded(f"jobs are not to be had now: {error}", retry_after_s=RETRY_AFTER_S) from None

    async def _described(self, request: RequestContext) -> Response:
        raw = await request.body_source.read()
        if len(raw) > self._config.max_body + DESCRIPTION:
            raise self._too_large()
        wish = submitted(parse_object(raw), request.headers, self._config.webhook_hosts)
        return await self.accepted(request, wish, explicit=True)

    async def _preferred(self, request: RequestContext) -> Response:
        body = await request.body_source.read()
        wish = preferred(request.method, request.path, request.query, request.headers, body, self._config.webhook_hosts)
        return await self.accepted(request, wish, explicit=False)

    async def accepted(self, request: RequestContext, wish: JobRequest, *, explicit: bool) -> Response:
        """202, or why not."""
        if len(wish.body) > self._config.max_body:
            raise self._too_large()
        if wish.webhook and self._config.webhook_secret_env is None:
            raise BadRequest("this gateway sends no webhooks: it has no secret to sign them (jobs.webhook_secret_env)")
        identity = f"job_{secrets.token_hex(16)}"
        headers, credentials = kept_headers(request.headers_with_parent(request.headers), wish.body, explicit=explicit)
        headers += key_header(request)
        sealed = self._credentials.sealed(credentials, identity)
        job = Job(
            identity, request.tenant, wish.method, wish.path, wish.query, headers, wish.body, sealed, wish.priority,
            wish.webhook,
        )  # fmt: skip
        admittance, identity = await self._store.accept(job, self._bounds, wish.key, wish.digest)
        self._telemetry.jobs.add(admittance.value)
        if admittance is Admittance.CONFLICT:
            raise Conflict("the idempotency key came with another request before: expected a key of its own for each")
        if admittance in (Admittance.FULL, Admittance.TENANT_FULL):
            raise _full(admittance)
        self._workers.look()
        standing = await self._store.status(identity, request.tenant) if admittance is Admittance.KNOWN else None
        body = {"id": identity, "object": "job", "status": (standing or JobStatus.QUEUED).value}
        applied = () if explicit else (("Preference-Applied", "respond-async"),)
        return _json(202, body, (("Location", f"{PATH}/{identity}"), *applied))

    async def _one(self, request: RequestContext) -> Response:
        match = ONE.fullmatch(request.path)
        if match is None:
            raise NotFound("there is no such job")
        job, events = match[1], match[2] is not None
        if request.method == "GET":
            standing = await self._standing(job, request.tenant)
            if events:
                return await self._events(standing)
            return _json(200, shown(standing), _come_again(standing))
        if request.method == "DELETE" and not events:
            cancelled = await self._store.cancel(job, request.tenant, self._config.result_ttl)
            if cancelled is None:
                raise NotFound("there is no such job")
            if cancelled.status is JobStatus.CANCELLED:
                self._telemetry.jobs.add("cancelled")
                self._workers.give_up(job)
                self._over(job)
            return _json(200, shown(cancelled))
        raise BadRequest(f"a job takes GET and DELETE, and its events GET, not {request.method}")

    async def _standing(self, job: str, tenant: str) -> JobState:
        """Raises `NotFound`, also where it is somebody else's."""
        standing = await self._store.standing(job)
        if standing is None or standing.tenant != tenant:
            raise NotFound("there is no such job")
        return standing

    async def _events(self, standing: JobState) -> Response:
        if not self._announcements.enter():
            raise Overloaded("too many clients follow jobs", retry_after_s=RETRY_AFTER_S)
        events = EventStream(ClosingStream(self._followed(standing), self._announcements.leave))
        headers = (("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-store"))
        return Response(200, headers, events, _PROVENANCE)

    async def _followed(self, standing: JobState) -> AsyncGenerator[Event, None]:
        """Each change of status, then the result; a heartbeat where nothing changes."""
        job, tenant, seen = standing.id, standing.tenant, standing.status
        if not seen.over:
            yield _event("status", shown(standing, response=False))
        for _ in range(self._announcements.max_beats):
            if seen.over:
                break
            try:
                now = await self._announcements.changed(job, seen, lambda: self._store.status(job, tenant))
            except StoreUnavailable:
                now = seen
            if now is None:
                return
            if now is seen:
                yield _event("heartbeat", {"id": job})
            elif not now.over:
                yield _event("status", {"id": job, "object": "job", "status": now.value})
            seen = now
        last = await self._store.standing(job)
        if last is not None and last.status.over:
            yield _event("result", shown(last))

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(f"the body is larger than {self._config.max_body} bytes (jobs.max_body)")


def key_header(request: RequestContext) -> tuple[tuple[str, str], ...]:
    """By which a job is held to its client's key when it runs."""
    permit = request.permit
    return () if permit is None or not permit.id else ((HEADER, permit.id),)


def bounds_of(config: JobsConfig) -> Bounds:
    """An idempotency key is kept as long as its job can be."""
    keep_s = config.max_age + config.result_ttl
    return Bounds(config.max_queued, config.max_queued_per_tenant, config.max_bytes, keep_s)


_PROVENANCE = Provenance(Verdict.BYPASS, reason=Bypass.JOB)


def _full(admittance: Admittance) -> GatewayError:
    if admittance is Admittance.TENANT_FULL:
        return TooManyJobs("most jobs that you may have waiting are waiting", retry_after_s=RETRY_AFTER_S)
    return Overloaded("no more jobs may wait", retry_after_s=RETRY_AFTER_S)


def _come_again(standing: JobState) -> tuple[tuple[str, str], ...]:
    return () if standing.status.over else (("Retry-After", "1"),)


def _json(status: int, body: Mapping[str, Any], headers: tuple[tuple[str, str], ...] = ()) -> Response:
    kept = (("Content-Type", "application/json"), ("Cache-Control", "no-store"), *headers)
    return Response(status, kept, FullBody(orjson.dumps(body)), _PROVENANCE)


def _event(name: str, body: Mapping[str, Any]) -> Event:
    return Event(orjson.dumps(body), name)
