"""Jobs that nobody waits for."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from gateway.tasks import Backoff, cancel_and_wait, restart_on_failure, run_in
from tests.fixtures.waiting import until


async def test_a_job_that_fails_says_so_at_once_and_not_when_the_gateway_ends(caplog: pytest.LogCaptureFixture) -> None:
    async def job() -> None:
        raise ZeroDivisionError("a fault")

    async with AsyncExitStack() as stack:
        run_in(stack, job())
        await until(lambda: caplog.records)
        (record,) = caplog.records
        assert (record.levelname, record.getMessage()) == ("ERROR", "a part of the gateway has ended")
        assert "a fault" in caplog.text
        assert record.__dict__["fields"]["job"].endswith("job")


async def test_a_job_that_is_ended_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with AsyncExitStack() as stack:
        run_in(stack, asyncio.Event().wait())  # type: ignore[arg-type]
        await asyncio.sleep(0)
    assert not caplog.records


async def test_a_cancellation_that_is_lost_is_said_again() -> None:
    lost = 0

    async def job() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                lost += 1
                if lost > 1:
                    raise

    task = asyncio.create_task(job())
    await asyncio.sleep(0)
    await cancel_and_wait(task)
    assert lost == 2


async def test_a_job_that_fails_is_begun_again_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    begun = 0

    async def job() -> None:
        nonlocal begun
        begun += 1
        if begun < 3:
            raise ZeroDivisionError("a fault")
        await asyncio.Event().wait()

    async with AsyncExitStack() as stack:
        run_in(stack, restart_on_failure(job, Backoff(0.001, 0.004, 60.0)))
        await until(lambda: begun == 3)
    said = [record.__dict__["fields"] for record in caplog.records if record.name == "nearhit"]
    assert [fields["again_in_s"] for fields in said] == [0.001, 0.002]
    assert all(fields["job"].endswith("job") for fields in said)
    assert begun == 3, "who ends it ends it"
