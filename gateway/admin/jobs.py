"""GET /admin/jobs, POST /admin/jobs/{retry,drop}: what waits, and what nobody could answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import orjson
from aiohttp import web

from gateway.admin.responses import json_answer
from gateway.errors import StoreUnavailable
from gateway.job_records import JobState, shown
from gateway.job_store import JobStore

STATES = ("active", "dead", "finished")
SHOWN, MAX_SHOWN = 50, 1000
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
        state, top = request.query.get("state", "active"), request.query.get("top", str(SHOWN))
        if state not in STATES:
            return json_answer({"error": f"state: expected one of {', '.join(STATES)}"}, status=400)
        if not top.isascii() or not top.isdigit() or not 1 <= int(top[:9]) <= MAX_SHOWN:
            return json_answer({"error": f"top: expected a number from 1 to {MAX_SHOWN}"}, status=400)
        try:
            counts, found = await self._store.counts(), await self._store.listed(state, int(top[:9]))
        except StoreUnavailable as error:
            return json_answer({"error": str(error)}, status=503)
        return json_answer({"counts": asdict(counts), "state": state, "jobs": [_row(standing) for standing in found]})

    async def _show(self, request: web.Request) -> web.StreamResponse:
        """Without its answer, which is its tenant's alone."""
        job = request.match_info["job"]
        try:
            standing = await self._store.standing(job) if JOB.fullmatch(job) else None
        except StoreUnavailable as error:
            return json_answer({"error": str(error)}, status=503)
        if standing is None:
            return json_answer({"error": "there is no such job"}, status=404)
        status = None if standing.result is None else standing.result.status
        return json_answer(_row(standing) | {"response_status": status})

    async def _retry(self, request: web.Request) -> web.StreamResponse:
        return await self._each(request, self._store.retry)

    async def _drop(self, request: web.Request) -> web.StreamResponse:
        return await self._each(request, self._store.drop)

    async def _each(self, request: web.Request, act: Any) -> web.StreamResponse:
        """Of one dead job `{"job": ID}`, or of all of them `{"all": true}`, at most `MAX_SHOWN` at once."""
        raw = await request.content.read(MAX_BODY)
        try:
            said = orjson.loads(raw)
        except orjson.JSONDecodeError:
            said = None
        job = said.get("job") if isinstance(said, dict) else None
        every = isinstance(said, dict) and said.get("all") is True
        if not every and not isinstance(job, str):
            return json_answer({"error": 'expected {"job": "job_..."} or {"all": true}'}, status=400)
        try:
            names = [one.id for one in await self._store.listed("dead", MAX_SHOWN)] if every else _named(job)
            done = [name for name in names if await act(name)]
        except StoreUnavailable as error:
            return json_answer({"error": str(error)}, status=503)
        if not every and not done:
            return json_answer({"error": "there is no such dead job"}, status=404)
        return json_answer({"jobs": len(done)})


def _named(job: Any) -> Sequence[str]:
    """None where no job can be called so: the store is not asked."""
    return [job] if isinstance(job, str) and JOB.fullmatch(job) else []


def _row(standing: JobState) -> dict[str, Any]:
    whose = standing.tenant[:DIGITS] if len(standing.tenant) == 64 else standing.tenant
    return shown(standing, response=False) | {"tenant": whose, "dead": standing.dead}
