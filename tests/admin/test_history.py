"""The dashboard's history: bounded, of all gateways, and there again after a restart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.adapters.redis.client import connect
from gateway.adapters.redis.store import RedisStore
from gateway.adapters.redis.timeline import BATCH, RedisTimeline
from gateway.admin.history import SPANS
from gateway.observability.metrics import LATENCY_BUCKETS, quantile_of
from gateway.observability.timeline import COARSE, FINE, MAX_SERIES, MIDDLE, UP, Timeline, quantiles
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import PATIENT_S, Served, config_of, gateway_of
from tests.fixtures.stores import OutsideServer
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

NOW = 1_790_000_000.0


async def history(served: Served, span: str) -> Any:
    async with served.session.get(f"{served.admin_url}/admin/history?span={span}") as response:
        assert response.status == 200
        return await response.json()


def total(values: Sequence[float | None]) -> float:
    return sum(value or 0.0 for value in values)


def test_a_slot_adds_up_and_an_old_one_is_overwritten() -> None:
    timeline = Timeline()
    for at in (NOW, NOW + 1, NOW + FINE.step_s * FINE.slots):
        timeline.add(at, {"verdict.exact": 2.0, UP: 1.0})
    first = timeline.window(FINE, FINE.slots, NOW + 1).total("verdict.exact")
    assert np.nansum(first) == 0.0  # the ring has come round
    assert np.nansum(timeline.window(COARSE, 24, NOW + 3600).total("verdict.exact")) == 6.0


def test_of_a_level_the_last_one_counts() -> None:
    timeline = Timeline()
    for value in (0.3, 0.1):
        timeline.add(NOW, {"=wrong.share.default": value, UP: 1.0})
    assert timeline.window(MIDDLE, 1, NOW).level("=wrong.share.default").tolist() == [0.1]


def test_more_series_than_are_kept_are_left_out() -> None:
    timeline = Timeline()
    timeline.add(NOW, {f"verdict.{i}": 1.0 for i in range(MAX_SERIES + 100)})
    window = timeline.window(COARSE, 720, NOW)
    assert window.rows.shape == (720, MAX_SERIES)
    assert len(window.named("verdict.")) == MAX_SERIES


@given(
    st.lists(st.integers(0, 40), min_size=len(LATENCY_BUCKETS) + 1, max_size=len(LATENCY_BUCKETS) + 1),
    st.sampled_from([0.5, 0.95]),
)
def test_quantiles_of_many_slots_are_those_of_each(counts: list[int], q: float) -> None:
    (found,) = quantiles(np.array([counts], dtype=float), LATENCY_BUCKETS, q)
    one = quantile_of(counts, LATENCY_BUCKETS, q)
    assert np.isnan(found) if one is None else found == pytest.approx(one)


async def test_slots_that_nobody_has_written_are_not_read(outside_store: OutsideServer) -> None:
    """A start reads a thousand slots, and a new store has none of them."""

    def hashes_read() -> int:
        return int(outside_store.client.info("commandstats").get("cmdstat_hgetall", {"calls": 0})["calls"])

    client = connect(outside_store.url, PATIENT_S)
    history = RedisTimeline(RedisStore(client, embedder="e", timeout_s=PATIENT_S, clock=FakeClock()))
    slots, before = [(MIDDLE.step_s, number) for number in range(BATCH + 1)], hashes_read()
    assert await history.read(slots) == {}
    assert hashes_read() == before
    await history.write({slots[0]: {"a": 1.0}}, {MIDDLE.step_s: 10**10})
    assert await history.read(slots) == {slots[0]: {history.name: {"a": 1.0}}}
    assert hashes_read() == before + BATCH
    await client.aclose()


async def test_what_was_refused_before_it_met_a_route_is_no_lookup(served: Served) -> None:
    for _ in range(2):
        await served.chat("hi")
    assert (await served.post("/v1/chat/completions", b"{")).status == 400
    assert (await served.get("/v1/jobs/job_1")).status == 404
    assert (await served.post("/v1/feedback", {"id": "x", "verdict": "wrong"})).status >= 400
    served.gateway.dashboard.history_recorder.record()
    report, told = served.gateway.stats.report(), await history(served, "1h")
    assert (report["hit_rate"], report["verdicts"]["miss"], report["unrouted"]) == (0.5, 4, 3)
    assert (total(told["verdicts"]["miss"]), total(told["unrouted"])) == (4, 3)


@pytest.mark.parametrize("span", SPANS)
async def test_every_span_has_its_points_and_is_null_where_nobody_watched(served: Served, span: str) -> None:
    await served.chat("hi")
    await served.chat("hi")
    served.gateway.dashboard.history_recorder.record()
    told = await history(served, span)
    resolution, slots = SPANS[span]
    assert told["step_s"] == resolution.step_s
    assert len(told["at"]) == len(told["verdicts"]["exact"]) == slots
    assert told["verdicts"]["exact"][0] is None
    assert total(told["verdicts"]["exact"]) == total(told["verdicts"]["miss"]) == 1
    assert total(told["saved"]["tokens"]) == 12  # in this slot, or in the one before if it has just begun
    assert total(told["latency_ms"]["exact"]["p50"]) > 0
    assert set(told["routed"]) == {"none.only-backend"}


async def test_another_span_is_refused_with_those_there_are(served: Served) -> None:
    async with served.session.get(f"{served.admin_url}/admin/history?span=1y") as response:
        assert response.status == 400
        assert (await response.json())["error"] == "span: expected one of: 1h, 6h, 24h, 7d, 30d"


async def test_it_is_there_after_a_restart_and_goes_on(upstream: Upstream, tmp_path: Path) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    for expected in (1, 2):
        async with gateway_of(config) as served:
            await served.chat(f"question {expected}")
            history_recorder = served.gateway.dashboard.history_recorder
            await until(lambda: history_recorder.is_loaded)  # noqa: B023
            history_recorder.record()
            for span in ("24h", "30d"):
                assert total((await history(served, span))["verdicts"]["miss"]) == expected
            await history_recorder.flush()  # told twice is not counted twice
            assert total((await history(served, "30d"))["verdicts"]["miss"]) == expected


async def test_gateways_on_one_store_see_what_all_of_them_do(
    upstream: Upstream, tmp_path: Path, outside_store: Any
) -> None:
    backends = {"main": {"adapter": "openai", "url": upstream.url}}
    store = {"url": outside_store.url, "timeout": "10s"}
    async with (
        gateway_of(config_of(tmp_path / "a", backends, store=store)) as one,
        gateway_of(config_of(tmp_path / "b", backends, store=store)) as other,
    ):
        await one.chat("a question of one")
        await other.chat("a question of the other")
        for served in (one, other):
            served.gateway.dashboard.history_recorder.record()
            await served.gateway.dashboard.history_recorder.flush()
        assert total((await history(other, "24h"))["verdicts"]["miss"]) == 2
        assert total((await history(other, "1h"))["verdicts"]["miss"]) == 1  # its own


async def test_what_the_store_did_not_hear_is_said_later(served: Served) -> None:
    history_recorder, clock = served.gateway.dashboard.history_recorder, FakeClock()
    history_recorder._clock = clock
    for _ in range(100):  # five minutes each, and no store
        history_recorder.record()
        clock.advance(300)
    assert len(history_recorder._own) <= 64
