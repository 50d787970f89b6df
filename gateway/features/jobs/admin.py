"""`/admin/jobs`: queued, running, dead and finished jobs. Dead jobs can be retried or dropped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

import orjson
from aiohttp import web
from pydantic import Field

from gateway.admin.on_demand import AdminCore
from gateway.admin.operations import NotRequired, TypedDict, operation
from gateway.admin.responses import json_response
from gateway.errors import StoreUnavailable
from gateway.features.jobs.redis_jobs import RedisJobs
from gateway.features.jobs.store import Counts, JobState, JobStatus, job_json

STATES = ("active", "dead", "finished")
DEFAULT_LIMIT, MAX_LIMIT = 50, 1000
JOB = re.compile(r"job_[0-9a-f]{32}")
MAX_BODY = 4096
DIGITS = 12  # digits of a hashed tenant that are shown: enough to tell tenants apart


class JobSummary(TypedDict):
    id: str
    object: Literal["job"]
    status: JobStatus
    created_at: float
    """Seconds since 1970."""
    started_at: float | None
    finished_at: float | None
    attempts: int
    error: NotRequired[str]
    """The last error."""
    tenant: str
    """The name of the tenant, or the first digits of its hash."""
    dead: bool
    """Whether all attempts failed."""


class JobDetails(JobSummary):
    response_status: int | None
    """The HTTP status of the answer. Null: there is no answer yet."""


class JobsQuery(TypedDict, total=False):
    state: Annotated[Literal["active", "dead", "finished"], Field(default="active")]
    top: Annotated[int, Field(ge=1, le=MAX_LIMIT, default=DEFAULT_LIMIT)]


class JobsReport(TypedDict):
    counts: Counts
    state: Literal["active", "dead", "finished"]
    jobs: list[JobSummary]


class OneJob(TypedDict):
    job: str
    """The id of a dead job."""


class AllJobs(TypedDict):
    all: Literal[True]


class JobsChanged(TypedDict):
    jobs: int
    """The number of jobs that were retried or dropped."""


class JobsAdmin:
    """`JobsAdmin` serves `/admin/jobs`."""

    def __init__(self, core: AdminCore) -> None:
        self._store = RedisJobs(core.stores.redis, core.stores.client)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/admin/jobs", self._list),
            web.get("/admin/jobs/{job}", self._show),
            web.post("/admin/jobs/retry", self._retry),
            web.post("/admin/jobs/drop", self._drop),
        ]

    @operation(JobsReport, query=JobsQuery)
    async def _list(self, request: web.Request) -> web.StreamResponse:
        """List jobs of one state, with totals over all states."""
        state, top = request.query.get("state", "active"), request.query.get("top", str(DEFAULT_LIMIT))
        if state not in STATES:
            return json_response({"error": f"state: expected one of {', '.join(STATES)}"}, status=400)
        if not top.isascii() or not top.isdigit() or not 1 <= int(top[:9]) <= MAX_LIMIT:
            return json_response({"error": f"top: expected a number from 1 to {MAX_LIMIT}"}, status=400)
        try:
            counts, jobs = await self._store.counts(), await self._store.listed(state, int(top[:9]))
        except StoreUnavailable as error:
            return json_response({"error": str(error)}, status=503)
        return json_response(
            {"counts": asdict(counts), "state": state, "jobs": [_job_summary(job_state) for job_state in jobs]}
        )

    @operation(JobDetails)
    async def _show(self, request: web.Request) -> web.StreamResponse:
        """Show one job without its answer. Only the tenant can read the answer."""
        job = request.match_info["job"]
        try:
            job_state = await self._store.job_state(job) if JOB.fullmatch(job) else None
        except StoreUnavailable as error:
            return json_response({"error": str(error)}, status=503)
        if job_state is None:
            return json_response({"error": "there is no such job"}, status=404)
        status = None if job_state.result is None else job_state.result.status
        return json_response(_job_summary(job_state) | {"response_status": status})

    @operation(JobsChanged, body=OneJob | AllJobs)
    async def _retry(self, request: web.Request) -> web.StreamResponse:
        """Queue a dead job again, or up to 1000 dead jobs."""
        return await self._apply_to_jobs(request, self._store.retry)

    @operation(JobsChanged, body=OneJob | AllJobs)
    async def _drop(self, request: web.Request) -> web.StreamResponse:
        """Remove a dead job, or up to 1000 dead jobs."""
        return await self._apply_to_jobs(request, self._store.drop)

    async def _apply_to_jobs(self, request: web.Request, action: Any) -> web.StreamResponse:
        """Apply an action to one dead job `{"job": ID}`, or to all `{"all": true}`, at most `MAX_LIMIT`."""
        raw = await request.content.read(MAX_BODY)
        try:
            body = orjson.loads(raw)
        except orjson.JSONDecodeError:
            body = None
        job = body.get("job") if isinstance(body, dict) else None
        every = isinstance(body, dict) and body.get("all") is True
        if not every and not isinstance(job, str):
            return json_response({"error": 'expected {"job": "job_..."} or {"all": true}'}, status=400)
        try:
            names = [one.id for one in await self._store.listed("dead", MAX_LIMIT)] if every else _job_ids(job)
            done = [name for name in names if await action(name)]
        except StoreUnavailable as error:
            return json_response({"error": str(error)}, status=503)
        if not every and not done:
            return json_response({"error": "there is no such dead job"}, status=404)
        return json_response({"jobs": len(done)})


def _job_ids(job: Any) -> Sequence[str]:
    """Return the id in a list. Return an empty one if no job can have this id; the store is not asked then."""
    return [job] if isinstance(job, str) and JOB.fullmatch(job) else []


def _job_summary(job_state: JobState) -> dict[str, Any]:
    tenant = job_state.tenant[:DIGITS] if len(job_state.tenant) == 64 else job_state.tenant
    return job_json(job_state, response=False) | {"tenant": tenant, "dead": job_state.dead}
