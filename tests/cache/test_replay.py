"""At what pace a stored answer is played back."""

from __future__ import annotations

import pytest

from gateway.cache.hits import MAX_REPLAY_S, paced, replay_duration_s
from gateway.config.policy.model import ReplaySettings
from gateway.messages import Event, Provenance
from gateway.outcomes import Verdict
from tests.fixtures.clock import FakeClock

EVENTS = tuple(Event(str(i).encode()) for i in range(5))


@pytest.mark.parametrize(
    ("rate", "tokens", "upstream_s", "events", "left_s", "expected"),
    [
        (50.0, 100, 9.0, 30, None, 2.0),  # the policy's rate
        (None, 100, 4.0, 30, None, 4.0),  # the entry's own: it takes as long as it took
        (None, 0, 4.0, 100, None, 2.0),  # neither is known: 50 a second, a token an event
        (None, 100, 0.0, 30, None, 2.0),
        (1.0, 10_000, 0.0, 30, None, MAX_REPLAY_S),
        (50.0, 100, 0.0, 30, 0.5, 0.5),  # no longer than the client's deadline
        (50.0, 100, 0.0, 30, -1.0, 0.0),
    ],
)
def test_a_replay_lasts_what_the_rate_says_within_bounds(
    rate: float | None, tokens: int, upstream_s: float, events: int, left_s: float | None, expected: float
) -> None:
    origin = Provenance(Verdict.EXACT, output_tokens=tokens, upstream_s=upstream_s)
    assert replay_duration_s(ReplaySettings(paced=True, rate=rate), origin, events, left_s) == pytest.approx(expected)


class Sleeper:
    """Time passes while it sleeps, and `late` more each time."""

    def __init__(self, clock: FakeClock, late: float = 0.0) -> None:
        self.clock, self.late = clock, late
        self.slept: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.clock.advance(seconds + self.late)


async def test_events_come_evenly_and_the_first_at_once() -> None:
    clock = FakeClock()
    sleeper, started = Sleeper(clock), clock.monotonic()
    came = [(event, clock.monotonic() - started) async for event in paced(EVENTS, 2.0, clock, sleeper)]
    assert [event for event, _ in came] == list(EVENTS)
    assert [at for _, at in came] == pytest.approx([0.0, 0.5, 1.0, 1.5, 2.0])


async def test_pauses_that_take_too_long_do_not_add_up() -> None:
    clock = FakeClock()
    sleeper, started = Sleeper(clock, late=0.4), clock.monotonic()
    came = [clock.monotonic() - started async for _ in paced(EVENTS, 2.0, clock, sleeper)]
    assert came == pytest.approx([0.0, 0.9, 1.4, 1.9, 2.4])


async def test_no_time_left_is_no_pause() -> None:
    clock = FakeClock()
    sleeper = Sleeper(clock)
    assert [event async for event in paced(EVENTS, 0.0, clock, sleeper)] == list(EVENTS)
    assert [event async for event in paced((), 5.0, clock, sleeper)] == []
    assert sleeper.slept == []
