"""Claim, run, cancel and requeue the jobs of this gateway. `retry_policy` decides what follows an attempt."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from gateway.errors import StoreUnavailable
from gateway.features.jobs.retry_policy import ConcurrencyPace, RetryDecision, RetryTerms, decide, sent_once
from gateway.features.jobs.runner import NoAnswer, Runner
from gateway.features.jobs.store import ClaimedJob, Conclusion, JobResult, JobStatus, JobStore, LeaseState
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.tasks import cancel_and_wait, start_task

LOG = logging.getLogger("nearhit.jobs")
BEAT_S = 1.0  # seconds until jobs that other gateways cancel or accept are noticed here
SWEEP_EVERY = 60  # beats
MAX_CLAIMED = 16  # jobs in one claim: with 1 MiB each they are one reply of the store
SETTLE_EVERY_S = 1.0


@dataclass(slots=True)
class _RunningJob:
    claimed: ClaimedJob
    task: asyncio.Task[None]
    settling: bool = False  # it has a response and is reporting it to the store, which no heartbeat may interrupt


class JobWorkers:
    """`JobWorkers` runs up to `limit` jobs at once. With 0 it runs none.

    A worker that sends no heartbeat keeps its jobs for `visibility_s` seconds. `on_job_end` is called with the id of
    each job that ends here.
    """

    def __init__(
        self,
        name: str,
        store: JobStore,
        runner: Runner,
        terms: RetryTerms,
        clock: Clock,
        telemetry: Telemetry,
        rng: Callable[[], float],
        on_job_end: Callable[[str], None],
        *,
        limit: int,
        visibility_s: float,
    ) -> None:
        self._name = name
        self._store = store
        self._runner = runner
        self._terms = terms
        self._clock = clock
        self._telemetry = telemetry
        self._rng = rng
        self._on_job_end = on_job_end
        self._limit = limit
        self._visibility_s = visibility_s
        self._pace = ConcurrencyPace(limit)
        self._running: dict[str, _RunningJob] = {}
        self._wake = asyncio.Event()
        self._lost_checked_at = 0.0

    @property
    def running(self) -> int:
        return len(self._running)

    def wake(self) -> None:
        """Look for jobs now."""
        self._wake.set()

    def give_up(self, job: str) -> None:
        """Cancel the call of a job that was cancelled, without waiting for the next heartbeat."""
        running = self._running.get(job)
        if running is not None and not running.settling:
            running.task.cancel()

    async def run(self) -> None:
        """Run jobs until cancelled or failed, then requeue unfinished jobs, so that others can start them at once.

        It may be called again.
        """
        beats = start_task(self._heartbeat())
        try:
            while True:
                await self._take()
                with suppress(TimeoutError):
                    async with asyncio.timeout(BEAT_S):
                        await self._wake.wait()
                self._wake.clear()
                if beats.done():
                    beats.result()  # raises: without heartbeats, other gateways would claim the jobs of this one
        finally:
            await cancel_and_wait(beats)
            await self._requeue_all()

    async def _take(self) -> None:
        """Claim jobs until there is no room, or no job left."""
        while (room := min(MAX_CLAIMED, self._pace.room(len(self._running), self._clock.monotonic()))) > 0:
            now = self._clock.monotonic()
            lost = now - self._lost_checked_at >= BEAT_S
            if lost:
                self._lost_checked_at = now
            try:
                claims = await self._store.claim(
                    self._name, room, visibility_s=self._visibility_s, attempts=self._terms.attempts,
                    dead_s=self._terms.dead_s, lost=lost,
                )  # fmt: skip
            except StoreUnavailable:
                return
            for claimed in claims:
                self._start(claimed)
            if len(claims) < room:
                return

    def _start(self, claimed: ClaimedJob) -> None:
        previous = self._running.get(claimed.job.id)
        if previous is not None:  # our own claim had expired while the store was unavailable
            previous.task.cancel()
        task = asyncio.create_task(self._work(claimed))
        self._running[claimed.job.id] = _RunningJob(claimed, task)
        task.add_done_callback(lambda _: self._ended(claimed))

    def _ended(self, claimed: ClaimedJob) -> None:
        running = self._running.get(claimed.job.id)
        if running is not None and running.claimed is claimed:
            del self._running[claimed.job.id]
        self._wake.set()

    async def _work(self, claimed: ClaimedJob) -> None:
        started = self._clock.monotonic()
        if claimed.attempt == 1:
            self._telemetry.job_wait_seconds.observe(claimed.age_s)
        try:
            result = await self._result(claimed)
        except Exception:
            LOG.exception("a job failed inside the gateway", extra={"fields": {"job": claimed.job.id}})
            result = "internal error of the gateway"
        decision = self._decide(claimed, result, started)
        await self._settle(claimed, decision, started)

    async def _result(self, claimed: ClaimedJob) -> JobResult | Conclusion | str:
        try:
            return await self._runner.run(claimed.job)
        except NoAnswer as error:
            if error.final:
                return Conclusion(JobStatus.FAILED, None, str(error), self._terms.result_s)
            return str(error)

    def _decide(
        self, claimed: ClaimedJob, result: JobResult | Conclusion | str, started: float
    ) -> Conclusion | RetryDecision:
        now = self._clock.monotonic()
        if isinstance(result, Conclusion):
            return result
        age_s = claimed.age_s + now - started
        decision = decide(
            result, claimed.attempt, age_s, self._terms, self._rng(), final=claimed.job.transmission.final
        )
        if isinstance(decision, RetryDecision) and not decision.counted:
            self._pace.back_off(started, now, decision.delay_s)
        elif isinstance(decision, Conclusion):
            self._pace.grow()
        return decision

    async def _settle(self, claimed: ClaimedJob, decision: Conclusion | RetryDecision, started: float) -> None:
        """Report the decision until the store accepts it. Heartbeats keep the claim meanwhile."""
        job, token = claimed.job.id, claimed.token
        running = self._running.get(job)
        if running is not None and running.claimed is claimed:
            running.settling = True
        while True:
            try:
                if isinstance(decision, RetryDecision):
                    is_accepted = await self._store.requeue(
                        job, token, decision.delay_s, counted=decision.counted, error=decision.error
                    )
                else:
                    is_accepted = await self._store.conclude(job, token, decision)
                break
            except StoreUnavailable:
                await asyncio.sleep(SETTLE_EVERY_S)
        if not is_accepted:
            self._telemetry.jobs.add("fenced")
            return
        if isinstance(decision, RetryDecision):
            self._telemetry.jobs.add("retried" if decision.counted else "postponed")
            return
        self._telemetry.jobs.add("dead" if decision.dead else decision.status.value)
        self._telemetry.job_seconds.observe(claimed.age_s + self._clock.monotonic() - started, decision.status.value)
        self._on_job_end(job)

    async def _heartbeat(self) -> None:
        """Send heartbeats, and do periodic maintenance."""
        interval_s = min(BEAT_S, self._visibility_s / 3)
        beats = 0
        while True:
            await asyncio.sleep(interval_s)
            leases = [(name, running_job.claimed.token) for name, running_job in self._running.items()]
            with suppress(StoreUnavailable):
                if leases:
                    self._cancel_lost(leases, await self._store.beat(self._name, leases))
                if beats % SWEEP_EVERY == 0:
                    await self._store.sweep(self._name)
                if beats % 5 == 0:
                    await self.sample()
            beats += 1

    def _cancel_lost(self, leases: list[tuple[str, int]], holds: list[LeaseState]) -> None:
        for (name, token), hold in zip(leases, holds, strict=True):
            running_job = self._running.get(name)
            # A job that is being concluded appears lost too, because we have just concluded it.
            if (
                hold is LeaseState.LOST
                and running_job is not None
                and running_job.claimed.token == token
                and not running_job.settling
            ):
                running_job.task.cancel()

    async def sample(self) -> None:
        """Update the gauges. Raise `StoreUnavailable`."""
        counts = await self._store.counts()
        for state in ("queued", "running", "dead", "webhooks"):
            self._telemetry.jobs_held.set(state, value=float(getattr(counts, state)))
        self._telemetry.job_bytes.set(value=counts.bytes)
        self._telemetry.job_oldest_seconds.set(value=counts.oldest_s)

    async def _requeue_all(self) -> None:
        for running in list(self._running.values()):
            await cancel_and_wait(running.task)
            error = "the gateway that ran the job was stopped"
            job, token = running.claimed.job.id, running.claimed.token
            with suppress(StoreUnavailable):  # its claim expires instead
                if running.claimed.job.transmission.final:
                    dead = Conclusion(JobStatus.FAILED, None, sent_once(error), self._terms.dead_s, dead=True)
                    await self._store.conclude(job, token, dead)
                else:
                    await self._store.requeue(job, token, 0.0, counted=False, error=error)
