"""An embedded store that is killed is started again: nothing is lost to it but time, and nothing comes back with it.

The stores are real processes that are really killed. Where writes are lost with them, the end of the file is cut off,
as when the disk was slow.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from gateway.adapters.redis import embedded_valkey
from gateway.adapters.redis.embedded_valkey import EmbeddedValkey, LoadingProbe, ValkeySupervisor
from gateway.adapters.system.child_process import ChildFailed
from gateway.entries import Entry
from gateway.observability.json_logging import EVERY_S, RateLimitedLog
from gateway.tasks import Backoff
from tests.features.jobs.asking import over, submit
from tests.fixtures.gateways import EXACT_CACHE, Answer, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

NO_FRONT = {"front_size": "1kB"}  # too small for an entry: every hit is the store's
MEMORY = 2**26


def gateway_on(upstream: Upstream, path: Path) -> Any:
    config = config_of(path, {"main": {"adapter": "openai", "url": upstream.url}}, store=NO_FRONT)
    return gateway_of(config, EXACT_CACHE)


@pytest.fixture
async def embedded(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    async with gateway_on(upstream, tmp_path) as served:
        await until(lambda: served.gateway.parts.evictions.comparisons > 0)
        yield served


def store_of(served: Served) -> ValkeySupervisor:
    server = served.gateway.stores.server
    assert server is not None
    return server


def restarts(served: Served) -> float:
    return float(served.gateway.parts.telemetry.store_restarts.total())


def written(path: Path) -> Path:
    """The file to which the server appends what is written."""
    (found,) = (path / "store" / "appendonlydir").glob("*.incr.aof")
    return found


def entries_written(path: Path) -> int:
    """The number of entries in that file. Valkey puts a write off while the disk is busy with an fsync."""
    return len(set(re.findall(rb"nearhit:1:entry:[\w:]+", written(path).read_bytes())))


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


async def back(served: Served, times: int = 1) -> None:
    await until(lambda: restarts(served) == times)
    await until(lambda: served.gateway.parts.evictions.comparisons > 0)


def is_hit(answer: Answer) -> bool:
    return answer.cache_status.startswith("nearhit; hit")


async def test_a_killed_store_comes_back_and_hits_with_it(
    embedded: Served, upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(5):
        await embedded.chat(f"question {number}")
    await until(lambda: entries_written(tmp_path) == 5)
    pid, stop = store_of(embedded).pid, asyncio.Event()

    async def busy() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            assert (await embedded.chat(f"question {number % 7}")).status == 200

    asking = [asyncio.create_task(busy()) for _ in range(3)]
    with caplog.at_level(logging.INFO, "nearhit"):
        os.kill(pid, signal.SIGKILL)
        await back(embedded)
    stop.set()
    await asyncio.gather(*asking)
    assert store_of(embedded).pid != pid
    called = len(upstream.calls)
    for number in range(5):
        assert is_hit(await embedded.chat(f"question {number}"))
    assert len(upstream.calls) == called
    ended, again = (
        vars(line)["fields"]
        for line in caplog.records
        if line.message.startswith("the embedded store") and vars(line).get("fields", {}).get("pid")
    )
    assert ended["ended_with"] == "signal SIGKILL"
    assert Path(ended["log"]).is_file()
    assert again["pid"] == store_of(embedded).pid
    assert again["away_s"] >= embedded_valkey.FIRST_PAUSE_S


async def test_a_removal_that_was_lost_with_the_store_holds_and_is_written_again(
    embedded: Served, upstream: Upstream, tmp_path: Path
) -> None:
    await embedded.chat("hi")
    assert is_hit(await embedded.chat("hi"))
    await until(lambda: entries_written(tmp_path) == 1)
    before = written(tmp_path).stat().st_size
    async with embedded.session.post(embedded.admin_url + "/admin/cache/purge", json={"all": True}) as answer:
        assert (await answer.json())["removed"] == 1
    os.kill(store_of(embedded).pid, signal.SIGKILL)
    os.truncate(written(tmp_path), before)  # in the same step: nobody has started it again yet
    await back(embedded)
    with Redis.from_url(store_of(embedded).url) as store:
        assert len(store.keys("nearhit:1:entry:*")) == 1, "it is there again"
        assert not is_hit(await embedded.chat("hi"))
        await until(lambda: store.hlen("nearhit:1:bans") == 1)
    assert len(upstream.calls) == 2


async def test_what_the_store_has_lost_is_a_miss_and_what_it_has_again_is_asked_for(
    embedded: Served, upstream: Upstream, tmp_path: Path
) -> None:
    await embedded.chat("kept")
    await until(lambda: entries_written(tmp_path) == 1)
    before = written(tmp_path).stat().st_size
    await embedded.chat("lost")
    parts = embedded.gateway.parts
    for name in list(parts.evictions.ledger.names()):
        entry = await parts.store.get(name)
        if isinstance(entry, Entry) and len(parts.evictions.ledger) == 2 and b"kept" in repr(entry).encode():
            await parts.store.delete([name])
            parts.evictions.ledger.drop(name)  # as an eviction does it
    assert len(parts.evictions.ledger) == 1
    os.kill(store_of(embedded).pid, signal.SIGKILL)
    os.truncate(written(tmp_path), before)
    await back(embedded)
    assert len(parts.evictions.ledger) == 1
    assert is_hit(await embedded.chat("kept"))
    assert not is_hit(await embedded.chat("lost"))
    assert is_hit(await embedded.chat("lost"))


async def test_jobs_go_on(embedded: Served, upstream: Upstream, tmp_path: Path) -> None:
    upstream.gate.clear()
    before = await submit(embedded, "before")
    await upstream.arrived.wait()
    # Without `fsync` the server puts a write off for up to two seconds while the disk is busy (decision 2).
    await until(lambda: before.encode() in written(tmp_path).read_bytes())
    os.kill(store_of(embedded).pid, signal.SIGKILL)
    await back(embedded)
    upstream.gate.set()
    assert (await over(embedded, before))["status"] == "completed"
    assert (await over(embedded, await submit(embedded, "after")))["status"] == "completed"


async def test_a_store_that_cannot_be_started_at_first_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(embedded_valkey, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(embedded_valkey, "LONGEST_PAUSE_S", 0.05)
    told = asyncio.Event()
    store = await ValkeySupervisor.start(tmp_path, max_memory=MEMORY)
    store.on_restart = told.set
    try:
        with Redis.from_url(store.url) as client:
            client.set("a", 1)
        whole = written(tmp_path).read_bytes()
        os.kill(store.pid, signal.SIGKILL)
        written(tmp_path).write_bytes(b"no commands\r\n" + whole)
        await until(lambda: sum("cannot be started again yet" in line.message for line in caplog.records) > 1)
        assert not told.is_set()
        (tmp_path / "whole").write_bytes(whole)
        (tmp_path / "whole").replace(written(tmp_path))  # at once: one is just being started
        async with asyncio.timeout(120):
            await told.wait()
        with Redis.from_url(store.url) as client:
            assert client.get("a") == b"1"
    finally:
        await store.stop()


async def test_the_first_start_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_valkey, "LOCK_TIMEOUT_S", 0.05)
    other = await EmbeddedValkey.start(tmp_path, max_memory=MEMORY)
    try:
        with pytest.raises(ChildFailed, match="of another gateway still runs"):
            await ValkeySupervisor.start(tmp_path, max_memory=MEMORY)
    finally:
        await other.stop()


@pytest.mark.usefixtures("killed_for_good")
async def test_a_stop_before_it_is_started_again_ends_it(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_valkey, "STOP_S", 3600.0)  # nor is its end only given up
    async with asyncio.timeout(120), gateway_on(upstream, tmp_path) as served:
        pid = store_of(served).pid
        os.kill(pid, signal.SIGKILL)
        await until(lambda: gone(pid))
    again = await EmbeddedValkey.start(tmp_path, max_memory=MEMORY)  # nobody holds the folder
    await again.stop()


async def test_a_stop_while_it_is_started_again_ends_both(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It still reads its file."""
    looked = asyncio.Event()
    started: list[int] = []

    async def reads_on(reading: LoadingProbe) -> bool:
        told = await reading._query(b"INFO server\r\n", 8192)
        started.append(int(told.partition(b"process_id:")[2].split()[0]))
        looked.set()
        return False

    async with gateway_on(upstream, tmp_path) as served:
        monkeypatch.setattr(LoadingProbe, "is_answering", reads_on)
        os.kill(store_of(served).pid, signal.SIGKILL)
        async with asyncio.timeout(120):
            await looked.wait()
    assert restarts(served) == 0
    assert all(map(gone, started))


