"""What a gateway says of an event loop that stands still."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.observability.event_loop_monitor import (
    IDLE_TICK_S,
    NO_CODE,
    STALL_S,
    TICK_S,
    Cause,
    EventLoopMonitor,
    StackSample,
    Stall,
    cause_of,
    lateness_s,
    next_tick,
    sample_stack,
)
from gateway.observability.telemetry import Telemetry
from tests.fixtures.gateways import Served
from tests.fixtures.waiting import until

LONGEST_S = 20.0
HERE = f"{__name__}:stand_still:"


def stand_still(watch: EventLoopMonitor) -> None:
    """Blocks until the thread has looked, and seen it here."""
    began = time.monotonic()
    while time.monotonic() < began + LONGEST_S:
        at, stack = watch._stack_sample
        if at == watch._previous.at:
            if stack and stack[0].startswith(HERE):
                return
            watch.reset()  # it looks once a tick, and has: this had no processor on the way here
        time.sleep(0.005)


def said(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "nearhit.loop"]


async def test_a_call_that_blocks_is_counted_measured_and_named(caplog: pytest.LogCaptureFixture) -> None:
    telemetry = Telemetry()
    watch = EventLoopMonitor(telemetry)
    with caplog.at_level(logging.WARNING, "nearhit.loop"):
        async with AsyncExitStack() as stack:
            watch.begin(stack)
            stand_still(watch)
            await until(lambda: watch.last is not None)
    assert watch.longest is not None
    assert watch.longest.seconds > STALL_S
    assert (watch.longest.where or "").startswith(HERE)
    assert telemetry.loop_stalls.total() >= 1
    (line,) = said(caplog)
    assert line.message == "the event loop stood still"
    assert line.fields["where"] == watch.shown()["longest"]["where"]  # type: ignore[attr-defined]


@pytest.fixture
def collections() -> Iterator[set[str]]:
    """Functions in which the collector ran, while it runs as often as it can."""
    found, threshold = set[str](), gc.get_threshold()

    def note(phase: str, info: dict[str, int]) -> None:
        found.add(sys._getframe(1).f_code.co_name)

    gc.callbacks.append(note)
    gc.set_threshold(1, 1, 1)
    yield found
    gc.set_threshold(*threshold)
    gc.callbacks.remove(note)


def test_the_collector_does_not_run_while_a_stack_is_sampled(collections: set[str]) -> None:
    """In CPython 3.11 its finalizers could let the other thread go on: both then waited for ever."""
    inside, end = threading.Event(), threading.Event()

    def deep(calls: int) -> None:
        if calls:
            deep(calls - 1)
        else:
            inside.set()
            end.wait(LONGEST_S)

    thread = threading.Thread(target=deep, args=(20,))
    thread.start()
    assert inside.wait(LONGEST_S)
    assert thread.ident is not None
    collections.clear()
    stack = sample_stack(thread.ident)
    end.set()
    thread.join()
    assert any(frame.startswith(f"{__name__}:") for frame in stack)
    assert not collections & {"sample_stack", "stack_of"}
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        sample_stack(threading.get_ident())
        assert not gc.isenabled()
    finally:
        gc.enable()


async def test_the_log_has_one_line_a_minute_however_often_the_loop_stands_still(
    caplog: pytest.LogCaptureFixture,
) -> None:
    telemetry = Telemetry()
    watch = EventLoopMonitor(telemetry)
    with caplog.at_level(logging.WARNING, "nearhit.loop"):
        async with AsyncExitStack() as stack:
            watch.begin(stack)
            for number in (1, 2, 3):
                stand_still(watch)
                await until(lambda: telemetry.loop_stalls.total() >= number)  # noqa: B023
    assert len(said(caplog)) == 1


async def test_a_gateway_tells_of_its_stalls_on_the_admin_port(served: Served) -> None:
    watch = served.gateway.parts.loop_monitor
    stand_still(watch)
    await until(lambda: watch.last is not None)
    said = served.gateway.stats.report()
    assert sum(said["loop_stalls"].values()) >= 1
    assert said["loop"]["longest"]["ms"] > 1e3 * STALL_S


def test_where_it_stood_is_left_out_where_nobody_knows() -> None:
    assert Stall(0.03, Cause.BUSY, None).as_json() == {"ms": 30.0, "cause": "busy"}
    assert Stall(0.03, Cause.STARVED, ()).as_json()["where"] == NO_CODE
    assert Stall(0.03, Cause.BUSY, ("json:loads:1", "gateway.a:f:2")).as_json()["where"] == "gateway.a:f:2"
    assert Stall(0.03, Cause.BUSY, ("json:loads:1",)).as_json()["where"] == "json:loads:1"


async def test_the_log_names_no_place_of_a_stall_that_nobody_saw(caplog: pytest.LogCaptureFixture) -> None:
    watch = EventLoopMonitor(Telemetry())
    with caplog.at_level(logging.WARNING, "nearhit.loop"):
        watch._record_stall(Stall(0.03, Cause.BUSY, None), 100.0)
    (record,) = [record for record in caplog.records if record.name == "nearhit.loop"]
    assert record.fields == {"ms": 30.0, "cause": "busy", "unsaid": 0}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("ran", "starved", "cause"),
    [(0.05, 0.01, Cause.BUSY), (0.01, 0.05, Cause.STARVED), (0.01, 0.01, Cause.WAITING)],
)
def test_the_cause_is_what_took_most_of_the_time(ran: float, starved: float, cause: Cause) -> None:
    before = StackSample(10.0, 1.0, 2.0)
    assert cause_of(before, StackSample(10.07, 1.0 + ran, 2.0 + starved)) is cause


@given(st.floats(0, 60), st.floats(0, 60), st.sampled_from((TICK_S, IDLE_TICK_S)))
def test_a_loop_is_never_early(at: float, after: float, tick: float) -> None:
    before, now = StackSample(at, 0, 0, tick), StackSample(at + after, 0, 0)
    assert lateness_s(before, now) == pytest.approx(max(0.0, after - tick), abs=1e-9)


def test_a_loop_with_nothing_to_do_wakes_less_often() -> None:
    before = StackSample(10.0, 1.0, 2.0)
    assert next_tick(before, StackSample(10.01, 1.0002, 2.0)) == IDLE_TICK_S
    assert next_tick(before, StackSample(10.01, 1.005, 2.0)) == TICK_S


async def test_what_is_forgiven_does_not_count() -> None:
    watch = EventLoopMonitor(Telemetry())
    async with AsyncExitStack() as stack:
        watch.begin(stack)
        stand_still(watch)
        now = watch._read()
        assert lateness_s(watch._previous, now) > STALL_S
        watch.reset()
        assert lateness_s(watch._previous, now) == 0
