"""Jobs on the server that stores the answers: `nearhit:1:jobs:...`, in the steps of `features.jobs.redis_scripts`.

Accepted jobs have no expiry, so a server with `volatile-lru` (as the embedded one) never evicts them. Results have an
expiry. All times are on the server's clock.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from gateway.adapters.redis import replies
from gateway.adapters.redis.durability import WriteThrough
from gateway.adapters.redis.store import RedisStore
from gateway.errors import StoreUnavailable
from gateway.features.jobs import redis_scripts as scripts
from gateway.features.jobs.store import (
    Admittance,
    Bounds,
    ClaimedJob,
    Conclusion,
    Counts,
    Delivery,
    Job,
    JobState,
    JobStatus,
    LeaseState,
    RecordUnreadable,
    decode_job,
    decode_result,
    encode_job,
    encode_result,
)

TIMEOUT_S = 5.0
OPTIONAL = replies.optional(replies.data)
T = TypeVar("T")
OVERHEAD = 1024  # approximate bytes that the server uses for a job besides its record
CONSUMER_IDLE_S = 3600.0
PAGE = 500  # jobs read or erased at once
FIELDS = ("tenant", "status", "created", "started", "finished", "attempts", "error", "dead", "webhook", "result")
DEFERRED_S, MAX_LOOKED_AT = 1.0, 2000  # of webhooks whose tenant has all its places; looked at in one call
LISTS = {"active": "active", "dead": "dead", "finished": "finished"}


class RedisJobs:
    """`RedisJobs` implements `JobStore`, with a limit of five seconds per operation, behind the breaker of `store`.
    Without `sync` a job counts as accepted before it is on disk."""

    def __init__(self, store: RedisStore, client: Any, sync: WriteThrough | None = None) -> None:
        self._store = store
        self._sync = sync
        self._prefix = store.names.key("jobs:")
        self._scripts = {
            name: client.register_script(getattr(scripts, name))
            for name in (
                "ACCEPT", "CLAIM", "BEAT", "CONCLUDE", "PUT_BACK", "CANCEL", "DUE_WEBHOOKS", "WEBHOOK_TOLD", "RAISE",
                "SWEEP", "COUNTS", "ERASE",
            )
        }  # fmt: skip

    async def accept(self, job: Job, bounds: Bounds, key: str, digest: str) -> tuple[Admittance, str]:
        if self._sync is not None:
            await self._sync.ensure_synced()
        record = encode_job(job)
        # Keys of different tenants must not collide, even if a tenant chooses its keys deliberately: hash them with the
        # tenant in front.
        key_digest = hashlib.sha256(f"{job.tenant}\n{key}".encode()).hexdigest() if key else ""
        head = [job.id, record, job.tenant, int(job.priority), len(record) + OVERHEAD, job.webhook, key_digest, digest]
        limits = [bounds.max_queued, bounds.max_queued_per_tenant, bounds.max_bytes, " ".join(job.subjects)]
        return await self._run("ACCEPT", *head, _ms(bounds.keep_key_s), *limits, read=_admittance)

    async def claim(
        self, worker: str, most: int, *, visibility_s: float, attempts: int, dead_s: float, lost: bool = True
    ) -> list[ClaimedJob]:
        arguments = worker, most, _ms(visibility_s), attempts, _ms(dead_s), "1" if lost else "0"
        return await self._run("CLAIM", *arguments, read=_claimed)

    async def beat(self, worker: str, leases: Sequence[tuple[str, int]]) -> list[LeaseState]:
        flat = [part for pair in leases for part in pair]
        states = await self._run("BEAT", worker, *flat, read=replies.list_of(replies.truth, len(leases)))
        return [LeaseState.HELD if ok else LeaseState.LOST for ok in states]

    async def conclude(self, job: str, token: int, conclusion: Conclusion) -> bool:
        result = b"" if conclusion.result is None else encode_result(conclusion.result)
        tail = [result, conclusion.error, _ms(conclusion.keep_s), int(conclusion.dead)]
        return await self._run("CONCLUDE", job, token, conclusion.status.value, *tail, read=replies.truth)

    async def requeue(self, job: str, token: int, delay_s: float, *, counted: bool, error: str) -> bool:
        return await self._run("PUT_BACK", job, token, _ms(delay_s), int(counted), error, read=replies.truth)

    async def job_state(self, job: str) -> JobState | None:
        return (await self._row(job))[1]

    async def status(self, job: str, tenant: str) -> JobStatus | None:
        def read(row: Any) -> JobStatus | None:
            owner, status = replies.list_of(OPTIONAL, 2)(row)
            return JobStatus(replies.text(status)) if owner == tenant.encode() else None

        fields = "tenant", "status"
        return await self._store.execute(lambda client: client.hmget(self._job(job), *fields), TIMEOUT_S, read=read)

    async def cancel(self, job: str, tenant: str, keep_s: float) -> JobState | None:
        if not await self._run("CANCEL", job, tenant, _ms(keep_s), read=replies.truth):
            return None
        return await self.job_state(job)

    async def due_webhooks(
        self, most: int, hold_s: float, per_tenant: int, running: Mapping[str, int]
    ) -> list[Delivery]:
        tenants = itertools.chain.from_iterable(running.items())
        arguments = most, _ms(hold_s), per_tenant, _ms(DEFERRED_S), MAX_LOOKED_AT, *tenants
        due = []
        for job, attempt in await self._run("DUE_WEBHOOKS", *arguments, read=_attempts):
            url, job_state = await self._row(job)
            if job_state is not None:
                due.append(Delivery(job, url, attempt, job_state))
        return due

    async def record_delivery(self, job: str, outcome: str, retry_s: float | None) -> None:
        await self._run("WEBHOOK_TOLD", job, outcome, "" if retry_s is None else _ms(retry_s), read=replies.nothing)

    async def counts(self) -> Counts:
        counts = await self._run("COUNTS", read=replies.list_of(replies.number, 6))
        queued, running, dead, size, webhooks, oldest_ms = counts
        return Counts(queued, running, dead, size, webhooks, oldest_ms / 1000)

    async def listed(self, state: str, limit: int) -> list[JobState]:
        async def read(client: Any) -> list[Any]:
            names = await client.zrevrange(self._prefix + LISTS[state], 0, limit - 1)
            async with client.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.hmget(self._job(name.decode()), *FIELDS[:-1])
                return list(zip(names, await pipe.execute(), strict=True)) if names else []

        records = await self._store.execute(
            read, TIMEOUT_S, read=lambda rows: [_parse_state(name.decode(), [*row, None]) for name, row in rows]
        )
        return [job_state for job_state in records if job_state is not None]

    async def retry(self, job: str) -> bool:
        return await self._run("RAISE", job, 1, read=replies.truth)

    async def drop(self, job: str) -> bool:
        return await self._run("RAISE", job, 0, read=replies.truth)

    async def sweep(self, worker: str) -> None:
        await self._run("SWEEP", worker, _ms(CONSUMER_IDLE_S), read=replies.nothing)

    async def find(self, matches: Callable[[Sequence[str], str], bool]) -> list[str]:
        """Return the ids of all jobs for whose subjects and tenant `matches` is true. Raise `StoreUnavailable`."""
        matching: dict[str, None] = {}
        for listed in LISTS.values():
            cursor = 0
            while True:
                page = partial(self._page, self._prefix + listed, cursor)
                cursor, jobs = await self._store.execute(page, TIMEOUT_S, read=_page_of_jobs)
                matching |= dict.fromkeys(name for name, tenant, subjects in jobs if matches(subjects, tenant))
                if cursor == 0:
                    break
        return list(matching)

    async def _page(self, key: str, cursor: int, client: Any) -> Any:
        cursor, members = await client.zscan(key, cursor, count=PAGE)
        names = [name.decode() for name, _ in members]
        async with client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hmget(self._job(name), "tenant", "subjects")
            rows = await pipe.execute() if names else []
        return cursor, list(zip(names, rows, strict=True))

    async def erase(self, jobs: Sequence[str]) -> int:
        """Remove jobs with their requests and results, and return how many there were. Raise `StoreUnavailable`."""
        erased = 0
        for at in range(0, len(jobs), PAGE):
            erased += await self._run("ERASE", *jobs[at : at + PAGE], read=replies.count)
        return erased

    def _job(self, identity: str) -> str:
        return f"{self._prefix}job:{identity}"

    async def _row(self, job: str) -> tuple[str, JobState | None]:
        """Return the URL of a job's webhook, empty for none, and its state."""

        def read(row: Any) -> tuple[str, JobState | None]:
            return (row[FIELDS.index("webhook")] or b"").decode(), _parse_state(job, row)

        return await self._store.execute(lambda client: client.hmget(self._job(job), *FIELDS), TIMEOUT_S, read=read)

    async def _run(self, name: str, *arguments: Any, read: replies.Reader[T]) -> T:
        script = self._scripts[name]
        return await self._store.execute(lambda _: script([self._prefix], arguments), TIMEOUT_S, read=read)


