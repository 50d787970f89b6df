"""The circuit breaker's states, by example and against a plain model of them."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.circuit_breaker import BreakerState, CircuitBreaker

THRESHOLD, COOLDOWN_S = 3, 10.0


def opened(at: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker(THRESHOLD, COOLDOWN_S)
    for _ in range(THRESHOLD):
        breaker.failed(at)
    return breaker


def test_it_opens_at_the_threshold_and_not_before() -> None:
    breaker = CircuitBreaker(THRESHOLD, COOLDOWN_S)
    for _ in range(THRESHOLD - 1):
        breaker.failed(0)
        assert breaker.allow(0)
    breaker.failed(0)
    assert breaker.state(0) is BreakerState.OPEN
    assert not breaker.allow(0)


def test_only_failures_in_a_row_count() -> None:
    breaker = CircuitBreaker(THRESHOLD, COOLDOWN_S)
    for _ in range(20):
        breaker.failed(0)
        breaker.failed(0)
        breaker.succeeded()
    assert breaker.state(0) is BreakerState.CLOSED


def test_after_the_cooldown_one_probe_at_a_time_is_let_through() -> None:
    breaker = opened()
    assert not breaker.allow(COOLDOWN_S - 0.01)
    assert breaker.state(COOLDOWN_S) is BreakerState.HALF_OPEN
    assert [breaker.allow(COOLDOWN_S) for _ in range(3)] == [True, False, False]


def test_a_probe_that_succeeds_closes_it() -> None:
    breaker = opened()
    assert breaker.allow(COOLDOWN_S)
    breaker.succeeded()
    assert breaker.state(COOLDOWN_S) is BreakerState.CLOSED
    assert all(breaker.allow(COOLDOWN_S) for _ in range(3))


def test_a_probe_that_fails_opens_it_for_another_cooldown() -> None:
    breaker = opened()
    assert breaker.allow(COOLDOWN_S)
    breaker.failed(COOLDOWN_S)
    assert not breaker.allow(2 * COOLDOWN_S - 0.01)
    assert breaker.allow(2 * COOLDOWN_S)


def test_a_probe_of_which_nothing_is_heard_does_not_shut_the_door_for_ever() -> None:
    """Its client may have left: a cancelled call neither succeeds nor fails."""
    breaker = opened()
    assert breaker.allow(COOLDOWN_S)
    assert not breaker.allow(2 * COOLDOWN_S - 0.01)
    assert breaker.allow(2 * COOLDOWN_S)


class Model(RuleBasedStateMachine):
    """What the documentation says, kept apart from how it is done."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = CircuitBreaker(THRESHOLD, COOLDOWN_S)
        self.now = 0.0
        self.failures: list[float] = []
        self.probe: float | None = None

    @rule(seconds=st.sampled_from([0.0, 1.0, 4.0, COOLDOWN_S, 25.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def fail(self) -> None:
        self.breaker.failed(self.now)
        self.failures.append(self.now)
        self.probe = None

    @rule()
    def succeed(self) -> None:
        self.breaker.succeeded()
        self.failures.clear()
        self.probe = None

    @rule()
    def ask(self) -> None:
        expected = True
        if len(self.failures) >= THRESHOLD:
            rested = self.now - self.failures[-1] >= COOLDOWN_S
            alone = self.probe is None or self.now - self.probe >= COOLDOWN_S
            expected = rested and alone
            if expected:
                self.probe = self.now
        assert self.breaker.ready(self.now) == expected
        assert self.breaker.allow(self.now) == expected

    @invariant()
    def the_state_is_that_of_the_failures(self) -> None:
        if len(self.failures) < THRESHOLD:
            expected = BreakerState.CLOSED
        else:
            expected = BreakerState.HALF_OPEN if self.now - self.failures[-1] >= COOLDOWN_S else BreakerState.OPEN
        assert self.breaker.state(self.now) is expected


TestAgainstTheModel = Model.TestCase
TestAgainstTheModel.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
