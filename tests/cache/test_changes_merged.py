"""Figures of several processes as one."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from gateway.fleet_metrics import COMPACT_AT, WorkerMetrics, compact
from gateway.observability.aggregation import merge, pack_metrics
from gateway.observability.telemetry import Telemetry


def telemetry(requests: int, *, inflight: float = 0.0, lag: float = 0.0) -> Telemetry:
    made = Telemetry()
    made.requests.add("default", "openai", "exact", "200", amount=requests)
    made.request_seconds.observe(0.001, "default", "exact")
    made.backend_inflight.set("main", value=inflight)
    made.replication.lag_seconds.set(value=lag)
    made.store_up.set(value=1.0)
    return made


def test_what_is_counted_adds_up_and_of_the_rest_the_worst_or_the_sum_counts() -> None:
    own, other, gone = telemetry(3, inflight=1, lag=0.5), telemetry(4, inflight=2, lag=2.0), telemetry(5, inflight=9)
    other.store_up.set(value=0.0)
    into = Telemetry()
    for _ in range(2):  # again, as before each scrape
        merge(into, own, [pack_metrics(other)], [pack_metrics(gone)])
    assert into.requests.total() == 12
    assert sum(into.request_seconds.counts["default", "exact"]) == 3
    assert into.backend_inflight.values == {("main",): 3}  # what has ended has nothing in flight
    assert (into.replication.lag_seconds.values[()], into.store_up.values[()]) == (2.0, 0.0)
    assert own.requests.total() == 3


def test_what_cannot_be_read_is_left_out() -> None:
    into = Telemetry()
    merge(into, telemetry(3), [b"", b"\xc1"], [pack_metrics(telemetry(1))[:50]])
    assert into.requests.total() == 3


async def test_what_ended_processes_have_left_is_folded_and_counted_once(tmp_path: Path) -> None:
    for number in range(COMPACT_AT + 3):
        (tmp_path / str(2**22 + 1 + number)).write_bytes(pack_metrics(telemetry(1)))
    (tmp_path / str(os.getppid())).write_bytes(pack_metrics(telemetry(10)))
    for _ in range(2):
        compact(tmp_path)
    workers = WorkerMetrics(telemetry(100), tmp_path)

    async def nothing() -> None:
        await asyncio.sleep(0)

    await workers.sampling_all(nothing)()
    assert workers.telemetry.requests.total() == 110 + COMPACT_AT + 3
    assert len([path for path in tmp_path.iterdir() if not path.suffix]) == 2
