"""What a supervisor does about workers that end by themselves, and workers about a disk that takes nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from gateway import fleet_metrics
from gateway.features.workers.supervisor import FIRST_DELAY_S, STEADY_S, Supervisor, SupervisorPaths, Worker
from gateway.fleet_metrics import WorkerMetrics
from gateway.observability.telemetry import Telemetry
from gateway.tasks import cancel_and_wait
from gateway.worker import VARIABLE
from tests.fixtures.gateways import config_of
from tests.fixtures.waiting import until

WORKER = f"""
import json, os, signal
os.write(json.loads(os.environ["{VARIABLE}"])["told"], b"ready\\nwarm\\n")
signal.pause()
"""


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[Supervisor]:
    """Of one worker. The folder of its figures is not there."""
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": "http://127.0.0.1:9/v1"}})
    with socket.create_server(("127.0.0.1", 0)) as data, socket.create_server(("127.0.0.1", 0)) as admin:
        ground = SupervisorPaths((sys.executable, "-c", WORKER), os.environ, config, "", (data,), admin)
        supervising = Supervisor(ground)
        await supervising.start()
        yield supervising
        await supervising.stop()


def worker_of(supervisor: Supervisor) -> Worker:
    return supervisor._workers[0]


async def test_a_worker_is_started_again_though_its_figures_cannot_be_kept(supervisor: Supervisor) -> None:
    before = worker_of(supervisor)
    before.signal(signal.SIGKILL)
    await until(lambda: worker_of(supervisor) is not before)
    assert await worker_of(supervisor).wait_for_status("ready", 30.0)


async def test_a_worker_that_cannot_be_started_now_is_started_later(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of descriptors, as after a burst of connections to it."""
    pipe, failed = os.pipe, 0

    def none_left() -> tuple[int, int]:
        nonlocal failed
        failed += 1
        if failed == 1:
            raise OSError(24, "Too many open files")
        return pipe()

    monkeypatch.setattr(os, "pipe", none_left)
    before = worker_of(supervisor)
    before.signal(signal.SIGKILL)
    await until(lambda: worker_of(supervisor) is not before)
    assert failed >= 2


async def test_a_worker_that_cannot_be_started_is_tried_less_and_less_often(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the one before it had lived for long."""
    tried: list[float] = []

    def none_left() -> tuple[int, int]:
        tried.append(time.monotonic())
        raise OSError(24, "Too many open files")

    before = worker_of(supervisor)
    before.started_at -= 2 * STEADY_S
    with monkeypatch.context() as patch:
        patch.setattr(os, "pipe", none_left)
        before.signal(signal.SIGKILL)
        await until(lambda: len(tried) == 4)
    pauses = [later - earlier for earlier, later in pairwise(tried)]
    assert all(pause > 0.9 * FIRST_DELAY_S * 2**n for n, pause in enumerate(pauses, 1))


async def test_a_hand_over_that_cannot_start_a_worker_leaves_the_old_one(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left() -> tuple[int, int]:
        raise OSError(24, "Too many open files")

    before = worker_of(supervisor)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pipe", none_left)
        await supervisor.restart_workers()
    assert worker_of(supervisor) is before
    assert supervisor.generation == 2, "who waits for the hand-over is told that it is over"
    await supervisor.restart_workers()
    assert worker_of(supervisor) is not before


def serving_by(supervisor: Supervisor, words: bytes, then: str) -> None:
    """How workers begin from now on."""
    program = f"""
import json, os, signal, sys
os.write(json.loads(os.environ["{VARIABLE}"])["told"], {words!r})
{then}
"""
    supervisor.paths = replace(supervisor.paths, command=(sys.executable, "-c", program))


async def test_a_worker_that_ends_before_it_is_warm_takes_nobodys_place(supervisor: Supervisor) -> None:
    """As where two of them need more memory than there is."""
    before = worker_of(supervisor)
    serving_by(supervisor, b"ready\n", "sys.exit(1)")
    await supervisor.restart_workers()
    assert worker_of(supervisor) is before
    assert before.process.returncode is None


async def test_a_stop_ends_the_worker_that_a_hand_over_has_begun(supervisor: Supervisor, tmp_path: Path) -> None:
    """It listens, and may have requests: who waits for the supervisor's end waits for theirs."""
    note = tmp_path / "pid"
    text = f"open({str(note)!r}, 'w').write(str(os.getpid()) + '.')"
    serving_by(supervisor, b"ready\n", f"{text}\nsignal.pause()")
    handing_over = asyncio.create_task(supervisor.restart_workers())
    await until(lambda: note.exists() and note.read_text().endswith("."))
    await cancel_and_wait(handing_over)
    await supervisor.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()[:-1]), 0)


async def test_what_a_hand_over_has_put_in_place_stays_there(supervisor: Supervisor) -> None:
    """A worker ends by itself in the moment in which it is replaced: the one that is started for it is one too many."""
    before = worker_of(supervisor)
    await supervisor.restart_workers()
    there = worker_of(supervisor)
    await supervisor._respawn(0, before)
    assert worker_of(supervisor) is there


async def test_figures_that_cannot_be_written_now_are_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a full disk."""
    monkeypatch.setattr(fleet_metrics, "FIGURES_EVERY_S", 0.01)
    telemetry, folder, sampled = Telemetry(), tmp_path / "figures", 0

    async def sample() -> None:
        nonlocal sampled
        sampled += 1

    async with AsyncExitStack() as stack:
        WorkerMetrics(telemetry, folder).begin(stack, sample)
        await until(lambda: sampled > 2)
        folder.mkdir()
        await until((folder / str(os.getpid())).exists)
        there = sampled
        await until(lambda: sampled > there)  # so that write is over
        folder.rename(tmp_path / "gone")
    said = [record.getMessage() for record in caplog.records if record.name == "nearhit.workers"]
    assert said == ["the metrics of this process cannot be written"] * 2
