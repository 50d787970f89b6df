"""GET /admin/jobs, POST /admin/jobs/{retry,drop}: what waits, and what nobody could answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import orjson
from aiohttp import web

from gateway.admin.responses import json_response
from gateway.errors import StoreUnavailable
from gateway.job_store import JobState, JobStore, job_json

STATES = ("active", "dead", "finished")
DEFAULT_LIMIT, MAX_LIMIT = 50, 1000
JOB = re.compile(r"job_[0-9a-f]{32}")
MAX_BODY = 4096
DIGITS = 12  # of a tenant that is a hash: enough to tell who it is, and no more


class JobsHandler:
    def __init__(self, store: JobStore) -> None:
        self._store = store

    def routes(self) -> Sequence[web.RouteDef]:
        return [
            web.get("/admin/jobs", self._list),
            web.get("/admin/jobs/{job}", self._show),
            web.post("/admin/jobs/retry", self._retry),
            web.post("/admin/jobs/drop", self._drop),
        ]

    async def _list(self, request: web.Request) -> web.StreamResponse:
        state, top = request.query.get("state", "active"), request.query.get("top", str(DEFAULT_LIMIT))
        if state not in STATES:
            return json_response({"error": f"state: expected one of {', '.join(STATES)}"}, status=400)
        if not top.isascii() or not top.isdigit() or not 1 <= int(top[:9]) <= MAX_LIMIT:
            return json_response({"error": f"top: expected a number from 1 to {MAX_LIMIT}"}, status=400)
        try:
            counts, found = await self._store.counts(), await self._store.listed(state, int(top[:9]))
        except StoreUnavailable as error:
            return json_response({"error": str(error)}, status=503)
        return json_response(
            {"counts": asdict(counts), "state": state, "jobs": [_job_summary(job_state) for job_state in found]}
        )

    async def _show(self, request: web.Request) -> web.StreamResponse:
        """Without its answer, which is its tenant's alone."""
        job = request.match_info["job"]
        try:
            job_state = await self._store.job_state(job) if JOB.fullmatch(job) else None
        except StoreUnavailable as error:
            return json_response({"error": str(error)}, status=503)
        if job_state is None:
            return json_response({"error": "there is no such job"}, status=404)
        status = None if job_state.result is None else job_state.result.status
        return json_response(_job_summary(job_state) | {"response_status": status})

    async def _retry(self, request: web.Request) -> web.StreamResponse:
        return await self._apply_to_jobs(request, self._store.retry)

    async def _drop(self, request: web.Request) -> web.StreamResponse:
        return await self._apply_to_jobs(request, self._store.drop)

    async def _apply_to_jobs(self, request: web.Request, action: Any) -> web.StreamResponse:
        """Of one dead job `{"job": ID}`, or of all of them `{"all": true}`, at most `MAX_LIMIT` at once."""
        raw = await request.content.read(MAX_BODY)
        try:
            said = orjson.loads(raw)
        except orjson.JSONDecodeError:
            said = None
        job = said.get("job") if isinstance(said, dict) else None
        every = isinstance(said, dict) and said.get("all") is True
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
    """None where no job can be called so: the store is not asked."""
    return [job] if isinstance(job, str) and JOB.fullmatch(job) else []


def _job_summary(job_state: JobState) -> dict[str, Any]:
    whose = job_state.tenant[:DIGITS] if len(job_state.tenant) == 64 else job_state.tenant
    return job_json(job_state, response=False) | {"tenant": whose, "dead": job_state.dead}