def _admittance(reply: Any) -> tuple[Admittance, str]:
    admittance, identity = replies.list_of(replies.text, 2)(reply)
    return Admittance(admittance), identity


def _claimed(records: Any) -> list[ClaimedJob]:
    claimed = []
    for record, token, attempt, age, lost in zip(*(records[i::5] for i in range(5)), strict=True):
        try:
            job = decode_job(replies.data(record))
        except RecordUnreadable:
            continue  # of another version: its claim expires, and another gateway may be able to read it
        job.transmission.sent = bool(lost)  # the worker that went silent may have sent it
        claimed.append(ClaimedJob(job, int(token), int(attempt), int(age) / 1000))
    return claimed


def _attempts(records: Any) -> list[tuple[str, int]]:
    """Return jobs whose webhook is due, each with the number of the attempt."""
    return [(replies.text(job), int(attempt)) for job, attempt in zip(records[::2], records[1::2], strict=True)]


def _page_of_jobs(reply: Any) -> tuple[int, list[tuple[str, str, list[str]]]]:
    """Return the next cursor, and the id, the tenant and the subjects of each job."""
    cursor, rows = reply
    jobs = [
        (name, tenant.decode(), (subjects or b"").decode().split())
        for name, (tenant, subjects) in rows
        if tenant is not None
    ]
    return replies.count(cursor), jobs


def _ms(seconds: float) -> int:
    return round(1000 * seconds)


def _parse_state(identity: str, row: Any) -> JobState | None:
    """Return the state of a job in its `FIELDS`, or None if there is no such job. Raise `StoreUnavailable`."""
    fields = dict(zip(FIELDS, replies.list_of(OPTIONAL, len(FIELDS))(row), strict=True))
    tenant, status, result = fields["tenant"], fields["status"], fields["result"]
    if tenant is None or status is None:
        return None
    try:
        created, started, finished = (float(fields[name] or 0) / 1000 for name in ("created", "started", "finished"))
        error, state = (fields["error"] or b"").decode(errors="replace"), JobStatus(status.decode())
        return JobState(
            id=identity,
            tenant=tenant.decode(),
            status=state,
            created=created,
            started=started,
            finished=finished,
            attempts=int(fields["attempts"] or 0),
            error=error if state.is_final else "",
            result=None if result is None else decode_result(result),
            dead=fields["dead"] == b"1",
        )
    except RecordUnreadable as unreadable:
        raise StoreUnavailable(str(unreadable)) from None
    except ValueError:
        raise StoreUnavailable("a job is unreadable") from None