async def test_the_log_says_once_that_the_store_is_away_and_once_that_it_is_back(
    embedded: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(message: str) -> list[dict[str, Any]]:
        return [vars(line)["fields"] for line in caplog.records if line.message.startswith(message)]

    errors, go_on = embedded.gateway.parts.telemetry.store_errors, asyncio.Event()
    launch = store_of(embedded)._launch

    async def later() -> EmbeddedValkey:
        await go_on.wait()
        return await launch()

    monkeypatch.setattr(store_of(embedded), "_launch", later)
    with caplog.at_level(logging.INFO, "nearhit"):
        begun = time.monotonic()
        os.kill(store_of(embedded).pid, signal.SIGKILL)
        while errors.total() < 200:
            await asyncio.gather(*(embedded.chat(f"question {number}") for number in range(20)))
        go_on.set()
        await back(embedded)
        failed = errors.total()
        async with asyncio.timeout(120):  # the breaker lets somebody ask
            while not said("the store is back"):
                await embedded.chat("hi")
        took = time.monotonic() - begun
    assert failed > 20
    assert len(said("the store is away")) == len(said("the store is back")) == 1
    lines = said("lookup failed") + said("an answer was not stored")
    assert 1 <= len(lines) <= 1 + took / EVERY_S


def test_what_was_not_said_is_counted_in_the_next_line(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    seldom = RateLimitedLog(lambda: now)
    for now in (0.0, 0.1, 0.9, 1.1, 1.2, 2.2, 9.0):
        seldom.warn(logging.getLogger("nearhit.store"), "lookup failed", {"at": now})
    fields = [vars(line)["fields"] for line in caplog.records]
    assert fields == [{"at": 0.0}, {"at": 1.1, "more": 2}, {"at": 2.2, "more": 1}, {"at": 9.0}]


def test_pauses_double_up_to_a_bound_and_begin_anew_after_a_steady_life() -> None:
    pauses = Backoff(0.5, 3.0, 60.0)
    assert [pauses.next_delay(1.0) for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert [pauses.next_delay(61.0), pauses.next_delay(1.0)] == [0.5, 1.0]
