"""What workers do about what the store says, with a store and a runner that the test holds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from gateway.errors import StoreUnavailable
from gateway.features.jobs.retry_policy import RetryTerms
from gateway.features.jobs.store import ClaimedJob, Conclusion, Counts, Job, JobResult, LeaseState
from gateway.features.jobs.workers import JobWorkers
from gateway.observability.telemetry import Telemetry
from gateway.priority import Priority
from gateway.tasks import Backoff, restart_on_failure
from tests.fixtures.clock import FakeClock
from tests.fixtures.waiting import until

JOB = Job("job_1", "t", "POST", "/v1/x", "", (), b"", b"", Priority.NORMAL, "")
TERMS = RetryTerms(3, 3600.0, 60.0, 60.0)


class Store:
    """Gives one job; `answering` holds conclusions back."""

    def __init__(self) -> None:
        self.left = [ClaimedJob(JOB, 7, 1, 0.0)]
        self.answering = asyncio.Event()
        self.concluding = asyncio.Event()
        self.concluded: list[Conclusion] = []
        self.back: list[str] = []
        self.beats = 0
        self.down = 0

    async def claim(self, worker: str, limit: int, **how: Any) -> list[ClaimedJob]:
        return [self.left.pop()] if self.left else []

    async def beat(self, worker: str, held: Sequence[tuple[str, int]]) -> list[LeaseState]:
        self.beats += 1
        return [LeaseState.LOST for _ in held] if self.concluding.is_set() else [LeaseState.HELD for _ in held]

    async def conclude(self, job: str, token: int, conclusion: Conclusion) -> bool:
        if self.down:
            self.down -= 1
            raise StoreUnavailable("down")
        self.concluding.set()
        await self.answering.wait()
        self.concluded.append(conclusion)
        return True

    async def requeue(self, job: str, token: int, delay_s: float, *, counted: bool, error: str) -> bool:
        self.back.append(error)
        return True

    async def counts(self) -> Counts:
        return Counts(0, 0, 0, 0, 0, 0.0)

    async def sweep(self, worker: str) -> None:
        pass


class Runner:
    def __init__(self) -> None:
        self.answer = asyncio.Event()
        self.ran = 0

    async def run(self, job: Job) -> JobResult:
        self.ran += 1
        await self.answer.wait()
        return JobResult(200, (), b"ok")


def workers(store: Store, runner: Runner, over: list[str]) -> JobWorkers:
    return JobWorkers(
        "w", store, runner, TERMS, FakeClock(), Telemetry(), lambda: 0.0, over.append, limit=4, visibility_s=0.003
    )  # type: ignore[arg-type]


async def test_a_heartbeat_does_not_interrupt_what_is_just_being_concluded() -> None:
    """To the store such a job is over, so a beat hears that it is lost: it is counted and announced all the same."""
    store, runner, over = Store(), Runner(), list[str]()
    task = asyncio.create_task(workers(store, runner, over).run())
    runner.answer.set()
    await store.concluding.wait()
    seen = store.beats
    await until(lambda: store.beats > seen + 2)
    store.answering.set()
    await until(lambda: over == ["job_1"])
    assert [one.result for one in store.concluded] == [JobResult(200, (), b"ok")]
    task.cancel()
    await asyncio.wait([task])


async def test_an_answer_is_not_lost_while_the_store_is_away(monkeypatch: Any) -> None:
    monkeypatch.setattr("gateway.features.jobs.workers.SETTLE_EVERY_S", 0.0)
    store, runner, over = Store(), Runner(), list[str]()
    store.down = 5
    runner.answer.set()
    store.answering.set()
    task = asyncio.create_task(workers(store, runner, over).run())
    await until(lambda: over == ["job_1"])
    assert (runner.ran, store.down) == (1, 0)
    task.cancel()
    await asyncio.wait([task])


async def test_what_runs_is_given_back_when_the_gateway_stops() -> None:
    store, runner, over = Store(), Runner(), list[str]()
    task = asyncio.create_task(workers(store, runner, over).run())
    await until(lambda: runner.ran == 1)
    task.cancel()
    await asyncio.wait([task])
    assert (store.back, over) == (["the gateway that ran the job was stopped"], [])


async def test_workers_that_fail_take_jobs_again() -> None:
    """An error that nobody has thought of, in what claims as in what keeps what was claimed."""

    class Faulty(Store):
        async def claim(self, worker: str, limit: int, **how: Any) -> list[ClaimedJob]:
            if fails["claim"]:
                fails["claim"] = False
                raise ZeroDivisionError("a fault")
            return await super().claim(worker, limit, **how)

        async def beat(self, worker: str, held: Sequence[tuple[str, int]]) -> list[LeaseState]:
            if fails["beat"]:
                fails["beat"] = False
                raise ZeroDivisionError("a fault")
            return await super().beat(worker, held)

        async def requeue(self, job: str, token: int, delay_s: float, *, counted: bool, error: str) -> bool:
            self.left.append(ClaimedJob(JOB, token + 1, 1, 0.0))
            return await super().requeue(job, token, delay_s, counted=counted, error=error)

    fails = {"claim": True, "beat": True}
    store, runner, over = Faulty(), Runner(), list[str]()
    made = workers(store, runner, over)
    task = asyncio.create_task(restart_on_failure(made.run, Backoff(0.0, 0.0, 60.0)))
    await until(lambda: not fails["claim"] and runner.ran == 1)
    made.wake()
    await until(lambda: runner.ran == 2)
    assert (fails["beat"], store.back) == (False, ["the gateway that ran the job was stopped"])
    runner.answer.set()
    store.answering.set()
    await until(lambda: over == ["job_1"])
    task.cancel()
    await asyncio.wait([task])
